"""Attention at the shape of a hybrid's layer: trees and chains over a cache, prompts, and the move of accepted keys."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.static.rows import oracle_of
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.attention import KVState
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.shapes import Array
from ssmspec_ref.tree import ancestors

from .call import Call, Check, Plan, accepted, chain, declared, finite, launcher, masks, pulled, trees, within

MODELS = {"32 heads, 8 kv, 128": (32, 8, 128)}
"""h, g, e."""
FURTHER = {"40 heads, 8 kv, 128": (40, 8, 128)}
TINY = {"tiny": (4, 2, 18)}
CACHE, BLOCK = 900, 16
"""The longest cache; the shortest block that a kernel may walk it by, for the bound of the online softmax."""


def checks(plan: Plan) -> Iterator[Check]:
    for model, sizes in (TINY if plan.tiny else MODELS | FURTHER if plan.rare else MODELS).items():
        for b in plan.batches:
            for t in plan.windows:
                yield Check("rotary", model, f"T={t}", b, partial(turned, sizes=sizes, b=b, t=t))
                yield Check("tree_attention", model, f"T={t}", b, partial(verify, sizes=sizes, b=b, t=t, branching=False))
            for t in plan.nodes:
                yield Check(
                    "tree_attention", model, f"tree of {t}", b, partial(verify, sizes=sizes, b=b, t=t, branching=True)
                )
                yield Check("kv_compact", model, f"tree of {t}", b, partial(compact, sizes=sizes, b=b, t=t))
            for products, name in (("fp32", "packed"), ("bf16", "packed in bf16")):
                yield Check("causal_attention", model, name, b, partial(prompts, sizes=sizes, b=b, products=products))


class Cache:
    """Keys and values in slots out of order, NaN after the committed ones, and the sampled rows and heads."""

    def __init__(self, call: Call, sizes: tuple[int, int, int], b: int, room: int) -> None:
        self.call, (self.h, self.g, self.e), self.live = call, sizes, b - 1 if b > 1 else 1
        self.rows, self.heads, self.slots = call.rows(b), call.heads(self.h), call.slots(b)
        longest = CACHE if self.h > 4 else 40
        pool = b + 3
        self.length = call.rng.integers(1, longest, pool)
        own = self.slots[: self.live].tolist()
        self.length[own[0]] = longest - 1
        if self.live > 1:
            self.length[own[1]] = 0
        self.K, self.V = (call.blank(pool, longest + room, self.g, self.e) for _ in "KV")
        for x in (self.K, self.V):
            for slot in own:
                x[slot, : self.length[slot]] = call.normal(int(self.length[slot]), self.g, self.e)
        self.lengths = call.ints(self.length, torch.int64)

    def committed(self, row: int) -> tuple[int, int]:
        slot = int(self.slots[row])
        return slot, int(self.length[slot])

    def expected(self, q: Array, k: Array, v: Array, row: int, mask: Array, form: Any, **how: Any) -> Approx:
        """The outputs of one row and the sampled heads, each with the keys of its group; k and v are the window's."""
        slot, T = self.committed(row)
        group = self.heads // (self.h // self.g)
        K, V = (pulled(x[:, :T], np.array([slot]), group) for x in (self.K, self.V))
        K, V = (np.concatenate([old, new], axis=1) for old, new in ((K, k), (V, v)))
        contract, live = declared(io=form, **how), np.diag(mask)
        seen = np.concatenate([np.ones((len(mask), T), dtype=bool), mask], axis=1) & live[:, None]
        seen[~live, 0] = True
        blocks = -(-(T + len(mask)) // BLOCK) + 2
        exact_q, exact_K, exact_V = (eb.exact(x, contract) for x in (q, K, V))
        pair = eb.attention(exact_q, exact_K, exact_V, seen[None], self.e**-0.5, blocks)
        return pair.store(form).where(live[None, :, None, None])


def turned(call: Call, sizes: Any, b: int, t: int) -> float:
    """Rotated queries and keys, half of their channels' pairs, equal to PyTorch's bit for bit, all heads."""
    h, g, e = sizes
    q, k = call.beside(b, t, (h, e), (g, e))
    out, f = (call.blank(b, t, h, e), call.blank(b, t, g, e)), e // 4
    angle = call.uniform(0.0, 8000.0, b, t, f)
    cos, sin, live = angle.cos(), angle.sin(), b - 1 if b > 1 else 1
    with call.keeping({"out_q": slice(None), "out_k": slice(None)}, q=q, k=k, out_q=out[0], out_k=out[1]):
        launcher("rotary")(q, k, cos, sin, out=out)
    for x, y in zip((q, k), out, strict=True):
        first, second, rest = torch.split(x[:live].float(), [f, f, e - 2 * f], dim=-1)
        c, s = cos[:live, :, None], sin[:live, :, None]
        wanted = torch.cat([first * c - second * s, second * c + first * s, rest], dim=-1)
        assert torch.equal(y[:live], wanted.to(y.dtype)), "turned wrong"
    return 0.0


def verify(call: Call, sizes: Any, b: int, t: int, branching: bool) -> float:
    """A window over the cache; every second check appends its keys and values."""
    of, append = Cache(call, sizes, b, t), bool(t % 2)
    q, k, v = call.beside(b, t, (of.h, of.e), (of.g, of.e), (of.g, of.e))
    mask = masks(call, b, t, branching)
    dead = call.ints(~np.einsum("btt -> bt", mask), torch.bool)
    for x in (q, k, v):
        x[dead] = float("nan")
    out = call.blank(b, t, of.h, of.e)
    sees = {"ancestors": call.ints(mask, torch.bool)} if branching else {}
    rows, nodes = np.nonzero(np.einsum("btt -> bt", mask[: of.live]))
    at = of.slots.cpu().numpy()[rows]
    places = (call.ints(at, torch.int64), call.ints(of.length[at] + nodes, torch.int64))
    owned: dict[str, Any] = {"out": slice(0, of.live), **({"K": places, "V": places} if append else {})}
    with call.keeping(owned, K=of.K, V=of.V, q=q, k=k, v=v, length=of.lengths, out=out, **sees):
        launcher("tree_attention")(q, k, v, of.K, of.V, of.lengths, **sees, append=append, slots=of.slots, out=out)
    finite("y", out, of.live)
    if append:
        for x, new in ((of.K, k), (of.V, v)):
            assert torch.equal(x[places], new[call.ints(rows, torch.int64), call.ints(nodes, torch.int64)]), "appended wrong"
    used, group = 0.0, of.heads // (of.h // of.g)
    for row in of.rows:
        one = np.array([row])
        one_q, one_k, one_v = (np.nan_to_num(pulled(x, one, by)) for x, by in ((q, of.heads), (k, group), (v, group)))
        y = of.expected(one_q, one_k, one_v, row, mask[row], "bf16")
        used = max(used, within("y", pulled(out, one, of.heads), y))
    return used


def prompts(call: Call, sizes: Any, b: int, products: str) -> float:
    """Prompts of many lengths as one run, after committed tokens; their own keys are in the cache already."""
    most = 40 if sizes[0] <= 4 else 300 if b > 4 else 700
    of = Cache(call, sizes, b, most)
    lengths = call.rng.integers(1, most, b)
    lengths[0] = most
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    for row in range(of.live):
        slot, T = of.committed(row)
        for x in (of.K, of.V):
            x[slot, T : T + int(lengths[row])] = call.normal(int(lengths[row]), of.g, of.e)
    q = call.beside(1, int(bounds[-1]), (of.h, of.e), (of.g, of.e))[0][0]
    live, out = int(bounds[of.live]), call.blank(int(bounds[-1]), of.h, of.e)
    named = {"bounds": call.ints(bounds), "length": of.lengths, "slots": of.slots, "out": out}
    with call.keeping({"out": slice(0, live)}, K=of.K, V=of.V, q=q, **named):
        launcher("causal_attention")(q, of.K, of.V, **named, products=products)
    finite("y", out, live)
    used, group, only = 0.0, of.heads // (of.h // of.g), np.array([0])
    dot = "ieee" if products == "fp32" else products
    for row in of.rows:
        cut, (slot, T) = slice(int(bounds[row]), int(bounds[row + 1])), of.committed(row)
        t = cut.stop - cut.start
        k, v = (pulled(x[:, T : T + t], np.array([slot]), group) for x in (of.K, of.V))
        y = of.expected(pulled(q[None, cut], only, of.heads), k, v, row, chain(t), "bf16", dot=dot)
        used = max(used, within("y", pulled(out[None, cut], only, of.heads), y))
    return used


def compact(call: Call, sizes: Any, b: int, t: int) -> float:
    """The accepted nodes after the committed ones, bit for bit, all heads."""
    of = Cache(call, sizes, b, t)
    for x in (of.K, of.V):
        for row in range(of.live):
            slot, T = of.committed(row)
            x[slot, T : T + t] = call.normal(t, of.g, of.e)
    path, advanced = accepted(call, ancestors(trees(call, b, t)))
    before, new = [x.clone() for x in (of.K, of.V)], torch.full_like(of.lengths, -7)
    given = {"path": call.ints(path), "length": of.lengths, "slots": of.slots}
    own = of.slots[: of.live].long()
    owned = {"K": own, "V": own, "advanced_length": own}
    with call.keeping(owned, K=of.K, V=of.V, advanced_length=new, **given):
        launcher("kv_compact")(of.K, of.V, **given, advanced_length=new)
    for row in range(of.live):
        slot, T = of.committed(row)
        count = int(advanced[row])
        for x, old in zip((of.K, of.V), before, strict=True):
            want: Tensor = old[slot].clone()
            want[T : T + count] = old[slot, T + call.ints(path[row, :count], torch.int64)]
            assert torch.equal(x[slot].nan_to_num(7.5), want.nan_to_num(7.5)), (
                f"the cache of row {row} was not moved correctly"
            )
        assert int(new[slot]) == T + count, "another length"
    slot, T = of.committed(0)
    old_K, old_V = (x[slot : slot + 1, : T + t].double().cpu().numpy() for x in before)
    state = KVState(old_K, old_V, of.length[slot : slot + 1])
    moved = oracle_of("kv_compact")(state, path[:1])
    end = T + int(advanced[0])
    assert np.array_equal(of.K[slot, :end].double().cpu().numpy(), moved.K[0, :end]), "another cache than the reference's"
    return 0.0
