"""What an implementation declares, how it is reached, and what may be said of it.

A numeric contract is how an implementation says it computes; the error bound it is held to follows from that and from the
data (`error_bounds`). There are no free tolerances. What is declared is tested; what is not declared is inapplicable, with
the reason shown.

An adapter is plain data: names, contracts, and functions. A pure operation has the signature of the reference's function
that `OPERATIONS` names, over the same records of float64 NumPy arrays; the values are exact in the formats that the contract
declares, so that storing them in those formats changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias, get_args

from .errors import ParameterError
from .shapes import Array, Mask

Storage: TypeAlias = Literal["fp64", "fp32", "fp16", "bf16"]
Dot: TypeAlias = Literal["ieee", "tf32x3", "tf32", "fp16", "bf16"]
Order: TypeAlias = Literal["sequential", "chunked", "output_only"]

UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""u of each format, round to nearest: half the distance from 1 to the next number."""

SMALLEST_NORMAL: dict[str, float] = {"fp64": 2.0**-1022, "fp32": 2.0**-126, "fp16": 2.0**-14, "bf16": 2.0**-126}
"""Below it a result is rounded on a fixed grid of 2 u SMALLEST_NORMAL, or flushed to zero."""

LARGEST: dict[str, float] = {
    "fp64": (2 - 2.0**-52) * 2.0**1023,
    "fp32": (2 - 2.0**-23) * 2.0**127,
    "fp16": (2 - 2.0**-10) * 2.0**15,
    "bf16": (2 - 2.0**-7) * 2.0**127,
}
"""The largest finite number of each format."""

OPERATIONS: dict[str, str] = {
    "conv.step": "conv.step(M, u, params) -> y, M",
    "conv.scan": "conv.scan(M, u, params) -> y, M",
    "conv.scan_masked": "conv.scan_masked(M, u, live, params) -> y, M",
    "conv.verify_tree": "conv_tree.scan(M, u, parents, params) -> y",
    "conv.commit": "conv.commit(M, u, advanced) -> M",
    "conv.commit_path": "conv.commit_path(M, u, path) -> M",
    "selective.step": "selective.step(S, token, params) -> y, S",
    "selective.scan": "selective.scan(S, window, params) -> y, S",
    "selective.scan_masked": "selective.scan(S, window, params, live) -> y, S",
    "selective.verify_tree": "selective_tree.scan(S, window, ancestors, params) -> y",
    "ssd.step": "ssd.step(S, token, params) -> y, S",
    "ssd.scan": "ssd.scan(S, window, params) -> y, S",
    "ssd.scan_masked": "ssd.scan(S, window, params, live) -> y, S",
    "ssd.scan_packed": "scan_packed(S, run, bounds, fresh, params) -> y, S: every sequence of a run from its own state",
    "ssd.verify_tree": "ssd_tree.scan(S, window, ancestors, params) -> y",
    "ssd.verify_snapshots": "windows verified with a state kept for every token, one of which is restored",
    "ssd.verify_replay": "windows and trees verified, each behind the replay of what was accepted before",
    "ssd.buffered_verify": "windows verified from a checkpoint and a ring, accepted in part, flushed where due",
    "ssd.buffered_step": "single tokens decoded from a checkpoint and a ring",
    "delta.step": "delta.step(S, token, params) -> y, S",
    "delta.scan": "delta.scan(S, window, params) -> y, S",
    "delta.scan_masked": "delta.scan(S, window, params, live) -> y, S",
    "delta.scan_packed": "scan_packed(S, run, bounds, fresh, params) -> y, S: every sequence of a run from its own state",
    "delta.verify_tree": "delta_tree.scan(S, window, ancestors, params) -> y",
    "delta.verify_snapshots": "windows verified with a state kept for every token, one of which is restored",
    "delta.verify_replay": "windows and trees verified, each behind the replay of what was accepted before",
    "delta.buffered_verify": "windows verified from a checkpoint and a ring, accepted in part, flushed where due",
    "delta.buffered_step": "single tokens decoded from a checkpoint and a ring",
    "attention.verify_tree": "verify(K, V, length, q, k, v, ancestors, scale) -> y: what turned queries read",
    "attention.compact": "compact(K, V, length, path) -> K, V",
    "acceptance.greedy": "greedy(tokens, parents, choice, budget, eos) -> tokens, path, advanced, ended",
    "acceptance.sampled": "sampled(tokens, parents, p, q, coins, picks, budget, eos, law) -> tokens, path, advanced, ended",
    "acceptance.process": "process(logits, prompt, output, temperature, top_k, top_p, repetition, presence, frequency, "
    "min_tokens, eos) -> p: the law that is sampled",
    "layer.prefill": "a prompt",
    "layer.step": "a prompt, then single tokens from the cache",
    "layer.continue": "a prompt, then several tokens at once from the cache",
    "layer.left_pad": "rows of unequal length padded on the left, then single tokens",
    "layer.right_pad": "rows of unequal length padded on the right, then single tokens",
    "layer.rollback": "a prompt, rejected tokens undone by the layer's own means, then single tokens",
    "speculate.chain": "windows of drafts verified, accepted in part and committed",
    "speculate.tree": "packed trees of drafts verified, a path of each accepted and committed",
    "generate.greedy": "generate(prompts, count, speculate) -> tokens: an engine against itself without speculation",
}
"""Every operation that can be judged: a function of the reference, or what a stateful layer is taken through."""


@dataclass(frozen=True)
class NumericContract:
    """How an implementation computes. What it declares it is held to; a looser declaration gives a larger bound.

    Formats and order:
    `state` is how the state is stored between two calls; `stored_every_token` says that it is also stored, and read back,
    after every token (every chunk where the order is chunked). `io` is how outputs are stored, `accumulate` the arithmetic of
    everything else, `dot` how the operands of a matrix product are rounded before it, `ring` how the delta rule's replay
    buffer keeps the corrections u and the normalised keys (None: as `accumulate`).
    `order` is the order of evaluation and `chunk` the tokens over which log decays are summed (None: the whole window).

    Functions:
    `function_ulp` is the largest error of exp, log1p, rsqrt, sqrt and division in ulp. 2.5 covers expf, rsqrtf and the
    approximate division of the CUDA C++ Programming Guide, appendix on mathematical functions (2 ulp from the correctly
    rounded result, so 2.5 from the true one; log1pf has 1); ex2.approx and div.approx (2 ulp), rsqrt.approx (2^-22.9) and
    sqrt.approx (2^-23) of the PTX manual; and Sleef's u10 functions (1), which PyTorch calls on a CPU. NumPy's float32 exp
    needs 3 (2.52 is documented). A function that is put together from others, as log1p from a logarithm and a quotient,
    counts as one, with the errors of its parts added up.
    `exp` is "ex2" where e^x is formed as 2^(x log2 e): both the constant and the product are rounded, 2 u |x| more. Running
    sums of log decays may be multiplied by log2 e before they are subtracted: u of each more.
    `softplus` is "log" where it is formed as log(1 + e^x), so that the sum drops what e^x has below u, an absolute error;
    "log1p" keeps it. Above `softplus_threshold` softplus(x) is taken as x.

    Hardware:
    `truncates` says that sums inside a matrix product, and the rounding of its operands, cut off instead of rounding: twice
    u (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330, for tensor cores). `ftz` flushes results below the normal range.

    `str` names every field that widens the bound, so that no one widens it unseen.

    Raises: ParameterError for a format, a dot, an order or a form of a function that is not listed here, function_ulp < 0.5
    (a correctly rounded function), a softplus_threshold that is not a number, chunk < 1.
    """

    state: Storage = "fp32"
    io: Storage = "fp32"
    accumulate: Storage = "fp32"
    dot: Dot = "ieee"
    order: Order = "sequential"
    stored_every_token: bool = False
    chunk: int | None = None
    ring: Storage | None = None
    function_ulp: float = 2.5
    exp: Literal["libm", "ex2"] = "libm"
    softplus: Literal["log1p", "log"] = "log1p"
    softplus_threshold: float = 20.0
    truncates: bool = False
    ftz: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ParameterError(f"{name} came as {getattr(self, name)!r}; give one of {', '.join(map(str, allowed))}")
        if self.softplus_threshold != self.softplus_threshold:
            raise ParameterError("softplus_threshold came as nan; give the x above which softplus(x) is taken as x")
        if not self.function_ulp >= 0.5:
            raise ParameterError(f"function_ulp came as {self.function_ulp}; a correctly rounded function has 0.5")
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError(f"chunk came as {self.chunk}; give the tokens of a chunk, at least 1, or None")

    def __str__(self) -> str:
        parts: list[str] = [self.accumulate]
        parts += [f"{name}={value}" for name, value in (("state", self.state), ("io", self.io)) if value != self.accumulate]
        narrow = UNIT_ROUNDOFF[self.state] > UNIT_ROUNDOFF[self.accumulate]
        parts += ["every token"] if self.stored_every_token and narrow else []
        parts += [] if self.dot == "ieee" else [f"dot={self.dot}"]
        parts += [] if self.ring in (None, self.accumulate) else [f"ring={self.ring}"]
        parts += [f"ulp={self.function_ulp:g}"] if self.function_ulp > NumericContract.function_ulp else []
        parts += [f"exp={self.exp}"] if self.exp != "libm" else []
        parts += [f"softplus={self.softplus}"] if self.softplus != "log1p" else []
        early = self.softplus_threshold < NumericContract.softplus_threshold
        parts += [f"softplus above {self.softplus_threshold:g} is x"] if early else []
        parts += [name for name in ("truncates", "ftz") if getattr(self, name)]
        return "/".join([*parts, self.order if self.chunk is None else f"{self.order}({self.chunk})"])


_ALLOWED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("state", "io", "accumulate"), get_args(Storage)),
    "ring": (None, *get_args(Storage)),
    "dot": get_args(Dot),
    "order": get_args(Order),
    "exp": ("libm", "ex2"),
    "softplus": ("log1p", "log"),
}

FLOAT64 = NumericContract("fp64", "fp64", "fp64", softplus_threshold=float("inf"))
"""The contract of the reference itself; `dataclasses.replace(FLOAT64, order=...)` for its second derivations."""


class Verdict(IntEnum):
    """What may be said of a case; the worst verdict of a group is the group's."""

    PASS = 0
    INAPPLICABLE = 1
    KNOWN_FAILURE = 2
    UNKNOWN = 3
    FAIL = 4


@dataclass(frozen=True)
class Limits:
    """What an operation takes; cases outside are not run, and the reason is shown.

    `options` lists the values of an option that are offered ({"D": ("head",), "z": ("off",)}); an option that is not named is
    offered in full. `sizes` gives the smallest and the largest size of an axis ({"g": (1, 1), "w": (2, 4)}).
    """

    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = "outside the limits that the adapter declares"


@dataclass(frozen=True)
class Capability:
    """One operation of a subject: the function that does it, how it computes, and what it takes.

    A pure operation is called as `OPERATIONS` says and returns what it says, in that order. A `layer.` operation is
    `run(layer, rows) -> Layer`: given a record of `ssmspec_ref.layer`, a layer with those weights that has seen nothing. A
    `speculate.` operation is `run(mixer, state) -> Speculation`, with records of `ssmspec_ref.mixer`. `verify_snapshots`,
    `verify_replay`, `buffered_verify` and `buffered_step` are `run(S, params) -> Windows`, with those of the recurrence.
    """

    run: Callable[..., Any]
    contract: NumericContract
    limits: Limits = Limits()


@dataclass(frozen=True)
class Subject:
    """One thing under judgement (a kernel, a module, a layer family): the operations that it has, and why it lacks others.

    `absent` gives the reason for an operation by its name, or by its group ("conv"); a missing entry reads "not declared".
    """

    name: str
    capabilities: Mapping[str, Capability]
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoding:
    """One way to decode a whole model speculatively: `start(model, slots=, cache=, window=) -> Decoder`.

    `model` is a record of `ssmspec_ref.model`; `slots` sequences of at most `cache` tokens are held, windows have at most
    `window` tokens. `chains` and `trees` say what windows may be, `drafts` how many rows a sequence has in each. Decodings of
    an adapter with one name of `bits` promise the same bits as each other ("" promises none). The options of `limits` are
    those of the models (`kind`: mamba1, mamba2, delta, attention), its sizes those of a window (`t`).
    """

    name: str
    start: Callable[..., "Decoder"]
    contract: NumericContract
    chains: bool = True
    trees: bool = False
    drafts: int = 1
    bits: str = ""
    limits: Limits = Limits()


@dataclass(frozen=True)
class Adapter:
    """An implementation under judgement. `version` is the implementation's; `homepage` is where faults are reported."""

    name: str
    version: str
    subjects: tuple[Subject, ...] = ()
    homepage: str = ""
    decodings: tuple[Decoding, ...] = ()


class Layer(Protocol):
    """A stateful layer with given weights, from residual stream to residual stream (`ssmspec_ref.layer`).

    It may have an attribute `used`: the record of the weights as loaded, where a weight could not be stored exactly (A from
    A_log). It may differ from the record given by rounding only.
    """

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        """Advance by a window of tokens from the layer's own cache, and return the outputs.

        `live` marks the real tokens of a padded batch; the outputs at the others are not judged.
        """
        ...

    def state(self) -> tuple[Array, Array]:
        """Copies of M, the last w inputs of the convolution, and of S, the state, both as the reference lays them out."""
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` tokens by the layer's own means."""
        ...


class Speculation(Protocol):
    """What lies between a layer's projections (`ssmspec_ref.mixer`), decoding speculatively from a given state."""

    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        """The outputs at every token of a window (`MixerInputs`), a chain or a tree; nothing is accepted yet."""
        ...

    def commit(self, advanced: Array, path: Array) -> None:
        """Accept of the window just verified, row by row, the first `advanced` tokens of `path`; 0: the row took no part."""
        ...

    def state(self) -> tuple[Array, Array]:
        """M and S after what was accepted, as plain decoding would hold them."""
        ...


class Windows(Protocol):
    """A recurrence alone (`ssmspec_ref.ssd`, `ssmspec_ref.delta`), decoding window after window from a given state."""

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        """The outputs at every token of a window, a chain or a tree. Single tokens (`buffered_step`) are windows of one."""
        ...

    def commit(self, advanced: Array, path: Array) -> None:
        """Accept, row by row, the first `advanced` tokens of `path`; 0: the row took no part. A single token is accepted."""
        ...

    def state(self) -> Array:
        """S after what was accepted, as plain decoding would hold it: what waits is replayed, what is held is flushed."""
        ...


@dataclass(frozen=True)
class TokenWindow:
    """What a decoder verifies at once: in each row a root and its drafts, as a chain or as a packed tree.

    `tokens` (b, t); `slots` (b) names the sequence of each row, negative for padding. `lengths` (b) counts the real tokens of
    chains, first ones first; `parents` (b, t) makes the rows trees: -1 at the root, -2 at padding. `drafts` rows, one behind
    the other, belong to one sequence.
    """

    tokens: Array
    slots: Array
    lengths: Array | None = None
    parents: Array | None = None
    drafts: int = 1


@dataclass(frozen=True)
class TokenVerdict:
    """What stands of a window, for each of its sequences (n): the first `advanced` nodes of `path` (n, t) in `row`.

    They enter the states; `root` is the next root, which does not. Where an end of sequence or a budget has cut the run, the
    path goes on behind `advanced`: those nodes were accepted and are not committed. At padding `advanced` is 0; elsewhere 1
    or more. Behind the path stands -1.
    """

    advanced: Array
    path: Array
    row: Array
    root: Array


class Decoder(Protocol):
    """Sequences in slots under one way of decoding. Slots are free until a prompt, a fork or a restored sequence takes them.

    Between `verify` and `commit` other sequences may be forked and taken out, nothing else happens.
    """

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        """Prompts into free slots: all but their last token enter the states; the last is the first root."""
        ...

    def verify(self, window: TokenWindow) -> Array:
        """The logits (b, t, i) behind every token; those at padding are not read."""
        ...

    def commit(self, verdict: TokenVerdict) -> None:
        """Root and accepted drafts of the window just verified enter the states."""
        ...

    def fork(self, slot: int, to: int) -> None:
        """The sequence of a slot in a free slot too."""
        ...

    def release(self, slot: int) -> None:
        """The slot is free; nothing of its sequence is read again."""
        ...

    def snapshot(self, slot: int) -> Any:
        """All that the sequence needs to go on, here or in another decoder of the adapter and the model."""
        ...

    def restore(self, slot: int, held: Any) -> None:
        """A sequence that was taken out, into a free slot."""
        ...

    def flush(self, slots: Sequence[int]) -> None:
        """Bring the states of these slots up to all their committed tokens now; what comes after is the same."""
        ...

    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        """M and S, or K and V (l, g, e), of every layer as plain decoding would hold them. To read changes nothing."""
        ...

    def memory(self, slot: int) -> tuple[Array, ...]:
        """Copies of all that belongs to a slot, live or dead, as it lies there; compared bit for bit."""
        ...

    def poison(self) -> None:
        """NaN into all memory that no sequence needs: free slots, what was rejected, what is behind a length."""
        ...
