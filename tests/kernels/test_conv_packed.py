"""The convolution's kernel for packed sequences, against the oracle, its bytes, and planted faults."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_packed
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.conv import ConvParams
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, blank, check_within, contract, doubles, draw, strided, watch


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `lengths` are the sequences'; some tokens of the run lie behind them."""

    lengths: tuple[int, ...] = (3, 0, 17, 1, 2)
    c: int = 11
    w: int = 4
    state: str = "fp32"
    io: str = "fp32"
    bias: bool = True
    activation: bool = True
    fresh: bool = False
    write: bool = True
    behind: int = 2
    padding: bool = True
    index: torch.dtype = torch.int32
    seed: int = 0


CASES = [
    Options(),
    Options(fresh=True, seed=1),
    Options(lengths=(5, 8), c=5, w=2, state="bf16", io="bf16", bias=False, seed=2),
    Options(lengths=(1, 1, 1, 30, 1), c=16, w=8, io="bf16", fresh=True, index=torch.int64, seed=3),
    Options(lengths=(7, 7, 7), c=3, w=3, state="fp16", io="fp16", activation=False, write=False, seed=4),
    Options(lengths=(16, 16, 16), c=9, w=5, state="bf16", io="fp32", padding=False, behind=0, seed=5),
    Options(lengths=(40,), c=2, w=4, seed=6),
]


def made(o: Options) -> dict[str, Any]:
    """The tensors of one call and what the oracle takes; slot 0 is the last sequence's, sequence 2 is padding."""
    rng = np.random.default_rng(o.seed)
    forms, b = (o.state, o.io), len(o.lengths)
    bounds, total = np.cumsum([0, *o.lengths]), sum(o.lengths) + o.behind
    params = ConvParams(draw(rng, o.c, o.w, forms=forms), draw(rng, o.c) if o.bias else None, o.activation)
    pool, u = draw(rng, b + 3, o.c, o.w, forms=forms), draw(rng, total, o.c, forms=forms)
    slots = 1 + rng.permutation(b + 2)[:b]
    slots[-1] = 0
    rows = [i for i in range(b) if not (o.padding and i == 2 and b > 3)]
    fresh = np.array([o.fresh and i % 2 == 0 for i in range(b)])
    M0 = np.where(fresh[rows, None, None], 0.0, pool[slots[rows]])
    owned = np.concatenate([np.arange(bounds[i], bounds[i + 1]) for i in rows])
    M, run = np.full_like(pool, np.nan), np.full_like(u, np.nan)
    M[slots[rows]], run[owned] = np.where(fresh[rows, None, None], np.nan, M0), u[owned]
    tensors = {
        "M": strided(M, o.state),
        "u": strided(run, o.io, gap=4),
        "bounds": torch.from_numpy(bounds).to(o.index),
        "weight": strided(params.weight, o.io, gap=2),
        "bias": None if params.bias is None else torch.from_numpy(params.bias).float(),
        "slots": torch.from_numpy(np.where(np.isin(np.arange(b), rows), slots, -1)).to(o.index),
        "fresh": torch.from_numpy(fresh) if o.fresh else None,
        "out": blank(o.io, total, o.c),
    }
    return {"tensors": tensors, "params": params, "M0": M0, "u": u, "rows": rows, "owned": owned, "bounds": bounds}


def check(module: ModuleType, o: Options) -> None:
    """One call judged in full: outputs, state, bystanders, bytes."""
    m = made(o)
    tensors = {name: t for name, t in m["tensors"].items() if t is not None}
    kept = Kept(**tensors)
    with watch(**tensors) as seen:
        got = module.conv_packed(**tensors, activation=o.activation, write_state=o.write, block_t=8, block_c=8)
    assert got is tensors["out"]
    named = tensors["slots"][m["rows"]].long()
    kept.check(out=torch.from_numpy(m["owned"]), **({"M": named} if o.write else {}))
    for i, row in enumerate(m["rows"]):
        begin, end = m["bounds"][row : row + 2]
        after = m["M0"][i]
        if end > begin:
            y, M = eb.conv.scan(m["M0"][i : i + 1], m["u"][None, begin:end], m["params"], contract(o.state, o.io))
            check_within(doubles(got[begin:end]), y[0])
            after = M.value[0]
        if o.write:
            assert np.array_equal(doubles(tensors["M"][named[i]]), after)
    assert seen.outside == seen.races == []
    if not COMPILED and not o.fresh and all(length >= o.w for length in o.lengths):
        sizes = {"state": BYTES[o.state], "io": BYTES[o.io], "write_state": o.write}
        expected = module.traffic_bytes(sum(o.lengths), len(o.lengths), o.c, o.w, **sizes)
        # The tokens ask for what lies under their taps, each for itself: only what crosses the bus is counted.
        assert sum(a.distinct for (_, name), a in seen.accesses.items() if name in ("M", "u", "out")) == expected
    assert seen.stored("out").requested == seen.stored("out").distinct


@pytest.mark.parametrize("o", CASES)
def test_packed_sequences_equal_the_oracle_one_by_one_and_touch_nothing_else(o: Options) -> None:
    check(conv_packed, o)


def test_bounds_past_the_run_touch_nothing_behind_it() -> None:
    tensors = {key: t for key, t in made(Options(padding=False, behind=0))["tensors"].items() if t is not None}
    tensors["bounds"][-1] += 5
    kept = Kept(**tensors)
    conv_packed.conv_packed(**tensors, block_t=8, block_c=8)
    kept.check(out=slice(None), M=tensors["slots"].long())
    assert not tensors["M"][tensors["slots"].long()].isnan().any()


MUTANTS = [
    ("_conv_packed_kernel", "(starts[None, :] <= t[:, None])", "(starts[None, :] < t[:, None])"),
    ("_conv_packed_kernel", "behind = source >= begin", "behind = source > begin"),
    ("_conv_packed_kernel", "behind = source >= begin", "behind = source >= 0"),
    ("_conv_packed_kernel", "source = t - (W - 1 - k)", "source = t - (W - k)"),
    ("_conv_packed_kernel", "(W + source - begin)", "(W - 1 + source - begin)"),
    ("_conv_packed_kernel", "(t < tl.load(bounds + sequences))", "(t < tokens)"),
    ("_conv_packed_kernel", "mine = mine & (slot >= 0)", "mine = mine & (slot > 0)"),
    ("_conv_packed_kernel", "has_state = mine & (tl.load(fresh + b, mask=mine, other=1) == 0)", "has_state = mine"),
    ("_conv_packed_kernel", "k * stride_weight_w", "(W - 1 - k) * stride_weight_w"),
    ("conv_packed", "        commit_packed(M, u, bounds, slots, fresh, block_c)\n", "        pass\n"),
    (
        "conv_commit_kernel",
        "bounds + b + 1).to(tl.int64) - begin",
        "bounds + b + 1).to(tl.int64)",
    ),
    ("conv_commit_kernel", "inputs += begin * stride_u_t", "inputs += begin * stride_M_c"),
    ("conv_commit_kernel", "has_state = tl.load(fresh + b) == 0", "has_state = tl.load(fresh + b) != 0"),
]


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert caught(mutated(conv_packed, old, new, at=at), check, CASES)
