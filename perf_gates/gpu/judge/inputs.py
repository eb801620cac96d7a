"""The causal convolution and Mamba-1's scan at the shapes of models: all channels run, some are compared."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.shapes import CONV, SELECTIVE
from ssmspec_ref import conv, selective
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.shapes import Array

from .call import Call, Check, Plan, accepted, ancestors, declared, finite, launcher, masks, pulled, trees, within

WIDTH, CHANNELS = 4, 200
"""Taps, and the number of compared channels."""
BF16 = torch.bfloat16


def checks(plan: Plan) -> Iterator[Check]:
    for b in plan.batches:
        for model, c in ({"tiny": 37} if plan.tiny else CONV).items():
            at = partial(_check, model, b, c=c)
            yield at("conv_step", "T=1", step)
            for t in plan.windows:
                yield at("conv_window", f"T={t}", window, t=t, keep="final")
                yield at("conv_window", f"T={t} verify", window, t=t, keep="none")
                yield at("conv_window", f"T={t} replay", window, t=t, keep="committed", replay=True)
                yield at("conv_commit", f"T={t}", commit, t=t)
            for t in plan.nodes:
                yield at("conv_tree", f"T={t}", tree, t=t)
                yield at("conv_tree", f"T={t} replay", tree, t=t, replay=True)
                yield at("conv_commit", f"tree of {t}", commit, t=t, branching=True)
            yield at("conv_packed", "packed", packed)
        for model, sizes in ({"tiny": (37, 6)} if plan.tiny else SELECTIVE).items():
            at = partial(_check, model, b, sizes=sizes)
            for t in plan.windows:
                yield at("selective_scan", f"T={t}", scan, t=t)
                yield at("selective_scan", f"T={t} verify", scan, t=t, write_state=False)
            for t in plan.nodes:
                yield at("selective_tree", f"T={t}", selective_tree, t=t)


def _check(model: str, b: int, kernel: str, variant: str, run: Any, **how: Any) -> Check:
    return Check(kernel, model, variant, b, partial(run, b=b, **how))


class Convolution:
    """Windows in bf16, as in engines, filters, and the sampled rows and channels."""

    def __init__(self, call: Call, b: int, c: int) -> None:
        self.call, self.b, self.c, self.live = call, b, c, b - 1 if b > 1 else 1
        self.rows, self.channels = call.rows(b), call.sample(c, CHANNELS)
        self.slots = call.slots(b)
        self.own = self.slots[: self.live].long()
        self.M = call.pool(self.slots, c, WIDTH, form="bf16")
        self.weight, self.bias = call.normal(c, WIDTH), call.normal(c)
        weight, bias = (x.double().cpu().numpy()[self.channels] for x in (self.weight, self.bias))
        self.params = ConvParams(weight, bias, True)
        self.given = {"weight": self.weight, "bias": self.bias, "slots": self.slots}
        self.contract = declared(state="bf16")

    def inputs(self, t: int) -> Tensor:
        return self.call.beside(self.b, t, (self.c,), (40,))[0]

    def state(self) -> Array:
        """M of the sampled rows and channels."""
        at = self.slots[torch.as_tensor(self.rows, device=self.M.device)].long().cpu().numpy()
        return pulled(self.M, at, self.channels, axis=1)

    def sampled(self, u: Tensor) -> Array:
        return np.nan_to_num(pulled(u, self.rows, self.channels))

    def same(self, **tensors: Tensor) -> dict[str, Tensor]:
        return {"M": self.M, **self.given, **tensors}

    def replayed(self, t: int, branching: bool) -> tuple[dict[str, Tensor], Array]:
        """Inputs of the previous window with its accepted tokens, and the window M_0 after those."""
        previous = self.inputs(t)
        mask = masks(self.call, self.b, t, branching)
        path, advanced = accepted(self.call, mask)
        unread = self.call.ints(~(path[:, :, None] == np.arange(t)).any(axis=1), torch.bool)
        previous[unread] = float("nan")
        M = conv.commit_path(self.state(), self.sampled(previous), path[self.rows])
        what = {"path": self.call.ints(path)} if branching else {"advanced": self.call.ints(advanced)}
        return {"previous": previous, **what}, M

    def moved(self, M: Array) -> None:
        assert np.array_equal(self.state(), M), "M is not the window after the accepted tokens"


def step(call: Call, b: int, c: int) -> float:
    of = Convolution(call, b, c)
    u, out = of.inputs(1)[:, 0], call.blank(b, c)
    y, M = eb.conv.scan(of.state(), of.sampled(u[:, None]), of.params, of.contract)
    with call.keeping({"out": slice(0, of.live), "M": of.own}, out=out, **of.same(u=u)):
        launcher("conv_step")(of.M, u, **of.given, out=out)
    finite("y", out, of.live)
    of.moved(M.value)
    return within("y", pulled(out[:, None], of.rows, of.channels), y)


def window(call: Call, b: int, c: int, t: int, keep: str, replay: bool = False) -> float:
    of = Convolution(call, b, c)
    more, M = of.replayed(max(t, 3), False) if replay else ({}, of.state())
    u, out = of.inputs(t), call.blank(b, t, c)
    y, after = eb.conv.scan(M, of.sampled(u), of.params, of.contract)
    owned = {"out": slice(0, of.live), **({} if keep == "none" else {"M": of.own})}
    with call.keeping(owned, out=out, **of.same(u=u, **more)):
        launcher("conv_window")(of.M, u, **of.given, **more, keep=keep, out=out)
    finite("y", out, of.live)
    of.moved(after.value if keep == "final" else M)
    return within("y", pulled(out, of.rows, of.channels), y)


def tree(call: Call, b: int, c: int, t: int, replay: bool = False) -> float:
    of, parents = Convolution(call, b, c), trees(call, b, t)
    more, M = of.replayed(t, True) if replay else ({}, of.state())
    u, out = of.inputs(t), call.blank(b, t, c)
    u[call.ints(parents == -2, torch.bool)] = float("nan")
    y = eb.conv.tree(M, of.sampled(u), ancestors(parents[of.rows]), of.params, of.contract)
    more["parents"] = call.ints(parents)
    owned = {"out": slice(0, of.live), **({"M": of.own} if replay else {})}
    with call.keeping(owned, out=out, **of.same(u=u, **more)):
        launcher("conv_tree")(of.M, u, **of.given, **more, keep="committed" if replay else "none", out=out)
    finite("y", out, of.live)
    of.moved(M)
    return within("y", pulled(out, of.rows, of.channels), y)


def commit(call: Call, b: int, c: int, t: int, branching: bool = False) -> float:
    of = Convolution(call, b, c)
    more, M = of.replayed(t, branching)
    u = more.pop("previous")
    with call.keeping({"M": of.own}, **of.same(u=u, **more)):
        launcher("conv_commit")(of.M, u, **more, slots=of.slots)
    of.moved(M)
    return 0.0


def packed(call: Call, b: int, c: int) -> float:
    """Prompts of many lengths as one run, some from no window."""
    of = Convolution(call, b, c)
    lengths = call.rng.integers(1, 120, b)
    lengths[0] = 1
    bounds, fresh = np.concatenate([[0], np.cumsum(lengths)]), call.rng.random(b) < 0.3
    u, out, live = call.beside(1, int(bounds[-1]), (c,), (40,))[0][0], call.blank(int(bounds[-1]), c), int(bounds[of.live])
    start, named = of.state(), {"bounds": call.ints(bounds), "fresh": call.ints(fresh, torch.bool)}
    with call.keeping({"out": slice(0, live), "M": of.own}, out=out, **of.same(u=u, **named)):
        launcher("conv_packed")(of.M, u, **named, **of.given, out=out)
    finite("y", out, live)
    used, found, only = 0.0, of.state(), np.array([0])
    for i, row in enumerate(of.rows):
        cut = slice(int(bounds[row]), int(bounds[row + 1]))
        M = np.zeros_like(start[i : i + 1]) if fresh[row] else start[i : i + 1]
        y, after = eb.conv.scan(M, pulled(u[None, cut], only, of.channels), of.params, of.contract)
        used = max(used, within("y", pulled(out[None, cut], only, of.channels), y))
        assert np.array_equal(found[i], after.value[0]), "M is not the last inputs of the prompt"
    return used


class Channels:
    """Mamba-1: parameters, states, one window, and the sampled rows and channels."""

    def __init__(self, call: Call, b: int, sizes: tuple[int, int], t: int) -> None:
        self.call, (d, n), self.live = call, sizes, b - 1 if b > 1 else 1
        self.rows, self.channels, self.slots = call.rows(b), call.sample(d, 40), call.slots(b)
        self.S = call.pool(self.slots, d, n)
        x, z = call.beside(b, t, (d,), (d,))
        dt, B, C = (part.flatten(2) for part in call.beside(b, t, (d,), (n,), (n,)))
        self.tokens = {"x": x, "dt": dt, "B": B, "C": C}
        self.z, self.out = z, call.blank(b, t, d, form="bf16" if b == 1 else "fp32")
        A = -call.uniform(0.05, 1.0, d, n)
        self.given = {"A": A, "D": call.normal(d, form="fp32"), "dt_bias": call.normal(d, form="fp32", mean=-1.0)}
        a, d_x, bias = (self.given[name].double().cpu().numpy()[self.channels] for name in ("A", "D", "dt_bias"))
        self.params = selective.SelectiveParams(a, d_x, bias, True)
        self.contract = declared(io="bf16" if b == 1 else "fp32")

    def state(self) -> Array:
        at = self.slots[torch.as_tensor(self.rows, device=self.S.device)].long().cpu().numpy()
        return pulled(self.S, at, self.channels, axis=1)

    def window(self) -> selective.SelectiveWindow:
        by = {"x": self.channels, "dt": self.channels, "B": None, "C": None}
        found = {name: np.nan_to_num(pulled(self.tokens[name], self.rows, by[name])) for name in by}
        return selective.SelectiveWindow(**found, z=np.nan_to_num(pulled(self.z, self.rows, self.channels)))

    def run(self, kernel: str, owned: dict[str, Any], **more: Any) -> Array:
        named = {**self.tokens, **self.given, "z": self.z, "slots": self.slots, "out": self.out, **more}
        watched = {name: x for name, x in named.items() if isinstance(x, Tensor)}
        with self.call.keeping({"out": slice(0, self.live), **owned}, S=self.S, **watched):
            launcher(kernel)(self.S, **named)
        finite("y", self.out, self.live)
        return pulled(self.out, self.rows, self.channels)


def scan(call: Call, b: int, sizes: tuple[int, int], t: int, write_state: bool = True) -> float:
    of = Channels(call, b, sizes, t)
    y, S = eb.selective.scan(of.state(), of.window(), of.params, of.contract)
    owned = {"S": of.slots[: of.live].long()} if write_state else {}
    used = within("y", of.run("selective_scan", owned, write_state=write_state), y)
    return max(used, within("S", of.state(), S)) if write_state else used


def selective_tree(call: Call, b: int, sizes: tuple[int, int], t: int) -> float:
    of, parents = Channels(call, b, sizes, t), trees(call, b, t)
    for x in (*of.tokens.values(), of.z):
        x[call.ints(parents == -2, torch.bool)] = float("nan")
    contract = declared(io=of.contract.io, order="output_only")
    y = eb.selective.tree(of.state(), of.window(), ancestors(parents[of.rows]), of.params, contract)
    return within("y", of.run("selective_tree", {}, parents=call.ints(parents)), y)
