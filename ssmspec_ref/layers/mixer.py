"""The part of a recurrent layer that backtracking acts on: a causal convolution, then a recurrence.

    c = conv(M, pre)         advances the window M of the convolution     (1)
    r = project(c, gates)    the recurrence's inputs for each token       (2)
    y = recurrence(S, r)     advances the state S                         (3)

Rejecting a draft must undo exactly M and S. The projections into `pre` and `gates`, the gated norm and the output projection
are token-wise and need no undoing; they are in `layer.py`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy import einsum, repeat

from .. import conv, delta, selective, ssd, tree
from ..checks import checked
from ..conv import ConvParams
from ..conv import tree as conv_tree
from ..delta import DeltaParams, DeltaWindow
from ..delta import buffered as delta_buffered
from ..delta import tree as delta_tree
from ..errors import ShapeMismatch
from ..records import Record
from ..selective import SelectiveParams, SelectiveWindow
from ..selective import buffered as selective_buffered
from ..selective import tree as selective_tree
from ..shapes import (
    Ancestors,
    Array,
    Channels,
    ConvState,
    DeltaState,
    FlatState,
    Heads,
    Held,
    InnerProjection,
    Inners,
    KeyGates,
    Mask,
    Parents,
    PerHeads,
    State,
    StepProjection,
)
from ..ssd import SSDParams, SSDWindow
from ..ssd import buffered as ssd_buffered
from ..ssd import tree as ssd_tree
from .norm import Norm, rms

RecurrenceState: TypeAlias = State | DeltaState | FlatState
RecurrenceWindow: TypeAlias = Record


class Recurrence(Protocol):
    """The interface of a recurrence module: `ssd`, `delta`, `selective`."""

    def states(self, S: Array, window: Any, params: Any, live: Mask | None = None) -> tuple[Array, Array]: ...

    def scan(self, S: Array, window: Any, params: Any, live: Mask | None = None) -> tuple[Array, Array]: ...


class TreeScan(Protocol):
    """The interface of a tree scan module: `ssd_tree`, `delta_tree`, `selective_tree`."""

    def scan(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array: ...


class Buffered(Protocol):
    """The interface of a replay buffer module: `ssd_buffered`, `delta_buffered`, `selective_buffered`."""

    def entries(self, window: Any, params: Any) -> Any: ...

    def fold(self, S_0: Array, history: Any, held: Held, params: Any) -> Array: ...

    def output_only(
        self, S_0: Array, history: Any, held: Held, window: Any, params: Any, live: Mask
    ) -> tuple[Array, Any]: ...

    def state_and_output(
        self, S_0: Array, history: Any, held: Held, window: Any, params: Any, live: Mask
    ) -> tuple[Array, Any]: ...


@dataclass(frozen=True)
class MixerState(Record):
    """Everything that a recurrent layer stores for a sequence: the window of the convolution and the state."""

    M: ConvState
    S: RecurrenceState


@dataclass(frozen=True)
class SSDGates(Record):
    """Inputs of a Mamba-2 layer that bypass the convolution: raw dt, and the gate z if the kernel applies it."""

    dt: PerHeads
    z: Heads | None = None


@dataclass(frozen=True)
class DeltaGates(Record):
    """Inputs of a delta-rule layer that bypass the convolution: the log decay g and beta (`delta.gates`)."""

    g: PerHeads | KeyGates
    beta: PerHeads


@dataclass(frozen=True)
class SelectiveGates(Record):
    """Inputs of a Mamba-1 layer that bypass the convolution: the gate z; dt, B and C come from the convolution."""

    z: Inners | None = None


@dataclass(frozen=True)
class MixerInputs(Record):
    """The inputs of a recurrent layer for a window of tokens: those of the convolution, and the rest."""

    pre: Channels
    gates: Record


@dataclass(frozen=True)
class Mixer(Record):
    """A layer between its projections. Each kind has the name of its operations, and the modules of its recurrence, its tree
    scan and its replay buffer.
    """

    conv: ConvParams
    params: Any
    kind: ClassVar[str]
    recurrence: ClassVar[Recurrence]
    tree: ClassVar[TreeScan]
    buffered: ClassVar[Buffered]

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The axes of S after the rows."""
        raise NotImplementedError

    def project(self, c: Channels, gates: Any) -> Any:
        """The recurrence's inputs, from the convolution's outputs and the gates."""
        raise NotImplementedError


@dataclass(frozen=True)
class SSDMixer(Mixer):
    """Mamba-2: the convolution runs over x | B | C.

    Smaller `x_groups` and `B_groups` than the layer's heads and groups are MambaInLlama's: x and B leave the convolution with
    fewer heads, like the values and keys of grouped attention, and are repeated after it.
    """

    params: SSDParams
    channels: int  # p, of one head
    state: int  # n
    groups: int  # of C; of B unless B_groups says otherwise
    x_groups: int | None = None
    B_groups: int | None = None
    kind: ClassVar[str] = "ssd"
    recurrence: ClassVar[Recurrence] = ssd
    tree: ClassVar[TreeScan] = ssd_tree
    buffered: ClassVar[Buffered] = ssd_buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.params.A.shape[0], self.channels, self.state

    def project(self, c: Channels, gates: SSDGates) -> SSDWindow:
        """Split x | B | C and repeat x and B for all heads and groups.

        Source: arXiv:2405.21060, section 7; MambaInLlama (repeat of x and B after the convolution).
        """
        heads = self.params.A.shape[0]
        xs, Bs = self.x_groups or heads, self.B_groups or self.groups
        x, B, C = _cut(c, [(xs, self.channels), (Bs, self.state), (self.groups, self.state)])
        x, B = repeat(x, heads // xs, axis=2), repeat(B, self.groups // Bs, axis=2)
        return SSDWindow(x, gates.dt, B, C, gates.z)


@dataclass(frozen=True)
class DeltaMixer(Mixer):
    """Gated DeltaNet and Kimi Delta Attention: the convolution runs over q | k | v."""

    params: DeltaParams
    key_heads: int
    value_heads: int
    key_channels: int
    value_channels: int
    kind: ClassVar[str] = "delta"
    recurrence: ClassVar[Recurrence] = delta
    tree: ClassVar[TreeScan] = delta_tree
    buffered: ClassVar[Buffered] = delta_buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.value_heads, self.key_channels, self.value_channels

    def project(self, c: Channels, gates: DeltaGates) -> DeltaWindow:
        """Split q | k | v. Source: arXiv:2412.06464, figure 1."""
        keys, values = (self.key_heads, self.key_channels), (self.value_heads, self.value_channels)
        q, k, v = _cut(c, [keys, keys, values])
        return DeltaWindow(q, k, v, gates.g, gates.beta)


@dataclass(frozen=True)
class SelectiveMixer(Mixer):
    """Mamba-1: the convolution runs over x, and dt, B, C are projections of its output.

    FalconMamba and Jamba put an RMS norm on each of dt (at its rank), B and C.
    """

    params: SelectiveParams
    x_proj: InnerProjection  # to r | B | C, r the rank of dt
    dt_proj: StepProjection
    dt_norm: Norm | None = None
    B_norm: Norm | None = None
    C_norm: Norm | None = None
    kind: ClassVar[str] = "selective"
    recurrence: ClassVar[Recurrence] = selective
    tree: ClassVar[TreeScan] = selective_tree
    buffered: ClassVar[Buffered] = selective_buffered

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.params.A.shape

    def project(self, c: Channels, gates: SelectiveGates) -> SelectiveWindow:
        """dt | B | C = x_proj x, each normed if the layer does so, then dt = dt_proj dt.

        Source: arXiv:2312.00752, section 3.6; FalconMamba and Jamba (norms of dt, B and C).
        """
        rank, n = self.dt_proj.shape[1], self.params.A.shape[1]
        parts = np.split(einsum("btd, od -> bto", c, self.x_proj), [rank, rank + n], axis=2)
        norms = (self.dt_norm, self.B_norm, self.C_norm)
        r, B, C = (part if norm is None else rms(part, norm) for part, norm in zip(parts, norms, strict=True))
        return SelectiveWindow(c, einsum("btr, dr -> btd", r, self.dt_proj), B, C, gates.z)


def _cut(c: Channels, parts: list[tuple[int, int]]) -> list[Array]:
    sizes = [heads * channels for heads, channels in parts]
    if sum(sizes) != c.shape[2]:
        raise ShapeMismatch(
            f"the convolution has {c.shape[2]} channels, but the layer splits it into {sizes}; these must sum to it"
        )
    pieces = np.split(c, np.cumsum(sizes)[:-1], axis=2)
    return [piece.reshape(c.shape[:2] + part) for piece, part in zip(pieces, parts, strict=True)]


def new_state(mixer: Mixer, rows: int) -> MixerState:
    """The initial state of `rows` sequences: zeros."""
    M = np.zeros((rows, mixer.conv.weight.shape[0], mixer.conv.width))
    return MixerState(M, np.zeros((rows, *mixer.state_shape)))


@checked
def window(M: ConvState, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None) -> tuple[RecurrenceWindow, ConvState]:
    """The recurrence's inputs for a window, (1) and (2), and the window of the convolution after it.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    every = np.ones(inputs.pre.shape[:2], dtype=bool) if live is None else live
    c, M_next = conv.scan_masked(M, inputs.pre, every, mixer.conv)  # (1)
    return mixer.project(c, inputs.gates), M_next  # (2)


@checked
def scan(state: MixerState, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None) -> tuple[Array, MixerState]:
    """Plain decoding: advance a layer by every live token. Every backtracking path must give the same result.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: arXiv:2405.21060, section 7; arXiv:2412.06464, section 3.4; arXiv:2312.00752, section 3.4.
    """
    r, M_next = window(state.M, inputs, mixer, live)  # (1) (2)
    y, S_next = mixer.recurrence.scan(state.S, r, mixer.params, live)  # (3)
    return y, MixerState(M_next, S_next)


def verify_window(
    state: MixerState, inputs: MixerInputs, mixer: Mixer, live: Mask, parents: Parents | None = None
) -> tuple[Array, RecurrenceWindow]:
    """The outputs at every token of a chain or node of a tree, and the recurrence's inputs; no state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological.
    Source: STree, section 3, for trees.
    """
    if parents is None:
        r, _ = window(state.M, inputs, mixer, live)
        y, _ = mixer.recurrence.scan(state.S, r, mixer.params, live)
        return y, r
    ancestors = tree.ancestors(np.where(live, parents, tree.PADDING))
    c = conv_tree.scan_ancestors(state.M, inputs.pre, ancestors, mixer.conv)
    r = mixer.project(c, inputs.gates)
    return mixer.tree.scan(state.S, r, ancestors, mixer.params), r
