"""Rejection sampling on a chain: the emitted tokens have exactly the target's distribution.

accept x_t with probability min(1, p_t(x_t) / q_t(x_t))            (1)
first rejection: emit from p' = norm((p_t - q_t)+)                 (2)
none: emit from p_K, the target after the last draft (the bonus)   (3)

x_t must have been drawn from the q_t that is given, after temperature, top-k, top-p and penalties. A token with q_t(x_t) = 0
cannot have been drawn, so it is skipped and the window ends with a token from p_t (4).

Source: arXiv:2211.17192, algorithm 1; Mamba Drafters, algorithm 1, adding the normalisation that it omits in (2).
"""

from collections.abc import Sequence

from .dice import Dice
from .distribution import Distributions, acceptance, check_tokens, distributions, residual
from .emitted import Emitted


def rejection(draft: Sequence[int], p_target: Distributions, q_draft: Distributions, dice: Dice) -> Emitted:
    """Accept a prefix of a chain and emit one more token: equations (1) to (4) of the module.

    `p_target[t]` is the target's distribution after token t of the window, with the root at 0; `q_draft[t]` is the one that
    `draft[t]` was drawn from. `draft[t]` is node t + 1, and its coin decides (1); the last token is picked at the last
    accepted node.

    Raises: ProbabilityError, PrecisionError, ShapeMismatch, ParameterError (a token outside the vocabulary).
    Source: as the module.
    """
    p_rows = distributions("p_target", p_target, len(draft) + 1)
    q_rows = distributions("q_draft", q_draft, len(draft), len(p_rows[0]))
    check_tokens("draft", draft, len(p_rows[0]))
    count, p_last = len(draft), p_rows[-1]  # (3)
    for t, (x, p, q) in enumerate(zip(draft, p_rows, q_rows, strict=False)):
        if q[x] == 0:
            count, p_last = t, p  # (4)
            break
        if not dice.bern(acceptance(p[x], q[x]), t + 1):  # (1)
            count, p_last = t, residual(p, q)  # (2)
            break
    return Emitted((*map(int, draft[:count]), dice.pick(p_last, count)), tuple(range(count + 1)))
