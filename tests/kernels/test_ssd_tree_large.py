"""Large trees of SSD: every node against the oracle within its bound, what is read, and what does not take the kernel."""

from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.ssd import ssd_tree_large, ssd_tree_scan
from ssmspec_ref.errors import ParameterError
from ssmspec_ref.shapes import Array
from tests.kernels import ssd_cases as cases
from tests.kernels.mutants import mutated
from tests.kernels.ssd_cases import Case, Options
from tests.kernels.test_ssd_tree_scan import check_bytes, draw, oracle

WIDE = Options(b=3, t=63, h=4, g=2, p=64, n=128, io="bf16", spare=1)
REST = replace(WIDE, t=40, h=6, g=2, p=80, seed=1)
STRONG = replace(WIDE, h=2, g=1, limit=(3.0, float("inf")), seed=6)
MILD = replace(WIDE, h=2, g=1, gentle=True, D="", seed=2)
COVER = [
    WIDE,
    replace(WIDE, b=1, t=64, h=2, g=1, D="", bias=False, softplus=False, seed=3),
    replace(WIDE, t=33, h=2, limit=(0.05, 0.8), poison=7.0, seed=4),
    STRONG,
    MILD,
    REST,
    replace(REST, h=4, g=1, gentle=True, seed=5),
]


def check(module: ModuleType, o: Options, **options: Any) -> None:
    """The outputs within their bounds, and nothing else written."""
    (case, mask), (fresh, _) = draw(o), draw(o)
    pair, _ = oracle(case, mask)
    before = case.before(mask=mask)
    case.call(module.ssd_tree_scan, ancestors=mask, **options)
    cases.assert_within("y", case.out, pair, case.rows)
    case.out[case.rows] = fresh.out[case.rows]
    cases.unchanged(before)


def taken(monkeypatch: pytest.MonkeyPatch, case: Case, mask: torch.Tensor, **options: Any) -> bool:
    """Whether a call takes the kernel."""
    calls: list[Any] = []
    launch = ssd_tree_large.launch_large

    def kept(*args: Any) -> None:
        calls.append(args)
        launch(*args)

    monkeypatch.setattr(ssd_tree_scan, "launch_large", kept)
    case.call(ssd_tree_scan.ssd_tree_scan, ancestors=mask, **options)
    return bool(calls)


@pytest.mark.parametrize("o", COVER, ids=str)
def test_every_node_lies_within_the_bound_and_nothing_else_is_written(o: Options) -> None:
    check(ssd_tree_scan, o)


def decays(o: Options) -> Array:
    """The largest |G| of each head that the kernel sees."""
    case, mask = draw(o)
    window = case.window(np.einsum("btt -> bt", mask.numpy()[case.rows]))
    raw = window.dt + (case.params().dt_bias if o.bias else 0.0)
    step = np.clip(np.logaddexp(0.0, raw) if o.softplus else raw, *o.limit)
    sees = mask.numpy()[case.rows].astype(float)
    G = np.einsum("bij, bjh -> bih", sees, step * case.params().A)
    return np.asarray(np.abs(G).max(axis=(0, 1)))


def test_both_forms_of_the_weights_are_covered() -> None:
    assert decays(STRONG).min() > ssd_tree_large.MILD
    assert decays(MILD).max() < ssd_tree_large.MILD


def both_forms() -> tuple[Case, torch.Tensor]:
    """Heads of one group, of which the even ones take one form of the weights, the odd ones the other."""
    case, mask = draw(replace(MILD, b=1, h=4))
    case.A[1::2] *= 4 * ssd_tree_large.MILD
    return case, mask


def check_forms(module: ModuleType) -> None:
    """The bits of a head are the same alone in a program and beside heads of the other form, in fp32."""
    case, mask = both_forms()
    together, alone = (torch.empty_like(case.x, dtype=torch.float32) for _ in range(2))
    case.call(module.ssd_tree_scan, ancestors=mask, heads=4, out=together)
    case.call(module.ssd_tree_scan, ancestors=mask, heads=1, out=alone)
    assert torch.equal(together[case.rows], alone[case.rows])


def test_heads_of_both_forms_in_a_program_have_the_bits_that_they_have_alone() -> None:
    check_forms(ssd_tree_scan)


def test_a_form_for_all_heads_of_a_program_is_caught() -> None:
    own, of_all = "tl.max(tl.abs(G), axis=0) < MILD", "tl.max(tl.max(tl.abs(Gs), axis=1), axis=0) < MILD"
    mutant = mutated(ssd_tree_scan, own, of_all)
    with pytest.raises(AssertionError):
        check_forms(mutant)


@pytest.mark.parametrize("o", [WIDE, REST], ids=str)
@pytest.mark.parametrize("heads", [1, 2])
def test_any_number_of_heads_a_program_has_the_same_bits(o: Options, heads: int) -> None:
    o = replace(o, h=4, g=1, gentle=True)
    (case, mask), (other, _) = draw(o), draw(o)
    case.call(ssd_tree_scan.ssd_tree_scan, ancestors=mask, heads=4)
    other.call(ssd_tree_scan.ssd_tree_scan, ancestors=mask, heads=heads)
    assert torch.equal(case.out[case.rows], other.out[other.rows])


LOST = ("A", "D", "dt")


def check_heads_apart(module: ModuleType, o: Options, large: bool = True, lost: tuple[str, ...] = LOST) -> None:
    """What is no number in head 1, and the outputs of the heads beside it in a program."""
    for name, value in product(lost, (float("nan"), float("inf"))):
        found = []
        for changed in (False, True):
            case, mask = draw(replace(o, b=2, h=4, g=1, t=33, spare=0))
            if changed:
                {"A": case.A[1:2], "D": case.extra["D"][1:2], "dt": case.dt[:, 5, 1]}[name].fill_(value)
            with np.errstate(invalid="ignore"):
                case.call(module.ssd_tree_scan, ancestors=mask, large=large, heads=4 if large else None)
            found.append(case.out[case.rows])
        assert not found[1][:, 5:, 1].isfinite().all(), name
        assert torch.equal(found[0][:, :, [0, 2, 3]], found[1][:, :, [0, 2, 3]]), name


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # NumPy's, which stands for the hardware
@pytest.mark.parametrize(("o", "large"), [(WIDE, True), (REST, False), (REST, True)])
def test_a_head_that_is_not_finite_reaches_no_other(o: Options, large: bool) -> None:
    check_heads_apart(ssd_tree_scan, o, large)


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.parametrize(
    ("o", "old", "new", "at"),
    [
        (WIDE, "tl.where(k[None, :] == head, Gs, 0.0)", "tl.where(k[None, :] == head, 1.0, 0.0) * Gs", "_weights"),
        (REST, "0.0 * Gs + 0.0 * steps", "0.0 * steps", "_finite_heads"),
        (REST, "axis=0) + 0.0 * skips", "axis=0)", "_finite_heads"),
        (REST, "decay += tl.sum(tl.where(k == head, lost, 0.0), axis=0)", "pass", "ssd_tree_large_kernel"),
        (REST, "tl.sum(tl.where(k == head, lost, 0.0), axis=0)", "tl.sum(lost, axis=0)", "ssd_tree_large_kernel"),
        (REST, "sound = lost == 0.0", "sound = lost != 1.0", "_finite_heads"),
    ],
)
def test_a_head_that_reaches_another_is_caught(o: Options, old: str, new: str, at: str) -> None:
    with pytest.raises(AssertionError):
        check_heads_apart(mutated(ssd_tree_scan, old, new, at=at), o)


@pytest.mark.parametrize("o", [replace(WIDE, h=2, g=1), replace(REST, h=4, g=1, t=33)], ids=str)
def test_bytes_equal_the_formula_and_the_state_and_every_node_are_read_once(o: Options) -> None:
    check_bytes(ssd_tree_scan, o)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"t": 32}, {}),
        ({"t": 65}, {}),
        ({"p": 48}, {}),
        ({"n": 64}, {}),
        ({"io": "fp16"}, {}),
        ({"state": "bf16"}, {}),
        ({"z": True}, {}),
        ({"D": "channel"}, {}),
        ({}, {"large": False}),
        ({}, {"block_p": 16, "program_p": 64, "num_warps": 2, "stages": 1}),
    ],
    ids=str,
)
def test_what_it_is_not_made_for_does_not_take_it(
    changes: dict[str, Any], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(WIDE, b=1, h=1, g=1)
    assert taken(monkeypatch, *draw(small))
    assert not taken(monkeypatch, *draw(replace(small, **changes)), **options)


def test_the_rest_of_more_than_four_heads_is_refused() -> None:
    case, mask = draw(replace(REST, h=6, g=1))
    before = case.before()
    with pytest.raises(ParameterError, match="up to 4 heads"):
        case.call(ssd_tree_scan.ssd_tree_scan, ancestors=mask, heads=6)
    cases.unchanged(before)


def check_all(module: ModuleType) -> None:
    for o in (replace(STRONG, b=1), MILD, replace(REST, h=2, g=1, t=36)):
        check(module, o, heads=2)


FAULTS = [
    ("token = pair // 256 * 8 + pair % 4 * 2", "token = pair // 256 * 8 + pair % 2 * 4", "places"),
    ("bits >> (pair % 4 * 2)", "bits >> (pair % 2 * 4)", "bit_of_token"),
    ("row % 8 * 2 + row // 32 % 2", "row % 8 + row // 32 % 2 * 8", "row_channels"),
    ("(tl.exp(-G) * step)[:, None]", "step[:, None]", "_weights"),
    ("W = tl.exp(between)", "W = tl.exp(-between)", "_weights"),
    ("G[None, :] - G[:, None]", "G[:, None] - G[None, :]", "_weights"),
    ("_add_weighted(decay * y_p,", "_add_weighted(y_p,", "ssd_tree_large_kernel"),
    ("k[None, :] == head, steps", "k[None, :] == 0, steps", "_weights"),
    ("tl.where(tl.trans(sees),", "tl.where(sees,", "_node_scores"),
    ("bit_of_token(tl.where(first + head < all_heads, bits, 0))", "token < T", "ssd_tree_large_kernel"),
    ("(warp < HEADS)[:, None] & (n >= 0)", "(warp < 1)[:, None] & (n >= 0)", "_rest"),
    ("tl.where(own, decay, 1.0) * y_rest", "decay * y_rest", "ssd_tree_large_kernel"),
    ("(token < T) & (owners < HEADS)", "token < T", "ssd_tree_large_kernel"),
    ("own = owner[:, None] == head", "own = owner[:, None] >= head", "ssd_tree_large_kernel"),
    ("tl.dot(x_p, parts[1]", "tl.dot(x_p, parts[2]", "_add_weighted"),
    ("(tl.load(at), tl.load(at + 64))", "(tl.load(at), tl.load(at))", "_tiles"),
    ("_columns(start, rows, real, 64, COLUMNS)", "left", "_rows"),
    ("mid, rest = cut(rest)\n    acc", "mid, _ = cut(rest)\n    acc", "_onto"),
    ("W = W + tl.where(i[:, None] == i[None, :]", "W = W + tl.where(i[:, None] >= i[None, :]", "_weights"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "at"), FAULTS, ids=[new for _, new, _ in FAULTS])
def test_planted_fault_is_caught(old: str, new: str, at: str) -> None:
    mutant = mutated(ssd_tree_scan, old, new, at=at)
    with pytest.raises(AssertionError):
        check_all(mutant)
