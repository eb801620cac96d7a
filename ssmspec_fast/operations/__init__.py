"""What a forward pass is made of, as protocols: the arguments are those of the kernels' launchers, by name.

Pools come first and are written in place; rows reach them through `slots` (b), where a negative slot is padding and touches
nothing; cursors lie on the device; nothing waits for the host. Axes as in `ssmspec_ref.shapes`, `s` a slot.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

Keep: TypeAlias = Literal["final", "none"]
"""What M holds behind a window: its last inputs, or what it held."""


class SSDInputs(NamedTuple):
    """What Mamba-2's recurrence reads: x (b, t, h, p), raw dt (b, t, h), B, C (b, t, g, n), z as x where it gates y."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None = None


class SSDParams(NamedTuple):
    A: Tensor
    D: Tensor | None = None
    dt_bias: Tensor | None = None
    dt_softplus: bool = True
    dt_limit: tuple[float, float] = (0.0, float("inf"))


class DeltaInputs(NamedTuple):
    """What the delta rule reads: q, k (b, t, g, k), v (b, t, h, v), and g, beta (b, t, h) before their gates."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


class DeltaParams(NamedTuple):
    """g = A softplus(g + dt_bias), beta = sigmoid(beta)."""

    A: Tensor
    dt_bias: Tensor
    l2_norm: bool = True
    scale: float | None = None
    eps: float = 1e-6


class SelectiveInputs(NamedTuple):
    """What Mamba-1's recurrence reads: x, raw dt, z (b, t, d), B, C (b, t, n)."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None = None


class SelectiveParams(NamedTuple):
    A: Tensor
    D: Tensor | None = None
    dt_bias: Tensor | None = None
    dt_softplus: bool = True


class Taps(NamedTuple):
    """The causal convolution in front of a recurrence: weight (c, w), bias (c), and SiLU behind it."""

    weight: Tensor
    bias: Tensor | None = None
    activation: bool = True


class Weighted(NamedTuple):
    """Rows that an RMS norm has weighted only, with parts (.., j) of the sums of squares that give each row its factor.

    Without squares they are what they are.
    """

    x: Tensor
    squares: Tensor | None
    eps: float

    @property
    def shape(self) -> torch.Size:
        return self.x.shape


Rows: TypeAlias = Tensor | Weighted
"""What a projection reads."""


class Gate(NamedTuple):
    """Of a norm over all heads, gate first: z (b, t, c), weight (c)."""

    z: Tensor
    weight: Tensor
    eps: float


class Emitted(NamedTuple):
    """What the windows of a batch emit: the fields of `ssmspec_kernels.accept_greedy.Emitted`."""

    tokens: Tensor
    path: Tensor
    advanced: Tensor
    ended: Tensor


class Recurrence(Protocol):
    """One of the three recurrences over a pool of states S (s, ..).

    What a method keeps of a window is its own; see `methods`. `commit` and `buffered` are for the subclasses that move the
    states of all layers on, or take a window over a ring, in one launch; as in `OneLaunch`, the others have None.
    """

    commit: Callable[..., None] | None = None
    buffered: Callable[..., Tensor] | None = None

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        """Advance S[slots] by the live tokens, or leave it; the outputs, 0 where not live."""
        ...

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        """Scan from S[slots] and keep the state after token t in S[places[b, t]]; a negative place is not kept."""
        ...

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        """Advance S[slots] by several sequences in one run (1, t, ..); a fresh one starts from zeros."""
        ...

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """The outputs at every node of each row's tree from S[slots], which is only read."""
        ...


class OneLaunch(Protocol):
    """What an implementation may do in one launch, with the arguments of the kernels of these names. What it leaves None the
    engine does in steps; a subclass has None, and gives None, wherever it says nothing."""

    accept_greedy: Callable[..., Any] | None = None
    accept_sampled: Callable[..., Any] | None = None
    commit_tokens: Callable[..., None] | None = None
    commit_window: Callable[..., None] | None = None
    ngram_drafts: Callable[..., tuple[Tensor, Tensor]] | None = None

    def ssd_gated(self, S: Tensor, inputs: SSDInputs, params: SSDParams, gate: Gate, *, slots: Tensor) -> Weighted | None:
        """`ssd.scan` of one token and the gated norm of all heads (b, t, c); None, and nothing done, where two are better."""
        return None

    def ssd_gated_window(
        self,
        S: Tensor,
        inputs: SSDInputs,
        params: SSDParams,
        gate: Gate,
        *,
        ancestors: Tensor | None = None,
        slots: Tensor,
    ) -> Weighted | None:
        """The same of a window, or of a tree, that only reads the states."""
        return None


class Operations(OneLaunch, Protocol):
    """All that a model computes. With `bitwise`, the bits of a row depend on nothing beside the row (docs/decisions/0005)."""

    @property
    def bitwise(self) -> bool: ...
    @property
    def ssd(self) -> Recurrence: ...
    @property
    def delta(self) -> Recurrence: ...
    @property
    def selective(self) -> Recurrence: ...

    def linear(self, x: Rows, W: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """x W^T + bias over the last axis; into `out`, without gaps, where it is given."""
        ...

    def linear_normed(
        self, x: Rows, W: Tensor, bias: Tensor | None = None, *, residual: Tensor, weight: Tensor, eps: float
    ) -> Rows:
        """The RMS norm of residual + x W^T + bias, which stays in `residual`, as `linear` takes it."""
        ...

    def logits(self, x: Tensor, W: Tensor) -> Tensor:
        """x W^T in fp32, not rounded to the type of x."""
        ...

    def norm(self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        """The RMS norm of x, or of residual + x, which stays in `residual`."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        """As `norm`, centred."""
        ...

    def gated_norm(
        self, y: Tensor, z: Tensor, weight: Tensor, *, groups: int = 1, eps: float, norm_first: bool = False
    ) -> Tensor:
        """rms(y silu(z)) or rms(y) silu(z), over each group of (b, t, c), or each head of (b, t, h, v)."""
        ...

    def act(self, x: Tensor, name: str) -> Tensor:
        """SiLU, the sigmoid, the square of ReLU, or GELU."""
        ...

    def turn(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (b, t, f) of how far positions (b, t) turn, of frequencies (f)."""
        ...

    def rotate(self, q: Tensor, k: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Heads (b, t, h, e) and (b, t, g, e) turned; channel i is paired with i + f."""
        ...

    def conv_window(
        self,
        M: Tensor,
        u: Tensor,
        taps: Taps,
        *,
        slots: Tensor,
        live: Tensor | None = None,
        keep: Keep = "final",
        out: Tensor | None = None,
    ) -> Tensor:
        """The convolution over the live tokens of a window (b, t, c), 0 where not live; into `out` where it is given."""
        ...

    def conv_packed(
        self, M: Tensor, u: Tensor, taps: Taps, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        """The convolution over several sequences in one run (1, t, c)."""
        ...

    def conv_tree(
        self, M: Tensor, u: Tensor, taps: Taps, parents: Tensor, *, slots: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """Each node of a tree (b, t, c) reads the last inputs on its own path, 0 at padding; M is only read."""
        ...

    def conv_commit(
        self, M: Tensor, u: Tensor, *, advanced: Tensor | None = None, path: Tensor | None = None, slots: Tensor
    ) -> None:
        """Advance M[slots] by the first `advanced` (b) inputs of a window, or by those on a path (b, j), padded with -1."""
        ...

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        K: Tensor,
        V: Tensor,
        length: Tensor,
        *,
        ancestors: Tensor | None = None,
        scale: float,
        append: bool = True,
        slots: Tensor,
    ) -> Tensor:
        """A window (b, t, h, e) over the first length[slots] slots of the cache and over itself; `append` keeps k and v."""
        ...

    def attention_packed(
        self, q: Tensor, K: Tensor, V: Tensor, bounds: Tensor, *, length: Tensor, scale: float, slots: Tensor
    ) -> Tensor:
        """Several sequences in one run (1, t, h, e), whose keys and values stand in the cache behind length[slots]."""
        ...

    def append_packed(
        self, K: Tensor, V: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *, length: Tensor, slots: Tensor
    ) -> None:
        """Keys and values of a packed run into the cache, behind length[slots]."""
        ...

    def kv_append(self, K: Tensor, V: Tensor, k: Tensor, v: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """Keys and values of a window (b, t, g, e) to the places from length[slots] on, as far as the cache reaches."""
        ...

    def kv_compact(self, K: Tensor, V: Tensor, path: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """Move the nodes of each path (b, t), padded with -1, to the first slots behind length[slots]."""
        ...

    def tree_mask(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """The ancestors (b, t, t) and depths (b, t) of the nodes; padding has none, and depth -1."""
        ...
