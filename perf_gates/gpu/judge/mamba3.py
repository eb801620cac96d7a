"""Mamba-3 at the shapes of models, SISO and MIMO: all heads run, some are compared."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.shapes import MAMBA3
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.mamba3 import Mamba3Params, Mamba3Window, width
from ssmspec_ref.records import along, concat, prefix
from ssmspec_ref.records import rows as of_rows
from ssmspec_ref.shapes import Array

from .call import Call, Check, Plan, accepted, ancestors, declared, finite, launcher, masks, poisoned, pulled, trees, within

LONGEST = 32
"""Nodes of a tree that one launch takes."""
TINY = {"tiny": (4, 5, 6, 2, 2, 1), "tiny of rank 2": (4, 3, 6, 1, 3, 2)}
BY_HEAD = ("x", "dt", "A", "trap", "z")
RING = ("x", "dt", "A", "trap", "angle", "B")


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else MAMBA3).items():
        for b in plan.batches:
            at = partial(_check, model, b, sizes)
            for t in plan.windows:
                yield at("mamba3_scan", f"T={t}", scan, t=t)
                yield at("mamba3_scan", f"T={t} verify", scan, t=t, write_state=False)
                yield at("mamba3_commit", f"T={t}", commit, t=t)
            yield at("mamba3_snapshots", "T=6", snapshots, t=6)
            for t in plan.nodes:
                if t <= LONGEST:
                    yield at("mamba3_tree", f"T={t}", tree, t=t)
                yield at("mamba3_commit", f"tree of {t}", commit, t=t, branching=True)
            yield at("mamba3_packed", "packed", packed)
            for t, capacity in plan.rings:
                yield at("mamba3_buffered", f"T={t} L={capacity}", ring, t=t, capacity=capacity)


def _check(model: str, b: int, sizes: tuple[int, ...], kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, b=b, sizes=sizes, **how))


class Layer:
    """States in fp32 as an engine keeps them, parameters, and the sampled rows and heads. MIMO has maps, a gate, halves."""

    def __init__(self, call: Call, b: int, sizes: tuple[int, ...], extra: int = 0) -> None:
        self.h, self.p, self.n, self.g, self.f, self.r = sizes
        self.call, self.b, self.live, self.many = call, b, b - 1 if b > 1 else 1, self.r > 1
        self.rows, self.heads, self.slots = call.rows(b), call.heads(self.h), call.slots(b)
        self.own, self.contract = self.slots[: self.live].long(), declared()
        self.S = call.pool(self.slots, self.h, width(self.p, self.n, self.f, self.r), extra=extra)
        turns = slice(self.p * self.n, self.p * self.n + self.f)
        self.S[self.own, :, turns] = call.uniform(0.0, 6.25, self.live, self.h, self.f)
        normal = partial(call.normal, form="fp32")
        self.weights = {
            "B_norm": normal(self.n), "C_norm": normal(self.n), "B_bias": normal(self.h, self.r, self.n),
            "C_bias": normal(self.h, self.r, self.n), "dt_bias": normal(self.h, mean=-1.0), "D": normal(self.h),
        }  # fmt: skip
        if self.many:
            self.weights |= {name: normal(self.h, self.r, self.p) for name in ("up", "gate", "down")}
        given = {name: x.double().cpu().numpy() for name, x in self.weights.items()}
        given = {name: a if name.endswith("_norm") else a[self.heads] for name, a in given.items()}
        self.options = {"A_floor": 1e-3, "eps": 1e-5, "halves": self.many}
        self.params = Mamba3Params(**given, A_floor=1e-3, eps=1e-5, pairs="halves" if self.many else "neighbours")

    def inputs(self, b: int, t: int) -> dict[str, Tensor]:
        """One projection writes z | x | B | C | dt | A | trap | angle."""
        heads, ranks = (self.h, self.p), (self.r, self.g, self.n)
        parts = heads, heads, ranks, ranks, (self.h,), (self.h,), (self.h,), (self.f,)
        names = "z", "x", "B", "C", "dt", "A", "trap", "angle"
        made = dict(zip(names, self.call.beside(b, t, *parts), strict=True))
        return made if self.many else {name: x for name, x in made.items() if name != "z"}

    def window(self, tokens: dict[str, Tensor], rows: Array) -> Mamba3Window:
        """The sampled heads, each as a group that is its own."""
        found = {name: pulled(x, rows, self.heads if name in BY_HEAD else None) for name, x in tokens.items()}
        for name in "BC":
            found[name] = found[name][..., self.heads // (self.h // self.g), :]
        return Mamba3Window(**{name: np.nan_to_num(a) for name, a in found.items()})

    def state(self, slots: Array | None = None) -> Array:
        """S of the sampled rows, or of these slots, at the sampled heads."""
        own = self.slots[torch.as_tensor(self.rows, device=self.S.device)].long().cpu().numpy()
        return pulled(self.S, own if slots is None else slots, self.heads, axis=1)

    def run(
        self, kernel: str, owned: dict[str, Any], tokens: dict[str, Tensor], live: int, *args: Any, **more: Any
    ) -> Tensor:
        """The outputs of a launcher that gets these tokens; nothing else is written, except what it owns."""
        out = self.call.blank(*tokens["x"].shape)
        named = {**tokens, **self.weights, "slots": self.slots, **more, "out": out}
        watched = {name: x for name, x in named.items() if isinstance(x, Tensor)}
        with self.call.keeping({"out": slice(0, live), **owned}, S=self.S, **watched):
            launcher(kernel)(self.S, *args, **named, **self.options)
        finite("y", out, live)
        return out

    def outputs(self, out: Tensor) -> Array:
        return pulled(out, self.rows, self.heads)


def scan(call: Call, b: int, sizes: tuple[int, ...], t: int, write_state: bool = True) -> float:
    of = Layer(call, b, sizes)
    tokens = of.inputs(b, t)
    y, S = eb.mamba3.scan(of.state(), of.window(tokens, of.rows), of.params, of.contract)
    out = of.run("mamba3_scan", {"S": of.own} if write_state else {}, tokens, of.live, write_state=write_state)
    used = within("y", of.outputs(out), y)
    return max(used, within("S", of.state(), S)) if write_state else used


def snapshots(call: Call, b: int, sizes: tuple[int, ...], t: int) -> float:
    """A state for every token, in separate slots."""
    of = Layer(call, b, sizes, extra=b * t)
    tokens, first = of.inputs(b, t), len(of.S) - b * t
    places = first + call.rng.permutation(b * t).reshape(b, t)
    window, start = of.window(tokens, of.rows), of.state()
    owned = {"S": torch.as_tensor(places[: of.live].ravel(), device=of.S.device)}
    out = of.run("mamba3_snapshots", owned, tokens, of.live, places=call.ints(places))
    used = 0.0
    for step in range(t):
        y, S = eb.mamba3.scan(start, prefix(window, step + 1), of.params, of.contract)
        used = max(used, within(f"S of token {step}", of.state(places[of.rows, step]), S))
    return max(used, within("y", of.outputs(out), y))


def tree(call: Call, b: int, sizes: tuple[int, ...], t: int) -> float:
    of = Layer(call, b, sizes)
    tokens, mask = of.inputs(b, t), ancestors(trees(call, b, t))
    sees = poisoned(call, tokens, mask)
    y = eb.mamba3.tree(of.state(), of.window(tokens, of.rows), mask[of.rows], of.params, of.contract)
    return within("y", of.outputs(of.run("mamba3_tree", {}, tokens, of.live, ancestors=sees)), y)


def commit(call: Call, b: int, sizes: tuple[int, ...], t: int, branching: bool = False) -> float:
    of = Layer(call, b, sizes)
    tokens = {name: x for name, x in of.inputs(b, t).items() if name != "z"}
    path, advanced = accepted(call, masks(call, b, t, branching))
    unread = call.ints(~(path[:, :, None] == np.arange(t)).any(axis=1), torch.bool)
    for x in tokens.values():
        x[unread] = float("nan")
    window, start = of.window(tokens, of.rows), of.state()
    weights = {name: of.weights[name][None] for name in ("B_norm", "B_bias", "dt_bias", "up") if name in of.weights}
    given = {name: tokens[name][None] for name in RING} | weights | {"slots": of.slots}
    given |= {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    with call.keeping({"S": (slice(None), of.own)}, S=of.S[None], **given):
        launcher("mamba3_commit")(of.S[None], **given, **of.options)
    used, found, contract = 0.0, of.state(), declared(order="sequential")
    for i, taken in enumerate(path[of.rows]):
        nodes = taken[taken >= 0]
        if not len(nodes):
            assert np.array_equal(found[i], start[i]), "S changed, although nothing was accepted"
            continue
        S = eb.mamba3.scan(start[i : i + 1], along(of_rows(window, np.array([i])), nodes[None]), of.params, contract)[1]
        used = max(used, within("S", found[i : i + 1], S))
    return used


def packed(call: Call, b: int, sizes: tuple[int, ...]) -> float:
    """Prompts of many lengths as one run, some from no state."""
    of = Layer(call, b, sizes)
    lengths = call.rng.integers(1, 40, b)
    bounds, fresh = np.concatenate([[0], np.cumsum(lengths)]), call.rng.random(b) < 0.3
    tokens, start = {name: x[0] for name, x in of.inputs(1, int(bounds[-1])).items()}, of.state()
    named = {"bounds": call.ints(bounds), "fresh": call.ints(fresh, torch.bool)}
    out = of.run("mamba3_packed", {"S": of.own}, tokens, int(bounds[of.live]), **named)
    used, found, only = 0.0, of.state(), np.array([0])
    for i, row in enumerate(of.rows):
        cut = slice(int(bounds[row]), int(bounds[row + 1]))
        S = np.zeros_like(start[i : i + 1]) if fresh[row] else start[i : i + 1]
        window = of.window({name: x[None, cut] for name, x in tokens.items()}, only)
        y, after = eb.mamba3.scan(S, window, of.params, of.contract)
        used = max(used, within("y", pulled(out[None, cut], only, of.heads), y), within("S", found[i : i + 1], after))
    return used


def ring(call: Call, b: int, sizes: tuple[int, ...], t: int, capacity: int) -> float:
    """A window after what the rings hold, each row another number of entries; then a flush of all that is held."""
    of = Layer(call, b, sizes)
    slots, tokens = len(of.S), of.inputs(b, t)
    entries = {name: call.blank(slots, capacity, *tokens[name].shape[2:]) for name in RING}
    origin, held = call.rng.integers(0, capacity, slots), call.rng.integers(0, capacity - t + 1, slots)
    own = of.slots[torch.as_tensor(of.rows, device=of.S.device)].long().cpu().numpy()
    for slot in of.own.tolist():
        at = torch.as_tensor((origin[slot] + np.arange(held[slot])) % capacity, device=of.S.device)
        for x in entries.values():
            x[slot, at] = call.normal(len(at), *x.shape[2:])
    rings = launcher("mamba3_ring", "Ring")(**entries, origin=call.ints(origin), held=call.ints(held))
    start, now = of.state(), of.window(tokens, of.rows)
    histories = [history(of, entries, int(slot), int(origin[slot]), int(held[slot])) for slot in own]
    before = {name: x.clone() for name, x in entries.items()}
    apart = of.S.clone()
    out = of.run("mamba3_buffered", {"S": of.own}, tokens, of.live, rings, window=t)
    used, found, exact = 0.0, of.state(), declared(order="sequential")
    for i, slot in enumerate(own):
        one, S, past, new = slice(i, i + 1), start[i : i + 1], histories[i], of_rows(now, np.array([i]))
        folded = eb.mamba3.scan(S, past, of.params, exact)[1] if past else None
        if folded is None or held[slot] + 2 * t <= capacity:
            assert np.array_equal(found[i], S[0]), "S changed in a row that does not flush"
        else:
            used = max(used, within("S", found[one], folded))
        y = eb.mamba3.scan(S, concat(past, new) if past else new, of.params, of.contract)[0]
        used = max(used, within("y", of.outputs(out)[one], y[:, int(held[slot]) :]))
        added = torch.as_tensor((origin[slot] + held[slot] + np.arange(t)) % capacity, device=of.S.device)
        for name, x in entries.items():
            assert torch.equal(x[int(slot), added], tokens[name][int(of.rows[i])]), f"an entry of {name} is not its token"
            before[name][int(slot), added] = x[int(slot), added]
            assert torch.equal(x[int(slot)].nan_to_num(7.0), before[name][int(slot)].nan_to_num(7.0)), f"{name} changed"
    return max(used, flushed(of, rings, apart, start, histories))


def flushed(of: Layer, rings: Any, S: Tensor, start: Array, histories: list[Mamba3Window | None]) -> float:
    """The checkpoints, put back, after a flush of all that was held."""
    of.S.copy_(S)
    names = ("B_norm", "B_bias", "dt_bias", "up")
    given = {name: of.weights[name] for name in names if name in of.weights}
    launcher("mamba3_flush")(of.S, rings, **given, **of.options, rows=of.b, slots=of.slots)
    used, found, exact = 0.0, of.state(), declared(order="sequential")
    for i, past in enumerate(histories):
        if past:
            S_i = eb.mamba3.scan(start[i : i + 1], past, of.params, exact)[1]
            used = max(used, within("S", found[i : i + 1], S_i))
        else:
            assert np.array_equal(found[i], start[i]), "S changed, although the ring was empty"
    return used


def history(of: Layer, entries: dict[str, Tensor], slot: int, origin: int, held: int) -> Mamba3Window | None:
    """The held tokens of a slot in order, if any; queries and gates of tokens that were accepted before are not needed."""
    if not held:
        return None
    capacity = entries["x"].shape[1]
    at = torch.as_tensor((origin + np.arange(held)) % capacity, device=of.S.device)
    tokens = {name: x[slot : slot + 1, at] for name, x in entries.items()}
    tokens["C"] = tokens["B"]
    return of.window(tokens | ({"z": tokens["x"]} if of.many else {}), np.array([0]))
