"""Small language models from a short description: Hypothesis draws the structure, a seeded generator the tensors.

Every norm has eps = 1, so that its derivative is at most 1 for inputs of any size: the running error bounds stay below
1e-2 of the logits through two layers in fp32; with eps = 1e-5 they grow to 1e1.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.model import Block, Model
from ssmspec_ref.registry import Derived

from ..recurrences import RECURRENCES
from .maker import WIDTH, Maker

LAYERS = Derived(
    lambda: (
        {name: make for kind in RECURRENCES.values() for name, make in kind.layers.items()} | {"attention": Maker.attention}
    )
)
"""The function that makes each kind of layer."""


@dataclass(frozen=True)
class Spec:
    """The description of a model. `kinds` gives the layer of each block; `options` what differs from a plain layer.

    decay    gentle, normal or hard     size     scale of what is projected: large states
    w        taps of the convolution    n, p, d  state, head channels, inner channels       g, h   groups (key heads), heads
    bias, D, norm ("", first, last), limit, act, widened, mlp, rotary
    rank, bound   of the projections and of the decay of Kimi Delta Attention
    """

    kinds: tuple[str, ...] = ("mamba2",)
    seed: int = 0
    vocabulary: int = 4
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, words: dict[str, Any]) -> "Spec":
        """From its JSON form."""
        held = {name: tuple(value) if isinstance(value, list) else value for name, value in words.get("options", {}).items()}
        options = tuple(sorted(held.items()))
        return cls(tuple(words["kinds"]), words["seed"], words.get("vocabulary", 4), options)

    def words(self) -> dict[str, Any]:
        return {**asdict(self), "kinds": list(self.kinds), "options": dict(self.options)}


@lru_cache(maxsize=256)
def build(spec: Spec) -> Model:
    """The model of a spec."""
    maker = Maker(np.random.default_rng(spec.seed), dict(spec.options))
    blocks = []
    for i, kind in enumerate(spec.kinds):
        behind = (maker.norm(), maker.mlp()) if maker.given("mlp", False) and i == 0 else (None, None)
        blocks.append(Block(maker.norm(), LAYERS[kind](maker), *behind))
    embedding = maker.normal(spec.vocabulary, WIDTH)
    return Model(embedding, tuple(blocks), maker.norm(), Linear(maker.normal(spec.vocabulary, WIDTH, scale=WIDTH**-0.5)))
