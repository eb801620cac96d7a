"""A recurrent layer as backtracking sees it: a causal convolution, then one of the three recurrences.

    c = conv(M, pre)         the window M of the convolution moves on     (1)
    r = project(c, gates)    what the recurrence reads for each token     (2)
    y = recurrence(S, r)     the state S moves on                         (3)

What must be undone when a draft is rejected is exactly M and S. The projections into `pre` and `gates`, the gated norm and
the projection out work token by token and need no undoing; they are the model's (`model.py`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy import einsum, repeat

from . import (
    conv,
    conv_tree,
    delta,
    delta_buffered,
    delta_tree,
    selective,
    selective_buffered,
    selective_tree,
    ssd,
    ssd_buffered,
    ssd_tree,
    tree,
)
from .checks import checked
from .conv import ConvParams
from .delta import DeltaParams, DeltaWindow
from .errors import ShapeMismatch
from .norm import Norm, rms
from .records import Record
from .selective import SelectiveParams, SelectiveWindow
from .shapes import (
    Ancestors,
    Array,
    Channels,
    ChannelState,
    ConvState,
    DeltaState,
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
from .ssd import SSDParams, SSDWindow

RecurrenceState: TypeAlias = State | DeltaState | ChannelState
RecurrenceWindow: TypeAlias = SSDWindow | DeltaWindow | SelectiveWindow


class Recurrence(Protocol):
    """What a module of a recurrence offers: `ssd`, `delta`, `selective`."""

    def states(self, S: Array, window: Any, params: Any, live: Mask | None = None) -> tuple[Array, Array]: ...

    def scan(self, S: Array, window: Any, params: Any, live: Mask | None = None) -> tuple[Array, Array]: ...


class TreeScan(Protocol):
    """What a module of a tree scan offers: `ssd_tree`, `delta_tree`, `selective_tree`."""

    def scan(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array: ...


class Buffered(Protocol):
    """What a module of a replay buffer offers: `ssd_buffered`, `delta_buffered`, `selective_buffered`."""

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
    """All that a recurrent layer must remember of a sequence: the window of the convolution and the state."""

    M: ConvState
    S: State | DeltaState | ChannelState


@dataclass(frozen=True)
class SSDGates(Record):
    """What a Mamba-2 layer reads beside the convolution: raw dt, and the gate z where the kernel applies it."""

    dt: PerHeads
    z: Heads | None = None


@dataclass(frozen=True)
class DeltaGates(Record):
    """What a delta-rule layer reads beside the convolution: the log decay g and beta (`delta.gates`)."""

    g: PerHeads | KeyGates
    beta: PerHeads


@dataclass(frozen=True)
class SelectiveGates(Record):
    """What a Mamba-1 layer reads beside the convolution: the gate z; dt, B, C come out of the convolution."""

    z: Inners | None = None


@dataclass(frozen=True)
class MixerInputs(Record):
    """A window of tokens as a recurrent layer receives them: the inputs of the convolution, and the rest."""

    pre: Channels
    gates: SSDGates | DeltaGates | SelectiveGates


@dataclass(frozen=True)
class SSDMixer(Record):
    """Mamba-2: the convolution runs over x | B | C.

    `x_groups` and `B_groups` below the layer's heads and groups are MambaInLlama's: x and B leave the convolution with
    fewer heads, as the values and keys of grouped attention do, and are widened after it.
    """

    conv: ConvParams
    params: SSDParams
    channels: int  # p, of one head
    state: int  # n
    groups: int  # of C; of B unless B_groups says otherwise
    x_groups: int | None = None
    B_groups: int | None = None
    recurrence: ClassVar[Recurrence] = ssd
    tree: ClassVar[TreeScan] = ssd_tree
    buffered: ClassVar[Buffered] = ssd_buffered

    def project(self, c: Channels, gates: SSDGates) -> SSDWindow:
        """Cut x | B | C apart and widen x and B to all heads and groups.

        Source: arXiv:2405.21060, section 7; MambaInLlama (repeat of x and B after the convolution).
        """
        heads = self.params.A.shape[0]
        xs, Bs = self.x_groups or heads, self.B_groups or self.groups
        x, B, C = _cut(c, [(xs, self.channels), (Bs, self.state), (self.groups, self.state)])
        x, B = repeat(x, heads // xs, axis=2), repeat(B, self.groups // Bs, axis=2)
        return SSDWindow(x, gates.dt, B, C, gates.z)


@dataclass(frozen=True)
class DeltaMixer(Record):
    """Gated DeltaNet and Kimi Delta Attention: the convolution runs over q | k | v."""

    conv: ConvParams
    params: DeltaParams
    key_heads: int
    value_heads: int
    key_channels: int
    value_channels: int
    recurrence: ClassVar[Recurrence] = delta
    tree: ClassVar[TreeScan] = delta_tree
    buffered: ClassVar[Buffered] = delta_buffered

    def project(self, c: Channels, gates: DeltaGates) -> DeltaWindow:
        """Cut q | k | v apart. Source: arXiv:2412.06464, figure 1."""
        keys, values = (self.key_heads, self.key_channels), (self.value_heads, self.value_channels)
        q, k, v = _cut(c, [keys, keys, values])
        return DeltaWindow(q, k, v, gates.g, gates.beta)


@dataclass(frozen=True)
class SelectiveMixer(Record):
    """Mamba-1: the convolution runs over x, and dt, B, C are projections of what leaves it.

    FalconMamba and Jamba put an RMS norm on each of dt (at its rank), B and C.
    """

    conv: ConvParams
    params: SelectiveParams
    x_proj: InnerProjection  # to r | B | C, r the rank of dt
    dt_proj: StepProjection
    dt_norm: Norm | None = None
    B_norm: Norm | None = None
    C_norm: Norm | None = None
    recurrence: ClassVar[Recurrence] = selective
    tree: ClassVar[TreeScan] = selective_tree
    buffered: ClassVar[Buffered] = selective_buffered

    def project(self, c: Channels, gates: SelectiveGates) -> SelectiveWindow:
        """dt | B | C = x_proj x, each normed where the layer norms it, then dt = dt_proj dt.

        Source: arXiv:2312.00752, section 3.6; FalconMamba and Jamba (norms of dt, B and C).
        """
        rank, n = self.dt_proj.shape[1], self.params.A.shape[1]
        parts = np.split(einsum("btd, od -> bto", c, self.x_proj), [rank, rank + n], axis=2)
        norms = (self.dt_norm, self.B_norm, self.C_norm)
        r, B, C = (part if norm is None else rms(part, norm) for part, norm in zip(parts, norms, strict=True))
        return SelectiveWindow(c, einsum("btr, dr -> btd", r, self.dt_proj), B, C, gates.z)


Mixer: TypeAlias = SSDMixer | DeltaMixer | SelectiveMixer


def _cut(c: Channels, parts: list[tuple[int, int]]) -> list[Array]:
    sizes = [heads * channels for heads, channels in parts]
    if sum(sizes) != c.shape[2]:
        raise ShapeMismatch(
            f"the convolution has {c.shape[2]} channels, but the layer cuts it into {sizes}; they must sum to it"
        )
    pieces = np.split(c, np.cumsum(sizes)[:-1], axis=2)
    return [piece.reshape(c.shape[:2] + part) for piece, part in zip(pieces, parts, strict=True)]


def new_state(mixer: Mixer, rows: int) -> MixerState:
    """The state of `rows` sequences that have seen nothing: zeros."""
    M = np.zeros((rows, mixer.conv.weight.shape[0], mixer.conv.width))
    match mixer:
        case SSDMixer():
            return MixerState(M, np.zeros((rows, mixer.params.A.shape[0], mixer.channels, mixer.state)))
        case DeltaMixer():
            return MixerState(M, np.zeros((rows, mixer.value_heads, mixer.key_channels, mixer.value_channels)))
        case SelectiveMixer():
            return MixerState(M, np.zeros((rows, *mixer.params.A.shape)))


@checked
def window(M: ConvState, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None) -> tuple[RecurrenceWindow, ConvState]:
    """What the recurrence reads for a window, (1) and (2), and the window of the convolution after it.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow.
    """
    every = np.ones(inputs.pre.shape[:2], dtype=bool) if live is None else live
    c, M_next = conv.scan_masked(M, inputs.pre, every, mixer.conv)  # (1)
    return mixer.project(c, inputs.gates), M_next  # type: ignore[arg-type]  # (2)


@checked
def scan(state: MixerState, inputs: MixerInputs, mixer: Mixer, live: Mask | None = None) -> tuple[Array, MixerState]:
    """Advance a layer by every live token: plain decoding, which every backtracking path must equal.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError.
    Source: arXiv:2405.21060, section 7; arXiv:2412.06464, section 3.4; arXiv:2312.00752, section 3.4.
    """
    r, M_next = window(state.M, inputs, mixer, live)  # (1) (2)
    y, S_next = mixer.recurrence.scan(state.S, r, mixer.params, live)  # (3)
    return y, MixerState(M_next, S_next)


def verify_window(
    state: MixerState, inputs: MixerInputs, mixer: Mixer, live: Mask, parents: Parents | None = None
) -> tuple[Array, RecurrenceWindow]:
    """The outputs at every token of a chain, or at every node of a tree, and what the recurrence read; no state is written.

    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological.
    Source: STree, section 3, for trees.
    """
    if parents is None:
        r, _ = window(state.M, inputs, mixer, live)
        y, _ = mixer.recurrence.scan(state.S, r, mixer.params, live)
        return y, r
    ancestors = tree.ancestors(np.where(live, parents, tree.PADDING))
    c = conv_tree.scan_ancestors(state.M, inputs.pre, ancestors, mixer.conv)
    r = mixer.project(c, inputs.gates)  # type: ignore[arg-type]
    return mixer.tree.scan(state.S, r, ancestors, mixer.params), r
