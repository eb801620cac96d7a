"""A whole engine with its own weights: its speculative output must equal its plain output, token by token.

`generate(prompts, count, speculate) -> tokens` is called twice with the same prompts. The oracle is the engine without
speculation, so the model itself is not tested. Prompts repeat themselves, so that drafters find drafts, and use only tokens
below 64. Sizes: b prompts of t tokens, j tokens generated after each.

An engine that rejects every draft is lossless too, and shows nothing. So `generate` may return `tokens, proposed, accepted`:
the drafts of this call, each an integer or an integer array (b). `report.activity` reads the sums.
"""

from typing import Any

import numpy as np

from ssmspec_ref.contract import Capability, NumericContract

from ..cases import Case
from ..errors import WrongCounts
from ..judge.draw import Draw
from .called import Arguments, Came
from .expected import Expected
from .specification import Specification
from .tables import sizes_of

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
    """Call the engine plainly, then speculatively. Raises: WrongCounts."""
    prompts, count = arguments
    plain, none = counted(capability.run(prompts, count, False))
    if none and none[0]:
        raise WrongCounts(f"with speculate=False it proposed {none[0]} drafts; decode plainly there, or nothing is compared")
    tokens, drafts = counted(capability.run(prompts, count, True))
    return Came((_numbers(tokens),), plain, drafts)


def counted(came: Any) -> tuple[Any, tuple[int, int] | None]:
    """The tokens, and the sums of the drafts proposed and accepted, if they are returned. Raises: WrongCounts."""
    if not isinstance(came, tuple):
        return came, None
    if len(came) != 3:
        raise WrongCounts(f"it returned a tuple of {len(came)}; return tokens, or tokens, proposed, accepted")
    found = [np.asarray(count) for count in came[1:]]
    if any(count.dtype.kind not in "iu" for count in found):
        raise WrongCounts(f"proposed and accepted are {found[0].dtype} and {found[1].dtype}; return integers")
    if found[0].shape != found[1].shape:
        raise WrongCounts(
            f"proposed is {found[0].shape} and accepted {found[1].shape}; return both for each prompt, or in all"
        )
    proposed, accepted = (int(count.sum()) for count in found)
    if (found[1] < 0).any() or (found[1] > found[0]).any():
        raise WrongCounts(
            f"it accepted {accepted} of {proposed} drafts; count what was proposed, and what of it was accepted"
        )
    return came[0], (proposed, accepted)


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
        rows=sizes_of("b1", "t2", "j1", "b5,t33", "b2,j96"),
        options={},
        families=("repeated", "random"),
        sources={"": "arXiv:2211.17192, section 2"},
        draw=draw_prompts,
        expect=expect,
        run=run,
    ),
)
