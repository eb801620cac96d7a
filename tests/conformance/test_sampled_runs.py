"""Drafting and acceptance together: what is right passes, planted faults fail, and what cannot be counted is told."""

from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.sampled_runs import sampled, subject
from conformance.faults.sampled import runs
from conformance.suite.tokens.sampled_runs import apart
from ssmspec_ref.contract import FLOAT64, Capability, NumericContract, Verdict
from ssmspec_ref.shapes import Array

from .judging import fails, judged, passes

PLAIN = "generate.sampled/b6,i3,j3,t3/plain/normal/s0"
SHORT = "generate.sampled/b6,i3,j3,t1/plain/normal/s0"
RIGHT = subject().capabilities["generate.sampled"]


@pytest.mark.parametrize(
    "identity", [PLAIN, SHORT, PLAIN.replace("plain", "laws=zeros"), PLAIN.replace("plain", "laws=near")]
)
@pytest.mark.parametrize("contract", [FLOAT64, NumericContract()], ids=str)
def test_speculative_sampling_has_the_law_of_plain_decoding(identity: str, contract: NumericContract) -> None:
    found = judged(Capability(sampled, contract), identity)
    passes(found)
    assert found.drafts is not None
    assert 0 < found.drafts[1] < found.drafts[0]


@pytest.mark.parametrize("fault", runs.FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fails(fault: Any) -> None:
    assert Verdict.FAIL in {judged(fault.capability, identity).verdict for identity in (PLAIN, SHORT)}


def test_a_token_that_the_target_never_emits_fails_if_it_comes_once() -> None:
    def once(p: Array, q: Array, roots: Array, count: int, drafts: int, seed: int) -> Array:
        tokens, _, _ = sampled(p, q, roots, count, drafts, seed)
        tokens[0, 0] = int(p[roots[0]].argmin())
        return tokens

    fails(judged(once, PLAIN.replace("plain", "laws=zeros")), "bound", "expected 0, got 1")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tokens: tokens[:, 1:], "return an array of integers"),
        (lambda tokens: tokens.astype(float), "return an array of integers"),
        (lambda tokens: tokens + 1, "all must be 0 to 2"),
        (lambda tokens: (tokens, 5, 9), "accepted 9 of 5 drafts"),
    ],
)
def test_what_cannot_be_counted_is_told(spoil: Any, said: str) -> None:
    fails(judged(lambda *given: spoil(sampled(*given)[0]), PLAIN), "error", said)


def test_pairs_of_rows_are_disjoint_and_as_far_apart_as_they_say() -> None:
    for n, (first, second) in enumerate(apart(30)):
        assert np.all(second - first == 1 << n)
        assert len({*first.tolist(), *second.tolist()}) == 2 * len(first)
