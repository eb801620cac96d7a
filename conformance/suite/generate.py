"""A whole engine with weights of its own: what it generates speculatively is what it generates plainly, token by token.

`generate(prompts, count, speculate) -> tokens` is called twice on the same prompts. The oracle is the engine without
speculation, so that nothing is said of its model. Prompts repeat themselves, so that drafters find something to draft, and
hold tokens below 64 only. Sizes: b prompts of t tokens, j tokens generated behind each.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract

from ..cases import Case
from ..draw import Draw
from .specification import Arguments, Came, Expected, Specification

TOKENS = 64


def draw_prompts(case: Case, contract: NumericContract) -> Arguments:
    """Prompts of motifs that come again, each row with one of another length."""
    draw = Draw(case, contract)
    rows, tokens, count = draw.shape("b t j")
    rng = draw.rng("prompts")
    motifs = [rng.integers(1, TOKENS, 2 + (row % 4)) for row in range(rows)]
    repeated = np.stack([np.resize(motif, tokens) for motif in motifs])
    other = rng.integers(1, TOKENS, repeated.shape)
    odd = rng.random(repeated.shape) < {"repeated": 0.1, "random": 1.0}[case.family]
    return np.where(odd, other, repeated), count


def run(capability: Capability, arguments: Arguments) -> Came:
    """Plainly, then speculatively."""
    prompts, count = arguments
    plain = capability.run(prompts, count, False)
    return Came((_numbers(capability.run(prompts, count, True)),), plain)


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """The tokens of the engine itself, without speculation; nothing where it has not spoken yet."""
    prompts, count = arguments
    plain = _numbers(used)
    if not isinstance(plain, np.ndarray) or plain.shape != (len(prompts), count):
        plain = np.full((len(prompts), count), -1.0)
    return [Expected("tokens", "b t", plain, np.zeros_like(plain))]


def _numbers(came: Any) -> Any:
    return came.astype(np.float64) if isinstance(came, np.ndarray) and came.dtype.kind in "iu" else came


SPECIFICATIONS = (
    Specification(
        operation="generate.greedy",
        base={"b": 3, "t": 12, "j": 40},
        rows=({"b": 1}, {"t": 2}, {"j": 1}, {"b": 5, "t": 33}, {"b": 2, "j": 96}),
        options={},
        families=("repeated", "random"),
        sources={"": "arXiv:2211.17192, section 2"},
        draw=draw_prompts,
        expect=expect,
        run=run,
    ),
)
