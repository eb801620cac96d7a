"""The law of sampled tokens: a right sampler passes, and one that shares noise or takes another temperature does not."""

import numpy as np
import pytest

from conformance.engines import sampled
from conformance.engines.checkpoint import read
from conformance.engines.oracle import Oracle
from conformance.engines.protocol import Answer, Request
from conformance.engines.small import make


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(read(make("mamba2", tmp_path_factory.mktemp("small"), num_hidden_layers=1)))


def answer(oracle: Oracle, request: Request, noise: np.ndarray, temperature: float) -> Answer:
    """By the inverse of the cumulative law."""
    forward, ids = oracle.forward(request.ids), list[int]()
    for n, u in enumerate(noise):
        logits = forward.logits[-1] / temperature
        law = np.exp(logits - logits.max())
        ids.append(min(int(np.searchsorted(np.cumsum(law / law.sum()), u)), len(law) - 1))
        if n + 1 < len(noise):
            states = oracle.states(forward, len(request.ids) if not n else 1)
            forward = oracle.forward(ids[-1:], states, len(request.ids) + n)
    return Answer(ids=tuple(ids))


@pytest.mark.parametrize("fault", ["", "another temperature", "one seed", "greedy"])
def test_the_law_of_a_sampler(fault: str, oracle: Oracle) -> None:
    rng, asked = np.random.default_rng(3), sampled.requests(120, 64)
    noise = rng.uniform(size=(len(asked), sampled.TOKENS))
    noise[1::2] = noise[::2] if fault == "one seed" else noise[1::2]
    temperature = {"another temperature": 1.0, "greedy": 1e-3}.get(fault, sampled.TEMPERATURE)
    answers = [answer(oracle, request, u, temperature) for request, u in zip(asked, noise, strict=True)]
    outcome, finding = sampled.law(oracle, asked, answers)
    assert outcome == ("differs" if fault else "passed"), finding
    if fault == "one seed":
        assert finding is not None
        assert finding.why == "two answers to one prompt"


def test_too_few_are_not_judged(oracle: Oracle) -> None:
    asked = sampled.requests(4, 64)
    answers = [Answer(ids=(1,) * sampled.TOKENS)] * 4
    assert sampled.law(oracle, asked, answers) == ("not judged", None)


def test_the_power_that_is_stated() -> None:
    """Of the smallest sample of 240 answers: pairs of neighbours, and of answers."""
    n = 240 * sampled.TOKENS // 2
    e = np.sqrt(np.log(2 / sampled.ALARM) / (2 * n))
    assert f"e is {e:.3f}" in str(sampled.__doc__)
    assert f"d = {e + np.sqrt(np.log(100) / (2 * n)):.3f}" in str(sampled.__doc__)
