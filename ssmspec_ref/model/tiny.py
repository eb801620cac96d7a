"""Random parameters of tiny models, from a seed: every option of a published layer, in sizes that differ.

kind          blocks
mamba1        two Mamba-1 layers, one with the norms of dt, B and C
mamba2        two Mamba-2 layers: 1 < groups < heads, gate first; D per channel, plain gate, dt limits
delta         Gated DeltaNet with negative eigenvalues, Kimi Delta Attention
kda           two layers of Kimi Delta Attention, one with a bounded gate
shortconv     two short convolutions, one with biases
mamba3        two Mamba-3 layers: SISO, MIMO of rank 2
hybrid        Mamba-2, attention, Mamba-2
delta_hybrid  Gated DeltaNet, attention, Kimi Delta Attention
attention     two attention layers, one with partial rotary, one without positions
"""

import numpy as np

from ..layers.recurrences import RECURRENCES
from ..registry import Derived
from . import MLP, Block, Model, tiny_layers
from .tiny_layers import CHANNELS, Make, linear, norm

ATTENTION: tuple[Make, Make] = (lambda r: tiny_layers.attention(r, True), lambda r: tiny_layers.attention(r, False))


def kinds() -> dict[str, tuple[Make, ...]]:
    """The layers of each kind of model: one recurrence alone, or combined with attention."""
    alone = {recurrence.model: recurrence.tiny for recurrence in RECURRENCES.values()}
    (first, second), (one, other) = alone["mamba2"], alone["delta"]
    kda = other, lambda r: tiny_layers.delta(r, True, lower_bound=-2.0)
    mixed = {"hybrid": (first, ATTENTION[0], second), "delta_hybrid": (one, ATTENTION[0], other)}
    return {**alone, "kda": kda, **mixed, "attention": ATTENTION}


KINDS = Derived(kinds)


def model(kind: str, seed: int, vocabulary: int = 11) -> Model:
    """A model of one kind with random parameters; the second block has an MLP."""
    rng = np.random.default_rng(seed)
    blocks = []
    for i, make in enumerate(KINDS[kind]):
        layer = make(rng)
        wide = 2 * CHANNELS
        mlp = MLP(linear(rng, wide, CHANNELS), linear(rng, wide, CHANNELS), linear(rng, CHANNELS, wide))
        blocks.append(Block(norm(rng, CHANNELS), layer, *((norm(rng, CHANNELS), mlp) if i == 1 else (None, None))))
    embedding = rng.normal(0, 0.3, (vocabulary, CHANNELS))
    return Model(embedding, tuple(blocks), norm(rng, CHANNELS), linear(rng, vocabulary, CHANNELS))
