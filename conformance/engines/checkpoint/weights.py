"""The weights of a language model, as the oracle takes them."""

from dataclasses import dataclass

from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.shapes import Array


@dataclass(frozen=True)
class Attention:
    """Grouped-query attention, with norms of q and k and a gate in families that have them (Qwen3.5)."""

    params: AttentionParams
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    heads: int
    groups: int
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    gated: bool = False


@dataclass(frozen=True)
class MLP:
    """factor down(silu(gate_factor gate x) up x), or down(relu(up x)^2) without a gate (Nemotron-H)."""

    up: Linear
    down: Linear
    gate: Linear | None = None
    gate_factor: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True)
class Block:
    """A layer and an MLP, each on its norm; `scale_in` multiplies the layer's input, `factor` its output. The layer of a
    block that is `beside` the one before reads the stream that that one has read (Falcon-H1)."""

    norm: Norm
    layer: RecurrentLayer | Attention | LatentLayer | MLP
    mlp_norm: Norm | None = None
    mlp: MLP | None = None
    factor: float = 1.0
    scale_in: float = 1.0
    beside: bool = False


@dataclass(frozen=True)
class Weights:
    """The weights of a whole language model; `eos` are the tokens that end a text. Factors multiply embedding and logits."""

    family: str
    embedding: Array
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear
    eos: tuple[int, ...] = ()
    embedding_factor: float = 1.0
    head_factor: float = 1.0

    @property
    def vocabulary(self) -> int:
        return len(self.embedding)
