"""Whether sampled tokens follow the law of the model: for engines whose seeds do not hold under drafts.

With F the cumulative law of the oracle at the temperature, most likely token first, and v uniform on [0, 1],

    u_t = F(x_t - 1) + v p(x_t)                                                    (1)

are independent and uniform if and only if every token follows the law after its own prefix (Rosenblatt). Three samples of n
numbers must be uniform: u itself; the differences, mod 1, of neighbours in one answer, and of the same place in two answers
to one prompt, which lie near 0 where noise is shared. Each is held to the largest distance D from the uniform distribution,

    P(D > e) <= 2 exp(-2 n e^2) = ALARM,   P(missed) <= exp(-2 n (d - e)^2)         (2)

for a law whose u lies d from uniform. With 240 answers of 8 tokens (n = 960) e is 0.087, and d = 0.136 is missed once in 100.
The temperature is high, so that no token is so likely that v hides its noise.
Source: Rosenblatt, Ann. Math. Stat. 23 (1952), for (1); Massart, Ann. Probab. 18 (1990), for (2).
"""

from collections.abc import Sequence

import numpy as np

from ssmspec_ref.shapes import Array

from .laws import Finding, Outcome
from .oracle import Oracle
from .protocol import Answer, Request

ALARM = 1e-6
"""False alarms of one sample."""
TOKENS, TEMPERATURE = 8, 2.0
FEWEST = 100
"""Numbers of the smallest sample; with fewer the law is not judged."""


def requests(count: int, vocabulary: int) -> list[Request]:
    """Two requests of each prompt, one after the other, each with its own seed; prompts repeat, so that n-grams draft."""
    found = []
    for n in range(count):
        k = 1 + 3 * (n // 2 % 8)
        ids = tuple(1 + (k + j) % min(vocabulary - 1, 60) for j in (0, 1, 2)) * 3
        found.append(Request(ids=ids, most=TOKENS, temperature=TEMPERATURE, seed=n + 1))
    return found


def law(oracle: Oracle, asked: Sequence[Request], answers: Sequence[Answer]) -> tuple[Outcome, Finding | None]:
    """(1), (2) of the answers to `requests`; the furthest of the three samples where one is too far."""
    rng = np.random.default_rng(0)
    every = [uniforms(oracle, request, answer, rng) for request, answer in zip(asked, answers, strict=True)]
    slack = max((bound for _, bound in every), default=0.0)
    u = [one for one, _ in every]
    samples = {
        "tokens": np.concatenate([np.zeros(0), *u]),
        "neighbours in an answer": np.concatenate([np.zeros(0), *(one[1::2] - one[0 : len(one) - 1 : 2] for one in u)]) % 1,
        "two answers to one prompt": np.concatenate(
            [np.zeros(0), *(b[: len(a)] - a[: len(b)] for a, b in zip(u[::2], u[1::2], strict=False))]
        )
        % 1,
    }
    if min(map(len, samples.values())) < FEWEST:
        return "not judged", None
    for name, sample in samples.items():
        chance = float(np.sqrt(np.log(2 / ALARM) / (2 * len(sample)))) + slack
        far = distance(sample)
        if not far <= chance:
            return "differs", Finding("sampled law", asked[0], 0, round(chance, 4), round(far, 4), why=name)
    return "passed", None


def uniforms(oracle: Oracle, request: Request, answer: Answer, rng: np.random.Generator) -> tuple[Array, float]:
    """(1) of one answer; and how far u may be moved by the rounding that the engine's type allows."""
    if not answer.ids:
        return np.zeros(0), 0.0
    forward, first = oracle((*request.ids, *answer.ids[:-1])), len(request.ids) - 1
    logits = forward.logits[first:] / request.temperature
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mine = p[np.arange(len(p)), np.array(answer.ids)]
    places = np.arange(p.shape[1])
    before = (p > mine[:, None]) | ((p == mine[:, None]) & (places < np.array(answer.ids)[:, None]))
    bound = float(np.expm1(2 * forward.bound[first:].max() / request.temperature))
    return (p * before).sum(axis=1) + rng.uniform(size=len(p)) * mine, min(1.0, bound)


def distance(sample: Array) -> float:
    """D of (2)."""
    ranked, n = np.sort(sample), len(sample)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - ranked).max(), (ranked - steps[:-1]).max()))
