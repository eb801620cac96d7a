"""A tiny language model: embedding, blocks of a layer and optionally an MLP, a norm, a head.

x_0 = embedding[token]                        (1)
x   = x + layer(rms(x))                       (2)
x   = x + mlp(rms(x)) if the block has one     (3)
logits = head(rms(x))                         (4)

The state of a batch is a tuple with one entry per block: the window and state of a recurrent layer, or the keys and
values of an attention layer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ..attention import KVState
from ..attention import layer as attention_layer
from ..attention.layer import AttentionLayer
from ..errors import ParameterError
from ..functions import silu
from ..layers import layer as recurrent
from ..layers import mixer
from ..layers.layer import RecurrentLayer
from ..layers.linear import Linear
from ..layers.mixer import MixerState
from ..layers.norm import Norm, rms
from ..records import Record
from ..shapes import Embedding, Logits, Mask, Residual, Tokens

Layer: TypeAlias = RecurrentLayer | AttentionLayer
LayerState: TypeAlias = MixerState | KVState
ModelState: TypeAlias = tuple[LayerState, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class MLP(Record):
    """down(silu(gate x) up x)."""

    gate: Linear
    up: Linear
    down: Linear

    def apply(self, x: Residual) -> Residual:
        return self.down.apply(silu(self.gate.apply(x)) * self.up.apply(x))


@dataclass(frozen=True)
class Block(Record):
    """A layer with its norm, and optionally an MLP with its norm."""

    norm: Norm
    layer: Layer
    mlp_norm: Norm | None = None
    mlp: MLP | None = None


@dataclass(frozen=True)
class Model(Record):
    """All parameters of a language model."""

    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear

    @property
    def vocabulary(self) -> int:
        return int(self.embedding.shape[0])


def new_state(model: Model, rows: int) -> ModelState:
    """The initial state of `rows` sequences."""
    layers = (block.layer for block in model.blocks)
    return tuple(
        attention_layer.new_state(layer, rows) if isinstance(layer, AttentionLayer) else mixer.new_state(layer.mixer, rows)
        for layer in layers
    )


def through(
    tokens: Tokens, model: Model, run: Callable[[int, Layer, Residual], tuple[Residual, T]]
) -> tuple[Logits, tuple[T, ...]]:
    """Run a window through all blocks, (1) to (4). `run` computes layer i; its second results are collected and returned.

    Raises: ParameterError for a token outside the vocabulary.
    """
    bad = tokens[(tokens < 0) | (tokens >= model.vocabulary)]
    if bad.size:
        raise ParameterError(f"there is a token {int(bad[0])}, but the vocabulary is 0 to {model.vocabulary - 1}")
    x = model.embedding[tokens]  # (1)
    kept = []
    for i, block in enumerate(model.blocks):
        out, after = run(i, block.layer, rms(x, block.norm))
        x = x + out  # (2)
        if block.mlp is not None and block.mlp_norm is not None:
            x = x + block.mlp.apply(rms(x, block.mlp_norm))  # (3)
        kept.append(after)
    return model.head.apply(rms(x, model.norm)), tuple(kept)  # (4)


def scan(state: ModelState, tokens: Tokens, model: Model, live: Mask | None = None) -> tuple[Logits, ModelState]:
    """Advance the model by every live token: its logits after each, and the state.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """

    def run(i: int, layer: Layer, u: Residual) -> tuple[Residual, LayerState]:
        before = state[i]
        if isinstance(layer, AttentionLayer):
            return attention_layer.scan(before, u, layer, live)  # type: ignore[arg-type]
        return recurrent.scan(before, u, layer, live)  # type: ignore[arg-type]

    return through(tokens, model, run)
