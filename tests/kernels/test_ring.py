"""Our kernels over integers mod 2^64: equal to the reference by ==, and structural faults differ, without a bound."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance.judge.verdict import judge
from conformance.ring.judge import cases, judged, oracles
from conformance.suite import find, of_operation
from ssmspec_fast.adapters.kernels import INTERPRETED, Kernels, adapter
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_ref.contract import Capability, NumericContract, Subject, Verdict

from . import device
from .mutants import mutated

pytestmark = pytest.mark.interpreter("runs kernels over the ring, in the interpreter")
NARROW, WIDE = Kernels("cpu", torch.float32, torch.bfloat16), Kernels("cpu", torch.float32, torch.float32)
EACH = 2
"""Cases of an operation, from the tier smoke."""


def judgeable(meaning: bool) -> Iterator[Any]:
    """Every subject with each of its operations that has a meaning in the ring, or none: rotations, and states in codes,
    whose scales are compared. Nothing where kernels are compiled."""
    for subject in () if device.COMPILED else adapter("cpu").subjects:
        for operation, capability in subject.capabilities.items():
            without = operation.startswith("mamba3.") or capability.contract.state_scale is not None
            if operation in oracles() and without != meaning:
                yield pytest.param(subject, operation, id=f"{subject.name}-{operation}")


@pytest.mark.parametrize(("subject", "operation"), list(judgeable(False)))
def test_what_has_no_meaning_in_the_ring_is_not_judged_and_says_why(subject: Subject, operation: str) -> None:
    specification = of_operation(operation)[0]
    capability = subject.capabilities[operation]
    (first, *_) = cases(specification, capability.limits, "smoke")
    found = judged(specification, capability, first, kernels=True)
    assert found.verdict is Verdict.UNKNOWN
    assert "has no rule in the ring" in found.said


@pytest.mark.parametrize(("subject", "operation"), list(judgeable(True)))
def test_a_kernel_is_equal_to_the_reference_without_rounding(subject: Subject, operation: str) -> None:
    specification = of_operation(operation)[0]
    capability = subject.capabilities[operation]
    every = list(cases(specification, capability.limits, "smoke"))
    found = [judged(specification, capability, case, kernels=True) for case in every[::3][:EACH]]
    assert [one.said for one in found if one.verdict is not Verdict.PASS] == []


def test_formats_are_the_identity_so_that_all_have_one_result() -> None:
    specification, case = find("ssd.scan/b2,t3,g2,h4,p3,n6/plain/normal/s0")
    assert INTERPRETED == (("fp32", "bf16"),)
    for kernels in (NARROW, WIDE, Kernels("cpu", torch.bfloat16, torch.bfloat16)):
        found = judged(specification, Capability(kernels.scan(ssd_scan), NumericContract()), case, kernels=True)
        assert found.verdict is Verdict.PASS, found.said


def test_kernels_round_as_before_after_they_ran_over_the_ring() -> None:
    specification, case = find("ssd.scan/b2,t3,g2,h4,p3,n6/plain/normal/s0")
    capability = adapter("cpu").subjects[1].capabilities["ssd.scan"]
    before = capability.run(*specification.draw(case, capability.contract))
    assert judged(specification, capability, case, kernels=True).verdict is Verdict.PASS
    after = capability.run(*specification.draw(case, capability.contract))
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert judge(specification, capability, case).verdict is Verdict.PASS


LAUNCHERS: dict[str, Callable[[Any, Kernels], Callable[..., Any]]] = {
    "ssd.ssd_scan": lambda module, kernels: kernels.scan(module.ssd_scan),
    "ssd.ssd_window": lambda module, kernels: kernels.scan(module.ssd_window),
    "ssd.ssd_tree_scan": lambda module, kernels: kernels.tree(module.ssd_tree_scan),
    "delta.delta_scan": lambda module, kernels: kernels.scan(module.delta_scan),
    "delta.delta_chunked": lambda module, kernels: kernels.scan(module.delta_chunked),
    "delta.delta_tree": lambda module, kernels: kernels.tree(module.delta_tree),
}
MASKED = "ssd.scan_masked/b2,t5,g2,h6,p5,n4/D=channel,z=on,dt_limit=finite/normal/s2"
ROWS = "ssd.scan/b3,t2,g2,h4,p3,n6/plain/normal/s0"
TREE = "ssd.verify_tree/b3,t6,g2,h4,p5,n4/z=on/normal/s0"
BY_HEAD = "delta.scan_masked/b2,t5,g2,h4,k5,v3/scale=given/normal/s2"
DELTA_TREE = "delta.verify_tree/b3,t6,g2,h4,k5,v3/plain/normal/s0"
FAULTS = [
    ("ssd.ssd_scan", WIDE, MASKED, "g = h // HEADS_PER_GROUP", "g = h % HEADS_PER_GROUP", None),
    ("ssd.ssd_scan", WIDE, MASKED, "decay = tl.load(A + h)", "decay = tl.load(A)", None),
    ("ssd.ssd_scan", WIDE, ROWS, "at_x = x + b * stride.x.b", "at_x = x + b * stride.x.t", None),
    ("ssd.ssd_scan", WIDE, ROWS, "if slot >= 0:", "if slot > 0:", None),
    ("ssd.ssd_scan", WIDE, MASKED, "y_t = tl.sum(tl.sum(state * C_t", "y_t = tl.sum(tl.sum(state * B_t", None),
    ("ssd.ssd_scan", WIDE, MASKED, "tl.fma(skip, x_t, y_t)", "tl.fma(skip, x_t * step, y_t)", None),
    ("ssd.ssd_scan", WIDE, MASKED, "tl.where(i == t, values", "tl.where(i == 0, values", None),
    ("ssd.ssd_scan", WIDE, MASKED, "tl.maximum(step, low,", "tl.maximum(step, 0.0,", "step_size"),
    ("ssd.ssd_scan", WIDE, MASKED, "return tl.where(real, step, 0.0)", "return step", "step_size"),
    ("ssd.ssd_window", WIDE, MASKED, "before = i[:, None] >= i[None, :]", "before = i[:, None] > i[None, :]", None),
    ("ssd.ssd_window", WIDE, MASKED, "sees = before & real[:, None] & real[None, :]",
     "sees = real[:, None] & real[None, :]", None),
    ("ssd.ssd_window", WIDE, MASKED, "state = tl.exp(total) * state", "state = state", None),
    ("ssd.ssd_window", WIDE, MASKED, "(step[None, :] * scores)", "(step[:, None] * scores)", None),
    ("ssd.ssd_window", NARROW, MASKED, "h_0 = g * HEADS_PER_GROUP +", "h_0 = g +", "ssd_window_chain_kernel"),
    ("ssd.ssd_window", NARROW, MASKED, "tl.exp(total - G_e) * step", "tl.exp(total - G_e)", "_chain_weights"),
    ("ssd.ssd_window", NARROW, MASKED, "dot_onto(scale * state, weighted, B_left)", "dot_onto(state, weighted, B_left)",
     "ssd_window_chain_kernel"),
    ("ssd.ssd_tree_scan", WIDE, TREE, "G[:, None] - G[None, :]", "G[:, None] - G[:, None]", "_weights_of_head"),
    ("ssd.ssd_tree_scan", WIDE, TREE, "dot_right(before.to(tl.bfloat16), lds)", "tl.cumsum(lds, axis=0)",
     "ssd_window_kernel"),
    ("ssd.ssd_tree_scan", NARROW, TREE, "at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "_load_seen"),
    ("delta.delta_scan", WIDE, BY_HEAD, "both = tl.sum(q * k, axis=0)", "both = tl.sum(q * q, axis=0)", "advance"),
    ("delta.delta_scan", WIDE, BY_HEAD, "(v - a * r_k *", "(v + a * r_k *", "advance"),
    ("delta.delta_scan", WIDE, BY_HEAD, "r_q = scale * tl.rsqrt(", "r_q = tl.rsqrt(", "advance"),
    ("delta.delta_chunked", WIDE, BY_HEAD, "R = rows(v_t, WIDE).to(tl.float32) - read",
     "R = rows(v_t, WIDE).to(tl.float32) + read", None),
    ("delta.delta_chunked", WIDE, BY_HEAD, "to_q *= weight * r_q[:, None]", "to_q *= weight * r_k[:, None]", None),
    ("delta.delta_tree", WIDE, DELTA_TREE, "for i in range(T - 1):", "for i in range(T - 2):", "substituted"),
    ("delta.delta_tree", WIDE, DELTA_TREE, "G = tl.sum(tl.where(sees, g[None, :], 0.0), axis=1)", "G = tl.cumsum(g, axis=0)",
     "cumulated"),
    ("delta.delta_tree", WIDE, DELTA_TREE, "at_anc = ancestors + b * stride_anc.b", "at_anc = ancestors", "_visible"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "kernels", "case", "old", "new", "at"), FAULTS, ids=[f"{fault[0]}: {fault[4].strip()}" for fault in FAULTS]
)
def test_a_planted_structural_fault_differs(
    module: str, kernels: Kernels, case: str, old: str, new: str, at: str | None
) -> None:
    mutant = mutated(importlib.import_module(f"ssmspec_kernels.{module}"), old, new, at=at)
    specification, found = find(case)
    capability = Capability(LAUNCHERS[module](mutant, kernels), NumericContract())
    assert judged(specification, capability, found, kernels=True).verdict is Verdict.FAIL


def test_the_page_says_how_many_are_planted() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "ring.md"
    assert f"{len(FAULTS)} structural faults" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("module", LAUNCHERS)
def test_the_cases_of_the_planted_faults_are_equal_for_the_kernel_as_it_is(module: str) -> None:
    for _, kernels, case in {fault[:3]: None for fault in FAULTS if fault[0] == module}:
        specification, found = find(case)
        run = LAUNCHERS[module](importlib.import_module(f"ssmspec_kernels.{module}"), kernels)
        assert judged(specification, Capability(run, NumericContract()), found, kernels=True).verdict is Verdict.PASS


def test_a_rounding_does_not_show_there() -> None:
    specification, case = find(ROWS)
    module = importlib.import_module("ssmspec_kernels.ssd.ssd_scan")
    mutant = mutated(
        module, "step = raw.to(tl.float32) + bias", "step = (raw + bias).to(tl.bfloat16).to(tl.float32)", at="step_size"
    )
    assert (
        judged(specification, Capability(WIDE.scan(mutant.ssd_scan), NumericContract()), case, kernels=True).verdict
        is Verdict.PASS
    )
