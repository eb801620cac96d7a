"""A whole engine with its own weights: its speculative output must equal its plain output, token by token.

`generate(prompts, count, speculate) -> tokens` is called twice with the same prompts. The oracle is the engine without
speculation, so the model itself is not tested. Prompts repeat themselves, so that drafters find drafts, and use only tokens
below 64. Sizes: b prompts of t tokens, j tokens generated after each.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract

from ..cases import Case
from ..judge.draw import Draw
from .specification import Arguments, Came, Expected, Specification

TOKENS = 64


def draw_prompts(case: Case, contract: NumericContract) -> Arguments:
    """Prompts with repeated motifs, of another length in each row."""
    draw = Draw(case, contract)
    rows, tokens, count = draw.shape("b t j")
    rng = draw.rng("prompts")
    motifs = [rng.integers(1, TOKENS, 2 + (row % 4)) for row in range(rows)]
    repeated = np.stack([np.resize(motif, tokens) for motif in motifs])
    other = rng.integers(1, TOKENS, repeated.shape)
    odd = rng.random(repeated.shape) < {"repeated": 0.1, "random": 1.0}[case.family]
    return np.where(odd, other, repeated), count


def run(capability: Capability, arguments: Arguments) -> Came:
    """Call the engine plainly, then speculatively."""
    prompts, count = arguments
    plain = capability.run(prompts, count, False)
    return Came((_numbers(capability.run(prompts, count, True)),), plain)


def expect(arguments: Arguments, contract: NumericContract, used: Any) -> list[Expected]:
    """The engine's own tokens without speculation; nothing before its first call."""
    prompts, count = arguments
    plain = _numbers(used)
    if not isinstance(plain, np.ndarray) or plain is used or plain.shape != (len(prompts), count):
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
