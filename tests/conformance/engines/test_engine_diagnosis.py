"""A wrong state is explained at the token where it was lost: near the first wrong token, or between two chunks before it."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.engines.checkpoint import read
from conformance.engines.diagnosis import explained
from conformance.engines.laws import Finding
from conformance.engines.oracle import Oracle
from conformance.engines.protocol import Request
from conformance.engines.small import make
from ssmspec_ref.layers.mixer import MixerState

PROMPT = (42,) * 16 + (31, 16)


@pytest.fixture(scope="module", params=["mamba2", "nemotron_h"])
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Of Mamba-2, and of a family in which an MLP is a block of its own, without a state."""
    return Oracle(read(make(request.param, tmp_path_factory.mktemp("small") / request.param)))


def lost(oracle: Oracle, at: int) -> Finding:
    """The log-probability of a run whose recurrent states were set to 0 after so many tokens."""
    kept = oracle.states(oracle.forward(PROMPT[:at]), at)
    states = [replace(state, S=0 * state.S) if isinstance(state, MixerState) else state for state in kept]
    logits = oracle.forward(PROMPT[at:], states, at).logits[-1]
    token = int(logits.argmax())
    came, right = (float(x[token] - np.logaddexp.reduce(x)) for x in (logits, oracle.forward(PROMPT).logits[-1]))
    assert abs(came - right) > 1e-3
    return Finding("", Request(ids=PROMPT, most=1), 0, right, came, abs(came - right), 1e-4, answer=(token,))


@pytest.mark.parametrize(
    ("at", "chunk", "why"),
    [
        (15, None, "explained by a state that was not kept"),
        (8, 8, "explained by a state that was not kept"),
        (8, None, "no known mistake explains it"),
        (9, 8, "no known mistake explains it"),
    ],
)
def test_a_lost_state_is_explained_where_it_was_lost(oracle: Oracle, at: int, chunk: int | None, why: str) -> None:
    assert explained(oracle, lost(oracle, at), [], chunk) == why


def test_tokens_of_the_right_model_are_explained_by_no_mistake(oracle: Oracle) -> None:
    """Of an answer that goes on behind its end, and of one that the plain run is wrong about."""
    ids = list(PROMPT)
    for _ in range(3):
        ids.append(int(oracle.forward(tuple(ids)).logits[-1].argmax()))
    own = tuple(ids[len(PROMPT) :])
    request = Request(ids=PROMPT, most=3)
    assert explained(oracle, Finding("", request, 0, None, own[0], answer=own), []) == ""
    assert explained(oracle, Finding("", request, 0, own[0] + 1, own[0], answer=own), []) == "no known mistake explains it"
