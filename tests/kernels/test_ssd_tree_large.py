"""Large trees of SSD, beside the laws: heads that share a program, and what does not take the kernel."""

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
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import bits, same
from tests.kernels.mutants import mutated
from tests.kernels.plot import Call
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_subjects import MILD, REST, STRONG, TREE, WIDE
from tests.kernels.tensors import Kept, doubles


def taken(monkeypatch: pytest.MonkeyPatch, call: Call, **options: Any) -> bool:
    """Whether a call takes the kernel."""
    calls: list[Any] = []
    launch = ssd_tree_large.launch_large

    def kept(*args: Any) -> None:
        calls.append(args)
        launch(*args)

    monkeypatch.setattr(ssd_tree_scan, "launch_large", kept)
    call.run(ssd_tree_scan, **options)
    return bool(calls)


def decays(o: Options) -> Array:
    """The largest |G| of each head that the kernel sees."""
    call = TREE.draw(o)
    raw = ssd.window(call).dt + (doubles(call["dt_bias"]) if o.bias else 0.0)
    step = np.clip(np.logaddexp(0.0, raw) if o.softplus else raw, *o.limit)
    G = np.einsum("bij, bjh -> bih", ssd.seen(call).astype(float), step * doubles(call["A"]))
    return np.asarray(np.abs(G).max(axis=(0, 1)))


def test_both_forms_of_the_weights_are_covered() -> None:
    assert decays(STRONG).min() > ssd_tree_large.MILD
    assert decays(MILD).max() < ssd_tree_large.MILD


def check_forms(module: ModuleType) -> None:
    """The bits of a head are the same alone in a program and beside heads of the other form, in fp32."""
    call = TREE.draw(replace(MILD, b=1, h=4))
    call["A"][1::2] *= 4 * ssd_tree_large.MILD
    together, alone = (call.run(module, heads=heads, out=torch.empty(call["x"].shape)) for heads in (4, 1))
    assert torch.equal(together[call.rows], alone[call.rows])


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
    call, other = (TREE.draw(replace(o, h=4, g=1, gentle=True)) for _ in range(2))
    call.run(ssd_tree_scan, heads=4)
    other.run(ssd_tree_scan, heads=heads)
    assert same(bits(call, "out"), bits(other, "out"))


LOST = ("A", "D", "dt")


def check_heads_apart(module: ModuleType, o: Options, large: bool = True, lost: tuple[str, ...] = LOST) -> None:
    """What is no number in head 1, and the outputs of the heads beside it in a program."""
    for name, value in product(lost, (float("nan"), float("inf"))):
        found = []
        for changed in (False, True):
            call = TREE.draw(replace(o, b=2, h=4, g=1, t=33, spare=0))
            if changed:
                {"A": call["A"][1:2], "D": call["D"][1:2], "dt": call["dt"][:, 5, 1]}[name].fill_(value)
            with np.errstate(invalid="ignore"):
                call.run(module, large=large, heads=4 if large else None)
            found.append(call["out"][call.rows])
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
    assert taken(monkeypatch, TREE.draw(small))
    assert not taken(monkeypatch, TREE.draw(replace(small, **changes)), **options)


def test_the_rest_of_more_than_four_heads_is_refused() -> None:
    call = TREE.draw(replace(REST, h=6, g=1))
    kept = Kept(**call.tensors)
    with pytest.raises(ParameterError, match="up to 4 heads"):
        call.run(ssd_tree_scan, heads=6)
    kept.check()
