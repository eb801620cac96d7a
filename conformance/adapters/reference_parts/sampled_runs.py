"""Generation by speculative sampling over all rows at once: chains of drafts, the ratio rule, the residual, the bonus token.

accept a draft x with probability min(1, p(x) / q(x)); after the first rejection emit from norm((p - q)+), after the last
acceptance from p. Source: arXiv:2211.17192, algorithm 1.
"""

import numpy as np

from ssmspec_ref.contract import FLOAT64, Capability, Subject
from ssmspec_ref.shapes import Array

Generated = tuple[Array, int, int]


class Sampler:
    """The parts of one generation; `rng` is the only source of numbers."""

    def __init__(self, p: Array, q: Array, seed: int) -> None:
        self.p, self.q, self.rng = p, q, np.random.default_rng(seed)

    def uniform(self, rows: int) -> Array:
        return self.rng.random(rows)

    def drawn(self, law: Array) -> Array:
        """A token of each row's law, by the inverse of its sums."""
        below = self.uniform(len(law))[:, None] * law.sum(axis=1, keepdims=True) >= np.cumsum(law, axis=1)
        last = law.shape[1] - 1 - (law[:, ::-1] > 0).argmax(axis=1)
        return np.minimum(below.sum(axis=1), last)

    def draft(self, last: Array) -> Array:
        return self.drawn(self.q[last])

    def accepts(self, last: Array, token: Array) -> Array:
        return self.uniform(len(last)) * self.q[last, token] < self.p[last, token]

    def after_rejection(self, last: Array) -> Array:
        left = np.maximum(self.p[last] - self.q[last], 0.0)
        return self.drawn(np.where(left.sum(axis=1, keepdims=True) > 0, left, self.p[last]))

    def bonus(self, chain: list[Array]) -> Array:
        return self.drawn(self.p[chain[-1]])

    def window(self, last: Array, drafts: int) -> tuple[Array, Array]:
        """What each row emits, padded with -1, and how many drafts it accepted."""
        chain = [last]
        for _ in range(drafts):
            chain.append(self.draft(chain[-1]))
        emitted, alive = np.full((len(last), drafts + 1), -1), np.ones(len(last), dtype=bool)
        for t in range(drafts):
            accepted = alive & self.accepts(chain[t], chain[t + 1])
            emitted[:, t] = np.where(accepted, chain[t + 1], np.where(alive, self.after_rejection(chain[t]), -1))
            alive = accepted
        emitted[:, drafts] = np.where(alive, self.bonus(chain), -1)
        return emitted, (emitted >= 0).sum(axis=1) - 1

    def generate(self, roots: Array, count: int, drafts: int) -> Generated:
        tokens, held, last = np.full((len(roots), count), -1), np.zeros(len(roots), dtype=np.int64), roots.copy()
        proposed = accepted = 0
        while len(at := np.flatnonzero(held < count)):
            emitted, taken = self.window(last[at], drafts)
            proposed, accepted = proposed + drafts * len(at), accepted + int(taken.sum())
            for column in emitted.T:
                new = (column >= 0) & (held[at] < count)
                tokens[at[new], held[at[new]]] = column[new]
                last[at[new]] = column[new]
                held[at[new]] += 1
        return tokens, proposed, accepted


def sampled(p: Array, q: Array, roots: Array, count: int, drafts: int, seed: int) -> Generated:
    return Sampler(p, q, seed).generate(roots, count, drafts)


def subject() -> Subject:
    return Subject(
        "sampled runs", {"generate.sampled": Capability(sampled, FLOAT64)}, absent={"": "another part of the reference"}
    )
