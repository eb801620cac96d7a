"""The operations of a forward pass, as protocols; arguments have the names that the kernels' launchers use.

Pools come first and are written in place. Rows reach them through `slots` (b); a negative slot is padding and is neither read
nor written. Cursors are on the device, and no operation waits for the host. Axes as in `ssmspec_ref.shapes`; `s` is a slot.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

Keep: TypeAlias = Literal["final", "none"]
"""Whether M after a window holds its last inputs, or stays unchanged."""


class SSDInputs(NamedTuple):
    """The inputs of Mamba-2's recurrence: x (b, t, h, p), raw dt (b, t, h), B, C (b, t, g, n), z as x if it gates y."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None = None

    @property
    def outputs(self) -> dict[str, str | None]:
        """The fields that only the outputs need, each with the field that replaces it where no output is needed."""
        return {"C": "B", "z": None}


class SSDParams(NamedTuple):
    A: Tensor
    D: Tensor | None = None
    dt_bias: Tensor | None = None
    dt_softplus: bool = True
    dt_limit: tuple[float, float] = (0.0, float("inf"))


class DeltaInputs(NamedTuple):
    """The inputs of the delta rule before their gates: q, k (b, t, g, k), v (b, t, h, v), beta (b, t, h), and g (b, t, h), or
    (b, t, h, k) if it decays by key channel."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @property
    def outputs(self) -> dict[str, str | None]:
        return {"q": "k"}


class DeltaParams(NamedTuple):
    """g = A softplus(g + dt_bias), beta = sigmoid(beta)."""

    A: Tensor
    dt_bias: Tensor
    l2_norm: bool = True
    scale: float | None = None
    eps: float = 1e-6


class KDAParams(NamedTuple):
    """g = A softplus(g + dt_bias), or lower_bound sigmoid(-A (g + dt_bias)) if there is one: A (h), dt_bias (h, k)."""

    A: Tensor
    dt_bias: Tensor
    l2_norm: bool = True
    scale: float | None = None
    eps: float = 1e-6
    lower_bound: float | None = None


class SelectiveInputs(NamedTuple):
    """The inputs of Mamba-1's recurrence: x, raw dt, z (b, t, d), B, C (b, t, n)."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None = None

    @property
    def outputs(self) -> dict[str, str | None]:
        return {"C": "B", "z": None}


class SelectiveParams(NamedTuple):
    A: Tensor
    D: Tensor | None = None
    dt_bias: Tensor | None = None
    dt_softplus: bool = True


class Taps(NamedTuple):
    """The causal convolution before a recurrence, followed by SiLU: weight (c, w), bias (c)."""

    weight: Tensor
    bias: Tensor | None = None
    activation: bool = True


class Weighted(NamedTuple):
    """Rows multiplied by the weight of an RMS norm only, with parts (.., j) of the sums of squares that give each row's
    factor.

    Without squares they are plain rows.
    """

    x: Tensor
    squares: Tensor | None
    eps: float

    @property
    def shape(self) -> torch.Size:
        return self.x.shape


Rows: TypeAlias = Tensor | Weighted
"""The input of a projection."""


class Gate(NamedTuple):
    """A norm over all heads, after the gate: z (b, t, c), weight (c)."""

    z: Tensor
    weight: Tensor
    eps: float


class Emitted(NamedTuple):
    """The emitted tokens of the windows of a batch: the fields of `ssmspec_kernels.tokens.accept_greedy.Emitted`."""

    tokens: Tensor
    path: Tensor
    advanced: Tensor
    ended: Tensor


class Recurrence(Protocol):
    """One recurrence over a pool of states S (s, ..).

    What a method keeps of a window is its own; see `methods`. `commit` and `buffered` are optional: implementations define
    them if they advance the states of all layers, or process a window with a ring, in one launch; otherwise they are None, as
    in `OneLaunch`. `gated` and `gated_window` return None, and do nothing, where two launches are faster.
    """

    commit: Callable[..., None] | None = None
    buffered: Callable[..., Tensor] | None = None
    replayed: tuple[str, ...] = ("A", "dt_bias")
    """The parameters that `commit` reads of every layer."""

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        """Advances S[slots] by the live tokens, unless told to leave it; returns the outputs, 0 where not live."""
        ...

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        """Scans from S[slots] and stores the state after token t in S[places[b, t]]; nothing is stored for a negative
        place."""
        ...

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        """Advances S[slots] by several sequences in one run (1, t, ..); a fresh one starts from zeros."""
        ...

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """The outputs at every node of each row's tree from S[slots], which is only read."""
        ...

    def gated(self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, slots: Tensor) -> Weighted | None:
        """`scan` of one token and the gated norm of all heads (b, t, c)."""
        return None

    def gated_window(
        self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, ancestors: Tensor | None = None, slots: Tensor
    ) -> Weighted | None:
        """The same for a window, or a tree, that only reads the states."""
        return None


class OneLaunch(Protocol):
    """What an implementation may do in one launch, with the arguments of the kernels of these names. If it is None, the
    engine uses several steps; the default is None."""

    accept_greedy: Callable[..., Any] | None = None
    accept_sampled: Callable[..., Any] | None = None
    commit_tokens: Callable[..., None] | None = None
    commit_window: Callable[..., None] | None = None
    ngram_drafts: Callable[..., tuple[Tensor, Tensor]] | None = None


class Operations(OneLaunch, Protocol):
    """All that a model computes. With `bitwise`, the bits of a row do not depend on other rows (docs/decisions/0005)."""

    @property
    def bitwise(self) -> bool: ...
    @property
    def recurrences(self) -> Mapping[str, Recurrence]:
        """The recurrences by name (`ssmspec_fast.recurrences`)."""
        ...

    def linear(self, x: Rows, W: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
        """x W^T + bias over the last axis; written into `out`, which is contiguous, if given."""
        ...

    def linear_normed(
        self, x: Rows, W: Tensor, bias: Tensor | None = None, *, residual: Tensor, weight: Tensor, eps: float
    ) -> Rows:
        """The RMS norm of residual + x W^T + bias, in the form that `linear` takes; `residual` is updated."""
        ...

    def logits(self, x: Tensor, W: Tensor) -> Tensor:
        """x W^T in fp32, not rounded to the type of x."""
        ...

    def norm(self, x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        """The RMS norm of x, or of residual + x, which is then stored in `residual`."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, *, residual: Tensor | None = None, eps: float) -> Tensor:
        """As `norm`, centred."""
        ...

    def gated_norm(
        self,
        y: Tensor,
        z: Tensor,
        weight: Tensor,
        *,
        groups: int = 1,
        eps: float,
        norm_first: bool = False,
        gate: Literal["silu", "sigmoid"] = "silu",
    ) -> Tensor:
        """rms(y gate(z)) or rms(y) gate(z), over each group of (b, t, c), or each head of (b, t, h, v)."""
        ...

    def act(self, x: Tensor, name: str) -> Tensor:
        """SiLU, the sigmoid, the square of ReLU, or GELU."""
        ...

    def turn(self, positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (b, t, f) of the angles at positions (b, t), for frequencies (f)."""
        ...

    def rotate(self, q: Tensor, k: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated heads (b, t, h, e) and (b, t, g, e); channel i is paired with i + f."""
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
        """The convolution over the live tokens of a window (b, t, c), 0 where not live; written into `out` if given."""
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
        """Advances M[slots] by the first `advanced` (b) inputs of a window, or by those on a path (b, j), padded with -1."""
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
        """A window (b, t, h, e) over the first length[slots] tokens of the cache and over itself; `append` stores k and v."""
        ...

    def attention_packed(
        self, q: Tensor, K: Tensor, V: Tensor, bounds: Tensor, *, length: Tensor, scale: float, slots: Tensor
    ) -> Tensor:
        """Several sequences in one run (1, t, h, e), whose keys and values are in the cache after length[slots]."""
        ...

    def append_packed(
        self, K: Tensor, V: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *, length: Tensor, slots: Tensor
    ) -> None:
        """Writes keys and values of a packed run into the cache, after length[slots]."""
        ...

    def kv_append(self, K: Tensor, V: Tensor, k: Tensor, v: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """Writes keys and values of a window (b, t, g, e) from place length[slots] on; what exceeds the cache is dropped."""
        ...

    def kv_compact(self, K: Tensor, V: Tensor, path: Tensor, length: Tensor, *, slots: Tensor) -> None:
        """Moves the nodes of each path (b, t), padded with -1, to the first places after length[slots]."""
        ...

    def tree_mask(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """The ancestors (b, t, t) and depths (b, t) of the nodes; padding has none, and depth -1."""
        ...
