"""An attention layer, residual stream in and out: `attention` between its projections."""

from dataclasses import dataclass

from .. import attention
from ..checks import checked
from ..errors import ShapeMismatch
from ..layers.linear import Linear
from ..records import Record, masked
from ..shapes import Mask, Query, Residual
from . import AttentionParams, AttentionWindow, KVState


@dataclass(frozen=True)
class AttentionLayer(Record):
    """Weights that project to queries of `heads` heads, to keys and values of `groups` heads, and back to the residual
    stream.

    Raises: ShapeMismatch unless a query head and a key head have the same number of channels.
    """

    params: AttentionParams
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    out_proj: Linear
    heads: int
    groups: int

    def __post_init__(self) -> None:
        super().__post_init__()
        q, k, v = self.q_proj.outputs / self.heads, self.k_proj.outputs / self.groups, self.v_proj.outputs / self.groups
        if not q == k == v == self.channels:
            raise ShapeMismatch(
                f"a head has {q} channels of the query, {k} of the key and {v} of the value; they must be equal"
            )

    @property
    def channels(self) -> int:
        return self.q_proj.outputs // self.heads

    def inputs(self, u: Residual) -> AttentionWindow:
        """The inputs of attention for each token: queries, keys and values."""
        q, k, v = (
            projection.apply(u).reshape(*u.shape[:2], count, self.channels)
            for projection, count in ((self.q_proj, self.heads), (self.k_proj, self.groups), (self.v_proj, self.groups))
        )
        return AttentionWindow(q, k, v)

    def output(self, y: Query) -> Residual:
        return self.out_proj.apply(y.reshape(*y.shape[:2], -1))


def new_state(layer: AttentionLayer, rows: int) -> KVState:
    """An empty cache for `rows` sequences."""
    return attention.new_state(rows, layer.groups, layer.channels)


@checked
def scan(state: KVState, u: Residual, layer: AttentionLayer, live: Mask | None = None) -> tuple[Residual, KVState]:
    """Advance by every live token of a window; the output of other tokens is 0.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    """
    y, after = attention.scan(state, layer.inputs(u), layer.params, live)
    out = layer.output(y)
    return (out if live is None else masked(out, live)), after
