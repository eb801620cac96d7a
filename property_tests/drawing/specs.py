"""Parameters of models: every kind of layer alone and with another, every option, gentle to hard decay, large states."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from ssmspec_ref.contract import Limits

from .models import LAYERS, Spec


@dataclass(frozen=True)
class Sizes:
    """How large examples may be. Units: `cache` and `window` are tokens, `seeds` a number of seeds, `layers` of blocks.

    `options` is the most options that may differ from a plain layer's.
    """

    slots: int = 3
    window: int = 5
    cache: int = 16
    seeds: int = 2
    layers: int = 2
    options: int = 2
    vocabulary: int = 4


OPTIONS: dict[str, tuple[Any, ...]] = {
    "decay": ("gentle", "normal", "hard"),
    "w": (4, 2, 3, 5),
    "size": (1.0, 4.0),
    "g": (1, 2),
    "h": (2, 1, 3),
    "n": (5, 1, 8, 67),
    "p": (3, 1, 4),
    "d": (5, 2, 9),
    "bias": (False, True),
    "conv_bias": (True, False),
    "D": ("head", "channel", "none"),
    "norm": ("first", "last", ""),
    "limit": ((0.0, float("inf")), (0.01, 0.5)),
    "multipliers": (False, True),
    "widened": (False, True),
    "mlp": (False, True),
    "rotary": (True, False),
    "rank": (0, 2),
    "bound": (None, -5.0, -1.0),
}
"""Values of each option; the first is a plain layer's."""


@st.composite
def specs(draw: st.DrawFn, sizes: Sizes = Sizes(), *limits: Limits) -> Spec:
    """A model that satisfies every one of the limits."""
    kinds = [kind for kind in LAYERS if all(kind in limit.options.get("kind", LAYERS) for limit in limits)]
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=sizes.layers))
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=sizes.options, unique=True))
    options = {name: draw(st.sampled_from(OPTIONS[name])) for name in names}
    seed = draw(st.integers(0, sizes.seeds - 1))
    return Spec(tuple(chosen), seed, sizes.vocabulary, tuple(sorted(options.items())))
