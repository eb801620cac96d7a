"""Packed prompts of both convolutions, against the oracle, their bytes, and planted faults."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.conv import conv_packed
from ssmspec_kernels.shortconv import shortconv_packed, shortconv_scan
from tests.kernels.conv_cases import GAPS, Case, Options, case, short
from tests.kernels.covers import covered, planted
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept, check_within, doubles, strided, watch

LENGTHS = {0: (3, 2, 0, 17, 1), 2: (5, 8), 3: (1, 1, 1, 30, 1), 4: (7, 7, 7), 5: (16, 16, 16), 6: (40,)}
"""Of the sequences, by the seed of a case; two tokens of the run lie behind them."""
CASES = [
    Options(b=5),
    Options(b=2, c=5, w=2, state="bf16", io="bf16", bias=False, seed=2),
    Options(b=5, c=16, w=8, io="bf16", index=torch.int64, seed=3),
    Options(b=3, c=3, w=3, state="fp16", io="fp16", activation=False, keep="none", seed=4),
    Options(b=3, c=9, w=5, state="bf16", io="fp32", padding=False, seed=5),
    Options(b=1, c=2, w=4, seed=6),
]
SHORT = [
    short(b=5),
    short(b=2, c=5, w=2, state="bf16", io="bf16", bias=False, seed=2),
    short(b=5, c=16, w=8, io="bf16", index=torch.int64, seed=3),
    short(b=3, c=3, w=4, state="fp16", io="fp16", padding=False, seed=4),
    short(b=1, c=2, w=5, io="bf16", seed=6),
]
COVERS = {conv_packed: CASES, shortconv_packed: SHORT}


def run_of(o: Options, fresh: bool, behind: int = 2) -> tuple[Case, np.ndarray[Any, Any]]:
    """A case as one run, some tokens behind the last sequence; those that start anew have NaN in their slots."""
    lengths = LENGTHS[o.seed]
    made = case(Options(**{**vars(o), "t": max(lengths)}))
    bounds, anew = np.cumsum([0, *lengths]), (np.arange(o.b) % 2 == 0) & fresh
    made.M0[anew[made.rows]] = 0.0
    made.state[made.named[torch.from_numpy(anew[made.rows])]] = float("nan")
    for name in (*o.inputs, "out"):
        run = np.full((bounds[-1] + behind, o.c), np.nan)
        for row in made.rows if name != "out" else ():
            run[bounds[row] : bounds[row + 1]] = doubles(made.tensors[name])[row, : lengths[row]]
        made.tensors[name] = strided(run, o.io, GAPS.get(name, 5))
    made.tensors["bounds"] = torch.from_numpy(bounds).to(o.index)
    if fresh:
        made.tensors["fresh"] = torch.from_numpy(anew)
    return made, bounds


def crossing(module: ModuleType, o: Options, tokens: int, anew: bool) -> int:
    """`traffic_bytes` of one sequence, less what a short one and one that starts anew do not read and write."""
    if o.short and (tokens < o.columns or anew):
        read = 0 if anew or not tokens else o.columns
        written = o.columns if tokens or anew else 0
        return o.c * (4 * tokens * o.bytes["io"] + (read + written) * o.bytes["state"])
    more = {} if o.short else {"write_state": o.keep == "final"}
    whole: int = module.traffic_bytes(
        tokens, 1, o.c, o.w, **o.bytes, **more
    )  # no plain integer: the table of kernels sees it
    return whole


def check(module: ModuleType, o: Options) -> None:
    """Outputs and last columns of every sequence, bystanders, bytes; once with sequences that start anew."""
    for fresh in (False, True):
        (made, bounds), expected = run_of(o, fresh, 0 if o.seed == 5 else 2), 0
        kept, writes = Kept(**made.tensors), o.keep == "final"
        with watch(**made.tensors) as seen:
            got = made.call(module, block_t=8, **({} if o.short else {"write_state": writes}))
        assert got is made.tensors["out"]
        owned = torch.from_numpy(np.concatenate([np.arange(*bounds[row : row + 2]) for row in made.rows]))
        kept.check(out=owned, **({"S" if o.short else "M": made.named} if writes else {}))
        for i, row in enumerate(made.rows):
            begin, end = bounds[row : row + 2]
            found = doubles(made.state[made.named[[i]]])
            if end > begin:
                y, M = made.bound(end - begin, [i])
                check_within(doubles(got[begin:end])[None], y)
            if writes and end > begin:
                check_within(found, M)
            elif writes:
                assert np.array_equal(found, made.M0[[i]])
            expected += crossing(module, o, int(end - begin), bool(fresh and row % 2 == 0))
        assert seen.outside == seen.races == []
        assert seen.stored("out").requested == seen.stored("out").distinct
        if not COMPILED and (o.short or (not fresh and all(length >= o.w for length in LENGTHS[o.seed]))):
            # The tokens ask for what lies under their taps, each for itself: only what crosses the bus is counted.
            assert (
                sum(a.distinct for (_, name), a in seen.accesses.items() if name in ("M", "S", *o.inputs, "out")) == expected
            )


@pytest.mark.parametrize(("module", "o"), covered(COVERS))
def test_packed_sequences_equal_the_oracle_one_by_one_and_touch_nothing_else(module: ModuleType, o: Options) -> None:
    check(module, o)


@pytest.mark.parametrize("module", COVERS)
def test_bounds_past_the_run_touch_nothing_behind_it(module: ModuleType) -> None:
    o = (short if module is shortconv_packed else Options)(b=5, padding=False)
    made, _ = run_of(o, False, 0)
    made.tensors["bounds"][-1] += 5
    kept = Kept(**made.tensors)
    made.call(module, block_t=8)
    kept.check(out=slice(None), **{"S" if o.short else "M": made.named})
    assert not made.state[made.named].isnan().any()


def test_a_prompt_has_the_bits_of_a_window() -> None:
    made, other = (case(short(t=6, padding=False)) for _ in range(2))
    y = made.call(shortconv_scan, out=None)
    run = {name: other.tensors[name].flatten(0, 1).contiguous() for name in "BCx"}
    found = other.call(shortconv_packed, **run, bounds=torch.arange(0, 25, 6), out=None)
    assert torch.equal(found.view(y.shape), y)
    assert torch.equal(other.state[other.named], made.state[made.named])


MUTANTS: dict[ModuleType, list[tuple[str, str, str]]] = {
    conv_packed: [
        ("_conv_packed_kernel", "(starts[None, :] <= t[:, None])", "(starts[None, :] < t[:, None])"),
        ("_conv_packed_kernel", "behind = source >= begin", "behind = source > begin"),
        ("_conv_packed_kernel", "behind = source >= begin", "behind = source >= 0"),
        ("_conv_packed_kernel", "source = t - (W - 1 - k)", "source = t - (W - k)"),
        ("_conv_packed_kernel", "(KEPT + source - begin)", "(KEPT - 1 + source - begin)"),
        ("_conv_packed_kernel", "(t < tl.load(bounds + sequences))", "(t < tokens)"),
        ("_conv_packed_kernel", "mine = mine & (slot >= 0)", "mine = mine & (slot > 0)"),
        ("_conv_packed_kernel", "has_state = mine & (tl.load(fresh + b, mask=mine, other=1) == 0)", "has_state = mine"),
        ("_conv_packed_kernel", "k * stride_weight_w", "(W - 1 - k) * stride_weight_w"),
        ("conv_packed", "        commit_packed(M, u, bounds, slots, fresh, block_c)\n", "        pass\n"),
        ("conv_commit_kernel", "bounds + b + 1).to(tl.int64) - begin", "bounds + b + 1).to(tl.int64)"),
        ("conv_commit_kernel", "inputs += begin * stride_u_t", "inputs += begin * stride_M_c"),
        ("conv_commit_kernel", "has_state = tl.load(fresh + b) == 0", "has_state = tl.load(fresh + b) != 0"),
    ],
    shortconv_packed: [
        ("_conv_packed_kernel", " & (t < tl.load(bounds + sequences))", ""),
        ("_conv_packed_kernel", "mine = mine & (slot >= 0)", "mine = mine & (slot > 0)"),
        ("_conv_packed_kernel", "(has_state & (source < begin))", "(mine & (source < begin))"),
        ("_conv_packed_kernel", "acc = C_t * acc", "pass"),
        ("_conv_packed_kernel", "(KEPT + source - begin)", "(KEPT - 1 + source - begin)"),
        ("_conv_packed_kernel", "behind = source >= begin", "behind = source >= 0"),
        ("_shortconv_commit_kernel", "moves = moves | (held == 0)", "moves = moves"),
        ("_shortconv_commit_kernel", "at_x += begin * stride_x_t", "at_x += 0"),
        ("load_product", "return B_t * tl.load", "return tl.load"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "at", "old", "new"), planted(MUTANTS))
def test_planted_faults_are_caught(module: ModuleType, at: str, old: str, new: str) -> None:
    assert caught(mutated(module, old, new, at=at), check, COVERS[module])
