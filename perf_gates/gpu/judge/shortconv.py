"""The short convolution at the shape of LFM2: all channels run, some are compared; what is copied is compared by bits."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.shapes import SHORTCONV
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import shortconv
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvParams, ShortConvWindow, buffered

from .call import Call, Check, Plan, accepted, ancestors, declared, finite, launcher, masks, pulled, trees, within

CHANNELS = 200
"""The number of compared channels."""
TINY = {"tiny": (37, 3)}


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else SHORTCONV).items():
        for b in plan.batches:
            at = partial(_check, model, b, sizes)
            for t in plan.windows:
                yield at("shortconv_scan", f"T={t}", scan, t=t)
                yield at("shortconv_scan", f"T={t} verify", scan, t=t, write_state=False)
                yield at("shortconv_commit", f"T={t}", commit, t=t)
            yield at("shortconv_snapshots", "T=6", snapshots, t=6)
            for t in plan.nodes:
                yield at("shortconv_tree", f"T={t}", tree, t=t)
                yield at("shortconv_commit", f"tree of {t}", commit, t=t, branching=True)
            yield at("shortconv_packed", "packed", packed)
            for t, capacity in plan.rings:
                yield at("shortconv_buffered", f"T={t} L={capacity}", ring, t=t, capacity=capacity)


def _check(model: str, b: int, sizes: tuple[int, int], kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, b=b, sizes=sizes, **how))


class Layer:
    """Columns in fp32, as in engines, taps, and the sampled rows and channels."""

    def __init__(self, call: Call, b: int, sizes: tuple[int, int], places: int = 0) -> None:
        (self.d, self.w), self.call, self.b, self.live = sizes, call, b, b - 1 if b > 1 else 1
        self.rows, self.channels, self.slots = call.rows(b), call.sample(self.d, CHANNELS), call.slots(b)
        self.own = self.slots[: self.live].long()
        self.S = call.pool(self.slots, self.d, self.w - 1, extra=places)
        self.weight, self.bias = call.normal(self.d, self.w), call.normal(self.d)
        weight, bias = (x.double().cpu().numpy()[self.channels] for x in (self.weight, self.bias))
        self.params = ShortConvParams(weight, bias)
        self.given = {"weight": self.weight, "bias": self.bias, "slots": self.slots}
        self.contract = declared()

    def inputs(self, b: int, t: int) -> dict[str, Tensor]:
        """B | C | x, as the projection writes them."""
        return dict(zip("BCx", self.call.beside(b, t, *((self.d,),) * 3), strict=True))

    def window(self, tokens: dict[str, Tensor], rows: Array) -> ShortConvWindow:
        return ShortConvWindow(*(np.nan_to_num(pulled(tokens[name], rows, self.channels)) for name in "BCx"))

    def state(self, slots: Array | None = None) -> Array:
        """S of the sampled rows, or of these slots, at the sampled channels."""
        own = self.slots[torch.as_tensor(self.rows, device=self.S.device)].long().cpu().numpy()
        return pulled(self.S, own if slots is None else slots, self.channels, axis=1)

    def run(self, kernel: str, owned: dict[str, Any], tokens: dict[str, Tensor], live: int, **more: Any) -> Tensor:
        """The outputs of a launcher that gets these tokens; nothing else is written, except what it owns."""
        out = self.call.blank(*tokens["x"].shape)
        named = {**tokens, **self.given, **more, "out": out}
        watched = {name: x for name, x in named.items() if isinstance(x, Tensor)}
        with self.call.keeping({"out": slice(0, live), **owned}, S=self.S, **watched):
            launcher(kernel)(self.S, **named)
        finite("y", out, live)
        return out


def scan(call: Call, b: int, sizes: tuple[int, int], t: int, write_state: bool = True) -> float:
    of = Layer(call, b, sizes)
    tokens = of.inputs(b, t)
    y, S = eb.shortconv.scan(of.state(), of.window(tokens, of.rows), of.params, of.contract)
    before = of.state()
    out = of.run("shortconv_scan", {"S": of.own} if write_state else {}, tokens, of.live, write_state=write_state)
    assert np.array_equal(of.state(), S.value if write_state else before), "S is not the last products"
    return within("y", pulled(out, of.rows, of.channels), y)


def snapshots(call: Call, b: int, sizes: tuple[int, int], t: int) -> float:
    of = Layer(call, b, sizes, places=b * t)
    tokens, first = of.inputs(b, t), len(of.S) - b * t
    places = first + call.rng.permutation(b * t).reshape(b, t)
    owned = torch.as_tensor(places[: of.live].ravel(), device=of.S.device)
    window, start = of.window(tokens, of.rows), of.state()
    out = of.run("shortconv_snapshots", {"S": owned}, tokens, of.live, places=call.ints(places))
    wanted = shortconv.states(start, window, of.params)[1]
    for step in range(t):
        found = of.state(places[of.rows, step])
        assert np.array_equal(found, wanted[:, step]), f"S of token {step} is not the last products"
    y, _ = eb.shortconv.scan(start, window, of.params, of.contract)
    return within("y", pulled(out, of.rows, of.channels), y)


def tree(call: Call, b: int, sizes: tuple[int, int], t: int) -> float:
    of, parents = Layer(call, b, sizes), trees(call, b, t)
    tokens = of.inputs(b, t)
    for x in tokens.values():
        x[call.ints(parents == -2, torch.bool)] = float("nan")
    window = of.window(tokens, of.rows)
    y = eb.shortconv.tree(of.state(), window, ancestors(parents[of.rows]), of.params, of.contract)
    return within(
        "y", pulled(of.run("shortconv_tree", {}, tokens, of.live, parents=call.ints(parents)), of.rows, of.channels), y
    )


def commit(call: Call, b: int, sizes: tuple[int, int], t: int, branching: bool = False) -> float:
    of = Layer(call, b, sizes)
    tokens = of.inputs(b, t)
    path, advanced = accepted(call, masks(call, b, t, branching))
    unread = call.ints(~(path[:, :, None] == np.arange(t)).any(axis=1), torch.bool)
    for x in tokens.values():
        x[unread] = float("nan")
    window = of.window(tokens, of.rows)
    wanted = of.state()
    for row, taken in enumerate(path[of.rows]):
        products = (window.B * window.x)[row, taken[taken >= 0]].T
        wanted[row] = np.concatenate([wanted[row], products], axis=1)[:, -(of.w - 1) :]
    what = {"path": call.ints(path)} if branching else {"advanced": call.ints(advanced)}
    given = {"B": tokens["B"][None], "x": tokens["x"][None], **what, "slots": of.slots}
    with call.keeping({"S": (slice(None), of.own)}, S=of.S[None], **given):
        launcher("shortconv_commit")(of.S[None], **given)
    assert np.array_equal(of.state(), wanted), "S is not the last products of the accepted tokens"
    return 0.0


def packed(call: Call, b: int, sizes: tuple[int, int]) -> float:
    """Prompts of many lengths as one run, some from no columns."""
    of = Layer(call, b, sizes)
    lengths = call.rng.integers(1, 120, b)
    lengths[0] = 1
    bounds, fresh = np.concatenate([[0], np.cumsum(lengths)]), call.rng.random(b) < 0.3
    tokens, start = {name: x[0] for name, x in of.inputs(1, int(bounds[-1])).items()}, of.state()
    named = {"bounds": call.ints(bounds), "fresh": call.ints(fresh, torch.bool)}
    out = of.run("shortconv_packed", {"S": of.own}, tokens, int(bounds[of.live]), **named)
    used, found, only = 0.0, of.state(), np.array([0])
    for i, row in enumerate(of.rows):
        cut = slice(int(bounds[row]), int(bounds[row + 1]))
        S = np.zeros_like(start[i : i + 1]) if fresh[row] else start[i : i + 1]
        window = of.window({name: x[None, cut] for name, x in tokens.items()}, only)
        y, after = eb.shortconv.scan(S, window, of.params, of.contract)
        used = max(used, within("y", pulled(out[None, cut], only, of.channels), y))
        assert np.array_equal(found[i], after.value[0]), "S is not the last products of the prompt"
    return used


def ring(call: Call, b: int, sizes: tuple[int, int], t: int, capacity: int) -> float:
    """A window after what the rings hold, each row another number of entries; then a flush of all that is held."""
    of = Layer(call, b, sizes)
    slots, tokens = len(of.S), of.inputs(b, t)
    origin, held = call.rng.integers(0, capacity, slots), call.rng.integers(0, capacity - t + 1, slots)
    places = np.arange(capacity)
    full = (places - origin[:, None]) % capacity < held[:, None]
    u = call.normal(slots, capacity, of.d, form="fp32")
    u[call.ints(~full, torch.bool)] = float("nan")
    rings = launcher("shortconv_ring", "Ring")(u, call.ints(origin), call.ints(held))
    own = of.slots[torch.as_tensor(of.rows, device=u.device)].long().cpu().numpy()
    order = (origin[own, None] + places) % capacity
    history = buffered.ShortConvHistory(np.nan_to_num(pulled(u, own)[np.arange(len(own))[:, None], order][..., of.channels]))
    start, window = of.state(), of.window(tokens, of.rows)
    folded = buffered.fold(start, history, places < held[own, None], of.params)
    y, _ = eb.shortconv.scan(folded, window, of.params, of.contract)
    apart = of.S.clone()
    out = of.run("shortconv_buffered", {"S": of.own}, tokens, of.live, ring=rings, window=t)
    due = held[own] + 2 * t > capacity
    assert np.array_equal(of.state(), np.where(due[:, None, None], folded, start)), "S is not the last products of the ring"
    to = torch.as_tensor((origin[own, None] + held[own, None] + np.arange(t)) % capacity, device=u.device)
    rows = torch.as_tensor(of.rows, device=u.device)
    products = tokens["B"][rows].float() * tokens["x"][rows].float()
    assert torch.equal(u[torch.as_tensor(own, device=u.device)[:, None], to], products), (
        "an entry of the ring is not its product"
    )
    of.S.copy_(apart)
    launcher("shortconv_flush")(of.S, rings, b, slots=of.slots)
    assert np.array_equal(of.state(), folded), "the flush did not keep the last products of the ring"
    return within("y", pulled(out, of.rows, of.channels), y)
