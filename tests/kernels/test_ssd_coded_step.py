"""The kernel whose state is codes with scales: judged by the suite, in bytes and bits, at random; planted faults."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from conformance.judge import rounding
from conformance.judge.verdict import Judgement, judge
from conformance.suite import find, of_operation
from ssmspec_fast.adapters.kernel_parts.coded import KEPT, Coded, capability
from ssmspec_fast.adapters.kernels import Kernels
from ssmspec_kernels.coded import ssd_coded_step
from ssmspec_kernels.contract import CONTRACT
from ssmspec_ref import ssd
from ssmspec_ref.contract import Graph, NumericContract, Verdict
from tests.kernels.device import COMPILED
from tests.kernels.mutants import mutated
from tests.kernels.tensors import Kept, watch

STEP = of_operation("ssd.step")[0]
IDS = (
    "ssd.step/b2,g2,h6,p5,n4/plain/normal/s0",
    "ssd.step/b3,g2,h6,p5,n17/D=channel,z=on/gentle/s0",
    "ssd.step/b5,g2,h6,p5,n4/slots=apart/gentle/s0",
    "ssd.step/b5,g2,h6,p5,n4/slots=padded/gentle/s0",
    "ssd.step/b2,g2,h6,p5,n4/dt_limit=floor/wide/s0",
)
FORMS = {f"{how['state']}, {how['state_scale']}": replace(CONTRACT, io="bf16", **how) for how in KEPT[:2]} | {
    "int8, blocks of 3": replace(CONTRACT, io="bf16", state="int8", state_scale=3),
    "int16, row": replace(CONTRACT, state="int16", state_scale="row"),
}
RANDOM = replace(CONTRACT, **KEPT[2])


def kernels(contract: NumericContract) -> Kernels:
    return Kernels("cuda" if COMPILED else "cpu", torch.float32, torch.bfloat16 if contract.io == "bf16" else torch.float32)


def judged(contract: NumericContract, identity: str, module: ModuleType = ssd_coded_step) -> Judgement:
    specification, case = find(identity)
    return judge(specification, capability(kernels(contract), contract, module.ssd_coded_step), case)


@pytest.mark.parametrize("identity", IDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_within_the_bound_of_its_format(form: str, identity: str) -> None:
    found = judged(FORMS[form], identity)
    assert found.verdict is Verdict.PASS, found.message


def tensors(b: int = 3, h: int = 4, p: int = 18, n: int = 21, block: int | None = None, code: Any = torch.int8) -> Any:
    """The arguments of a call: rows in the slots 3, 2 and one of padding."""
    made = torch.Generator(torch.get_default_device()).manual_seed(n)
    j = 1 if block is None else -(-n // block)
    given: dict[str, Any] = {
        "codes": torch.randint(-99, 99, (b + 3, h, p, n), generator=made).to(code),
        "scales": torch.rand(b + 3, h, p, j, generator=made) + 0.5,
        "x": torch.randn(b, h, p, generator=made).bfloat16(),
        "dt": torch.randn(b, h, generator=made).bfloat16(),
        "A": -torch.rand(h, generator=made),
        "B": torch.randn(b, 2, n, generator=made).bfloat16(),
        "C": torch.randn(b, 2, n, generator=made).bfloat16(),
        "z": torch.randn(b, h, p, generator=made).bfloat16(),
        "slots": torch.tensor([3, 2, -1][:b], dtype=torch.int32),
        "out": torch.full((b, h, p), float("nan")).bfloat16(),
    }
    return given if block is None else given | {"block": block}


def run(module: ModuleType = ssd_coded_step, **given: Any) -> Tensor:
    y: Tensor = module.ssd_coded_step(**given)
    return y


@pytest.mark.parametrize(("block", "code", "z"), [(None, torch.int8, True), (10, torch.int16, False)])
def test_codes_and_scales_cross_the_bus_twice_and_nothing_else_is_touched(block: int | None, code: Any, z: bool) -> None:
    given = tensors(block=block, code=code)
    live = 2 if z else 1
    given["slots"][live:] = -1
    given["z"] = given["z"] if z else None
    kept = Kept(**{k: v for k, v in given.items() if isinstance(v, Tensor)})
    with watch(**{k: v for k, v in given.items() if isinstance(v, Tensor)}) as seen:
        y = run(**given)
    assert y is given["out"]
    assert torch.isnan(y[live:]).all()
    written = torch.tensor([3, 2][:live])
    kept.check(codes=written, scales=written, out=torch.arange(live))
    if not COMPILED:
        assert seen.outside == seen.races == []
        code = given["codes"].element_size()
        expected = ssd_coded_step.traffic_bytes(live, 4, 18, 21, 2, block=block, code=code, z=z)
        assert seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in ("slots", "A")) == expected


def test_a_row_written_elsewhere_leaves_the_slot_that_it_read() -> None:
    given, other = tensors(b=2), tensors(b=2)
    targets = torch.tensor([1, 0], dtype=torch.int64)
    kept = Kept(codes=given["codes"], scales=given["scales"])
    assert torch.equal(run(**given, targets=targets), run(**other))
    kept.check(codes=targets, scales=targets)
    assert torch.equal(given["codes"][targets], other["codes"][other["slots"].long()])


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    together, alone = tensors(b=2), tensors(b=2)
    y = run(**together)
    for row in (0, 1):
        one = {k: v[row : row + 1] if k in ("x", "dt", "B", "C", "z", "slots", "out") else v for k, v in alone.items()}
        assert torch.equal(run(**one)[0], y[row])
    assert torch.equal(together["codes"], alone["codes"])
    assert torch.equal(together["scales"], alone["scales"])


def check_blocks(module: ModuleType) -> None:
    """A block of zeros, one that is not finite, and one whose scale is below the normal range."""
    given = tensors(b=1, block=7)
    given["codes"][3, 0] = 0
    given["x"][:, 0] = 0
    given["scales"][3, 1, 3, 2] = float("inf")
    given["scales"][3, 2, 5, 1] = 1e-43
    given["x"][:, 2] = 0
    run(module, **given)
    codes, scales = given["codes"][3], given["scales"][3]
    assert not codes[0].any()
    assert (scales[0] == 1).all()
    assert torch.isnan(codes[1, 3, 14:].float() * scales[1, 3, 2]).all()
    assert torch.isfinite(scales[1, 3, :2]).all()
    assert not codes[2, 5, 7:14].any()
    assert scales[2, 5, 1] == 1


def test_a_block_of_zeros_stays_zero_and_one_that_is_not_finite_is_read_as_nan() -> None:
    check_blocks(ssd_coded_step)


# --- at random ---


def drawn(module: ModuleType, calls: int, seed: int = 0) -> str:
    """What the laws of rounding at random say of one token that is stored so often from one state, four slots in a call."""
    how, n = RANDOM, 32
    rng = np.random.default_rng(seed)
    S = np.zeros((4, 1, 8, n))
    shapes = (4, 1, 1, 8), (4, 1, 1), (4, 1, 1, n), (4, 1, 1, n)
    window = ssd.SSDWindow(*(rng.standard_normal(shape).round(2) for shape in shapes))
    token, params = window.token(0), ssd.SSDParams(np.array([-0.5]))
    of = Graph(Coded(kernels(how), how, torch.zeros(1, dtype=torch.int64), module.ssd_coded_step).step)
    after = np.stack([of(S, token, params)[1] for _ in range(calls)])
    exact = rounding.unstored(STEP, how, [(S, token, params)] * rounding.INPUTS, [S] * calls)
    return rounding.laws(exact, after, how)


def test_rounding_at_random_keeps_its_laws() -> None:
    assert drawn(ssd_coded_step, 60) == ""


@pytest.mark.nightly
def test_rounding_at_random_keeps_its_laws_over_many_calls() -> None:
    assert drawn(ssd_coded_step, 500, seed=1) == ""


codes_drawn = ssd_coded_step.drawn


@triton.jit
def _codes_kernel(found, values, seed, places, slot, number, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    at = tl.load(places + i)
    tl.store(found + i, codes_drawn(tl.load(values + i), seed, at, tl.load(slot), tl.load(number)))


def philox(key: int, counter: tuple[Any, int, int, int]) -> Any:
    """The first 32 bits of Philox 4x32 with ten rounds (Salmon, Moraes, Dror and Shaw, 2011)."""
    low, full = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = (np.asarray(x, dtype=np.uint64) & low for x in np.broadcast_arrays(*counter))
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (second >> full) ^ b ^ np.uint64(keys[0]), second & low
        c, d = (first >> full) ^ d ^ np.uint64(keys[1]), first & low
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return a


def check_counter(module: ModuleType) -> None:
    """The codes of 256 halves are the bits of Philox at the place, the slot and the number of the call, high words too."""
    places = torch.arange(256) * 7 + 2**20
    for seed, slot, number in ((0, 3, 5), (2**40 + 11, 0, 2**33 + 2**32 + 9)):
        found = torch.zeros(256)
        globals()["codes_drawn"] = module.drawn
        try:
            _codes_kernel[(1,)](found, torch.full((256,), 0.5), seed, places, *map(torch.tensor, (slot, number)), COUNT=256)
        finally:
            globals()["codes_drawn"] = ssd_coded_step.drawn
        bits = philox(seed, (places.cpu().numpy(), slot, number & 0xFFFFFFFF, number >> 32))
        assert found.tolist() == ((bits >> np.uint64(8)) < 2**23).astype(float).tolist()


def test_the_numbers_at_random_are_those_of_the_counter_that_is_told() -> None:
    assert [int(philox(key, (c, c, c, c))) for key, c in ((0, 0), (2**64 - 1, 2**32 - 1))] == [0x6627E8D5, 0x408F276D]
    check_counter(ssd_coded_step)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("zero + slot", "zero - slot"),
        ("(number >> 32)", "(number >> 31)"),
        ("+ number.to", "- number.to"),
        ("bits >> 8", "bits >> 9"),
    ],
)
def test_a_planted_counter_is_caught(old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check_counter(mutated(ssd_coded_step, old, new, at="drawn"))


UNFAIR = [
    ("drawn", "share < v - below", "0.5 < v - below", "to the nearest"),
    ("drawn", "share < v - below", "share * 0.8 < v - below", "lean up"),
    ("drawn", "zero + slot.to(tl.uint32)", "zero", "two rows"),
    ("drawn", "zero + number.to(tl.uint32)", "zero", "two calls"),
    ("ssd_coded_step", "call.add_(1)", "call.add_(0)", "two calls"),
    ("drawn", "low = place.to(tl.uint32)", "low = (place // 32 * 32).to(tl.uint32)", "apart in n"),
    ("drawn", "below + tl.where", "below + (bits & 127 == 0).to(tl.float32) + tl.where", "neighbours"),
]


@pytest.mark.parametrize(("at", "old", "new", "said"), UNFAIR)
def test_planted_faults_of_rounding_are_told_by_their_law(at: str, old: str, new: str, said: str) -> None:
    assert said in drawn(mutated(ssd_coded_step, old, new, at=at), 60)


# --- planted faults ---

KERNEL = "ssd_coded_step_kernel"
MUTANTS = [
    (KERNEL, "if slot >= 0 and target >= 0:", "if slot > 0 and target >= 0:"),
    (KERNEL, "target = tl.load(targets + b).to(tl.int64)", "target = slot"),
    (KERNEL, "at_g = h // HEADS_PER_GROUP", "at_g = h % HEADS_PER_GROUP"),
    (KERNEL, "codes + target * stride.S.s", "codes + slot * stride.S.s"),
    (KERNEL, "scales + target * stride_scales.s", "scales + slot * stride_scales.s"),
    (KERNEL, "tl.store(scales + target * stride_scales.s + scale_cell, scale, mask=in_j)", "pass"),
    (KERNEL, "whole = (v + 12582912.0) - 12582912.0", "whole = tl.floor(v)"),
    (KERNEL, "whole = (v + 12582912.0) - 12582912.0", "whole = v"),
    (KERNEL, "(row * stride_scales.p)[:, None] + j[None, :]", "(row * stride_scales.p)[:, None] + 0 * j[None, :]"),
    (KERNEL, "(k < EACH)[None, :] & (n < N)", "(n < N)"),
    (KERNEL, "S * tl.exp(step * tl.load(A + h))", "S * tl.exp(tl.load(A + h))"),
    (KERNEL, "y_t *= silu(", "y_t *= ("),
    ("scaled", "tl.max(tl.where(S == S, tl.abs(S), float(\"inf\")), axis=2)", "tl.max(S, axis=2)"),
    ("scaled", "known = scale >= 1.1754943508222875e-38", "known = scale > -1.0"),
    ("scaled", "scale = size / TOP", "scale = size / (TOP + 1)"),
    ("ssd_coded_step", "127.0 if", "128.0 if"),
    ("ssd_coded_step", "h // axes[\"g\"]", "axes[\"g\"]"),
]  # fmt: skip


def tripped(module: ModuleType) -> bool:
    """Whether the suite, or the check of special blocks, fails."""
    try:
        check_blocks(module)
    except AssertionError:
        return True
    forms = (FORMS["int8, blocks of 3"], FORMS["int16, row"])
    return any(judged(form, identity, module).verdict is Verdict.FAIL for form in forms for identity in IDS)


@pytest.mark.parametrize(("at", "old", "new"), MUTANTS)
def test_planted_faults_are_caught(at: str, old: str, new: str) -> None:
    assert tripped(mutated(ssd_coded_step, old, new, at=at))
