"""What an adapter declares about an implementation, how its operations are called, and the verdicts.

A numeric contract says how an implementation computes. The allowed error follows from it and from the data (`error_bounds`);
there are no tolerances to choose. Everything declared is tested; everything else is reported as inapplicable, with the
reason.

An adapter is plain data: names, contracts and functions. A pure operation has the signature that `OPERATIONS` gives. It takes
the reference's records of float64 NumPy arrays. All values are exactly representable in the formats of the contract, so
casting them to these formats loses nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias, get_args

from .approximation import Approximation, declared
from .errors import ParameterError
from .registry import Derived, Registry
from .shapes import Array, Mask

Storage: TypeAlias = Literal["fp64", "fp32", "fp16", "bf16"]
StateStorage: TypeAlias = Literal["fp64", "fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int16"]
StateScale: TypeAlias = Literal["row"] | int | None
Rounding: TypeAlias = Literal["nearest", "stochastic"]
Feedback: TypeAlias = Literal["int4", "int8", "bf16", "fp16", "fp32"] | None
Dot: TypeAlias = Literal["ieee", "tf32x3", "tf32", "fp16", "bf16"]
Order: TypeAlias = Literal["sequential", "chunked", "output_only", "associative"]

UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8_e4m3": 2.0**-4,
    "fp8_e5m2": 2.0**-3,
}
"""The unit roundoff u of each format, round to nearest: half the distance from 1 to the next number."""

SMALLEST_NORMAL: dict[str, float] = {
    "fp64": 2.0**-1022,
    "fp32": 2.0**-126,
    "fp16": 2.0**-14,
    "bf16": 2.0**-126,
    "fp8_e4m3": 2.0**-6,
    "fp8_e5m2": 2.0**-14,
}
"""The smallest normal number. Results below it are rounded on a fixed grid of 2 u SMALLEST_NORMAL, or flushed to zero."""

LARGEST: dict[str, float] = {
    "fp64": (2 - 2.0**-52) * 2.0**1023,
    "fp32": (2 - 2.0**-23) * 2.0**127,
    "fp16": (2 - 2.0**-10) * 2.0**15,
    "bf16": (2 - 2.0**-7) * 2.0**127,
    "fp8_e4m3": 448.0,
    "fp8_e5m2": 57344.0,
}
"""The largest finite number of each format."""

LARGEST_CODE: dict[str, float] = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0, "int16": 32767.0}
"""The formats whose values may be codes times a scale, and the code of the largest value of a block."""


@dataclass(frozen=True)
class Recurrence:
    """The operations of a recurrence. `windows` says whether they include packed prompts and partly accepted windows."""

    name: str
    windows: bool = True

    @property
    def operations(self) -> dict[str, str]:
        name = self.name
        alone = {
            "step": f"{name}.step(S, token, params) -> y, S",
            "scan": f"{name}.scan(S, window, params) -> y, S",
            "scan_masked": f"{name}.scan(S, window, params, live) -> y, S",
            "scan_packed": "scan_packed(S, run, bounds, fresh, params) -> y, S: every sequence of a run from its own state",
            "verify_tree": f"{name}_tree.scan(S, window, ancestors, params) -> y",
            "verify_snapshots": "windows verified with a state kept for every token, one of which is restored",
            "verify_replay": "windows and trees verified, each after the replay of what was accepted before",
            "buffered_verify": "windows verified from a checkpoint and a ring, accepted in part, flushed where due",
            "buffered_step": "single tokens decoded from a checkpoint and a ring",
        }
        plain = ("step", "scan", "scan_masked", "verify_tree")
        return {f"{name}.{operation}": says for operation, says in alone.items() if self.windows or operation in plain}


RECURRENCES = Registry(
    "recurrence",
    Recurrence("selective", windows=False),
    Recurrence("ssd"),
    Recurrence("delta"),
    Recurrence("shortconv"),
    Recurrence("mamba3"),
)
"""The recurrences that can be tested."""

_BEFORE = {
    "conv.step": "conv.step(M, u, params) -> y, M",
    "conv.scan": "conv.scan(M, u, params) -> y, M",
    "conv.scan_masked": "conv.scan_masked(M, u, live, params) -> y, M",
    "conv.verify_tree": "conv_tree.scan(M, u, parents, params) -> y",
    "conv.commit": "conv.commit(M, u, advanced) -> M",
    "conv.commit_path": "conv.commit_path(M, u, path) -> M",
}
_BEHIND = {
    "attention.verify_tree": "verify(K, V, length, q, k, v, ancestors, scale) -> y: attention of rotated queries",
    "attention.compact": "compact(K, V, length, path) -> K, V",
    "acceptance.greedy": "greedy(tokens, parents, choice, budget, eos) -> tokens, path, advanced, ended",
    "attention.positions": "positions(length, parents) -> positions: the place in its sequence of every node of a tree",
    "acceptance.greedy_logits": "greedy_logits(tokens, parents, logits, budget, eos) -> tokens, path, advanced, ended: "
    "the choice is the first largest logit",
    "acceptance.sampled": "sampled(tokens, parents, p, q, coins, picks, budget, eos, law) -> tokens, path, advanced, ended",
    "acceptance.process": "process(logits, prompt, output, temperature, top_k, top_p, repetition, presence, frequency, "
    "min_tokens, eos) -> p: the distribution that is sampled",
    "acceptance.process_rows": "process_rows(logits, prompt, output, settings, eos) -> p: settings of each row, with min-p",
    "draft.lookup": "lookup(history, tokens, longest, choice) -> drafts: what followed an earlier end of the text",
    "draft.png": "png(history, drafts, tokens, table) -> drafts: the windows that most often followed the last token",
    "layer.prefill": "a prompt",
    "layer.step": "a prompt, then single tokens from the cache",
    "layer.continue": "a prompt, then several tokens at once from the cache",
    "layer.left_pad": "rows of unequal length padded on the left, then single tokens",
    "layer.right_pad": "rows of unequal length padded on the right, then single tokens",
    "layer.rollback": "a prompt, rejected tokens undone by the layer's own means, then single tokens",
    "speculate.chain": "windows of drafts verified, accepted in part and committed",
    "speculate.tree": "packed trees of drafts verified, a path of each accepted and committed",
    "life.states": "sequences over a prefix cache: begun, fed, forked, exported and loaded elsewhere; saved prefixes evicted",
    "generate.greedy": "generate(prompts, count, speculate) -> tokens[, proposed, accepted]: an engine against itself "
    "without speculation",
    "generate.sampled": "sampled(p, q, roots, count, drafts, seed) -> tokens[, proposed, accepted]: rows generated with "
    "drafts from q, accepted against p, by random numbers of the implementation",
}
OPERATIONS = Derived(
    lambda: _BEFORE | {name: says for kind in RECURRENCES.values() for name, says in kind.operations.items()} | _BEHIND
)
"""Every operation that can be tested: a function of the reference, or a sequence of calls on a stateful layer."""


@dataclass(frozen=True)
class NumericContract:
    """How an implementation computes. It is tested against this declaration; a looser one allows a larger error.

    Formats and order:
    `state` is the format of the state between two calls; `stored_every_token` says that the state is also stored in this
    format, and read back, after every token (every chunk, if the order is chunked). `io` is the format of outputs,
    `accumulate` that of all other arithmetic, `dot` the format to which the operands of a matrix product are rounded first,
    and `ring` the format of the corrections u and the normalised keys in the delta rule's replay buffer (None: as
    `accumulate`). `order` is the order of evaluation, and `chunk` the number of tokens over which log decays are summed, or
    decays multiplied (None: the whole window). In "associative" the decay over several tokens is a product of theirs in any
    association, each with the error of its own exp; in "chunked" and "output_only" it is exp of a sum. The delta rule's step
    has no such product, and is refused.

    States that lose bits (`state_format`):
    `state_scale` says that the state is kept as codes times scales in fp32: "row" for one scale per output channel, a
    number n for one per n consecutive states of a channel. int8 and int16 need a scale; fp8 may have one.
    `state_rounding` is how the state is rounded when it is stored: to the nearest number, or "stochastic": up with the
    probability that makes the mean exact, by numbers drawn again for every element in every call. `error_feedback` is the
    format in which the error of rounding to int8 or int16 is kept and added when the state is read (None: it is lost).

    Functions:
    `function_ulp` is the largest error of exp, log1p, rsqrt, sqrt and division in ulp. 2.5 covers expf, rsqrtf and the
    approximate division of the CUDA C++ Programming Guide, appendix on mathematical functions (2 ulp from the correctly
    rounded result, so 2.5 from the true one; log1pf has 1); ex2.approx and div.approx (2 ulp), rsqrt.approx (2^-22.9) and
    sqrt.approx (2^-23) of the PTX manual; and Sleef's u10 functions (1), which PyTorch calls on a CPU. NumPy's float32 exp
    needs 3 (2.52 is documented). A function composed of others, such as log1p from a logarithm and a quotient, counts as one,
    with the sum of their errors.
    `exp` is "ex2" if e^x is computed as 2^(x log2 e): both the constant and the product are rounded, 2 u |x| more. Running
    sums of log decays may be multiplied by log2 e before they are subtracted: u of each more.
    `softplus` is "log" if it is computed as log(1 + e^x), where the sum loses the part of e^x below u, an absolute error;
    "log1p" keeps it. Above `softplus_threshold` softplus(x) is taken as x.
    `approximations` names functions with an absolute error (`approximation.Approximation`), which is added where a bound
    evaluates them; that of exp also where sigmoid, softplus, silu and tanh are made of it.

    Hardware:
    `truncates` says that sums inside a matrix product, and the rounding of its operands, truncate instead of rounding: twice
    u (Fasi, Higham, Mikaitis, Pranesh, PeerJ CS 7:e330, for tensor cores). `ftz` says that results below the normal range are
    flushed to zero. `str` lists every field that widens the bound, so that no widening is hidden.

    Raises: ParameterError for an unknown format, dot, order or form of a function, for function_ulp < 0.5 (a correctly
    rounded function), for a softplus_threshold that is not a number, for chunk < 1, for approximations of another type, and
    for a scale, a rounding or an error feedback that the format of the state cannot have.
    """

    state: StateStorage = "fp32"
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
    state_scale: StateScale = None
    state_rounding: Rounding = "nearest"
    error_feedback: Feedback = None
    approximations: tuple[Approximation, ...] = ()

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ParameterError(f"{name} is {getattr(self, name)!r}; give one of {', '.join(map(str, allowed))}")
        if self.softplus_threshold != self.softplus_threshold:
            raise ParameterError("softplus_threshold is nan; give the x above which softplus(x) is computed as x")
        if not self.function_ulp >= 0.5:
            raise ParameterError(
                f"function_ulp is {self.function_ulp}; it must be at least 0.5, which is a correctly rounded function"
            )
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError(f"chunk is {self.chunk}; it must be the number of tokens in a chunk, at least 1, or None")
        object.__setattr__(self, "approximations", declared(self.approximations))
        if told := _unfit_state(self):
            raise ParameterError(told)

    def __str__(self) -> str:
        parts: list[str] = [self.accumulate]
        parts += [f"{name}={value}" for name, value in (("state", self.state), ("io", self.io)) if value != self.accumulate]
        narrow = rounds_state(self)
        parts += [] if self.state_scale is None else [f"scale={self.state_scale}"]
        parts += [] if self.state_rounding == "nearest" else [self.state_rounding]
        parts += [] if self.error_feedback is None else [f"feedback={self.error_feedback}"]
        parts += ["every token"] if self.stored_every_token and narrow else []
        parts += [] if self.dot == "ieee" else [f"dot={self.dot}"]
        parts += [] if self.ring in (None, self.accumulate) else [f"ring={self.ring}"]
        parts += [f"ulp={self.function_ulp:g}"] if self.function_ulp > NumericContract.function_ulp else []
        parts += [f"exp={self.exp}"] if self.exp != "libm" else []
        parts += [f"softplus={self.softplus}"] if self.softplus != "log1p" else []
        early = self.softplus_threshold < NumericContract.softplus_threshold
        parts += [f"softplus above {self.softplus_threshold:g} is x"] if early else []
        parts += [name for name in ("truncates", "ftz") if getattr(self, name)]
        parts += [str(one) for one in self.approximations]
        return "/".join([*parts, self.order if self.chunk is None else f"{self.order}({self.chunk})"])


_ALLOWED: dict[str, tuple[Any, ...]] = {
    "state": get_args(StateStorage),
    **dict.fromkeys(("io", "accumulate"), get_args(Storage)),
    "ring": (None, *get_args(Storage)),
    "dot": get_args(Dot),
    "order": get_args(Order),
    "exp": ("libm", "ex2"),
    "softplus": ("log1p", "log"),
    "state_rounding": get_args(Rounding),
    "error_feedback": ("int4", "int8", "bf16", "fp16", "fp32", None),
}


def rounds_state(contract: NumericContract) -> bool:
    """Whether storing a state rounds it: its format is narrower than the arithmetic."""
    if contract.state.startswith("int"):
        return True
    return UNIT_ROUNDOFF[contract.state] > UNIT_ROUNDOFF[contract.accumulate]


def _unfit_state(contract: NumericContract) -> str:
    """Why the state's scale, rounding or error feedback do not fit its format; "" if they do."""
    state, scale = contract.state, contract.state_scale
    if scale != "row" and scale is not None and (isinstance(scale, bool) or not isinstance(scale, int) or scale < 1):
        return f"state_scale is {scale!r}; give 'row', the number of states that share a scale (at least 1), or None"
    if scale is None and state.startswith("int"):
        return f"state is {state}, which needs a scale; give state_scale='row' or the number of states that share one"
    if scale is not None and state not in LARGEST_CODE:
        return f"state_scale is {scale!r}, but a state in {state} has none; it is for {', '.join(LARGEST_CODE)}"
    if contract.error_feedback is not None and not state.startswith("int"):
        return f"error_feedback is {contract.error_feedback!r}, but the state is {state}; it is for int8 and int16"
    if contract.state_rounding == "stochastic" and contract.error_feedback is not None:
        return f"state_rounding is 'stochastic' and error_feedback is {contract.error_feedback!r}; declare one of them only"
    if contract.state_rounding == "stochastic" and not rounds_state(contract):
        said = f"state_rounding is 'stochastic', but storing {contract.accumulate} in {state} rounds nothing"
        return f"{said}; omit it, or declare a narrower state"
    return ""


FLOAT64 = NumericContract("fp64", "fp64", "fp64", softplus_threshold=float("inf"))
"""The contract of the reference itself; `dataclasses.replace(FLOAT64, order=...)` for its second derivations."""


class Verdict(IntEnum):
    """The verdict on a case. The verdict on a group is the worst of its cases."""

    PASS = 0
    INAPPLICABLE = 1
    KNOWN_FAILURE = 2
    UNKNOWN = 3
    FAIL = 4


def is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(size, int) for size in given)


@dataclass(frozen=True)
class Limits:
    """The inputs that an operation supports. Cases outside are not run, and the reason is shown.

    `options` lists the supported values of an option ({"D": ("head",), "z": ("off",)}), of which the first takes the place of
    a default that is not listed; all values of an option that is not listed are supported. `sizes` gives the smallest and the
    largest size of an axis ({"g": (1, 1), "w": (2, 4)}).
    """

    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = "outside the limits that the adapter declares"

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping):  # the adapter's check refuses it, and pairs that are not integers
            return
        for axis, pair in self.sizes.items():
            if is_pair(pair) and not 1 <= pair[0] <= pair[1]:
                raise ParameterError(
                    f"the limits of the axis {axis} are {pair[0]} to {pair[1]}, and no size is within; "
                    "give the smallest and the largest that are supported, 1 or more"
                )


ASKED: dict[str, str] = {"slots": "rows", "verify": "once", "ranks": "one", "far": "none", "graph": "off"}
"""Options that not every interface has: only this value is tested, unless a capability's limits name the option. A `Graph`
names `graph` by itself."""
CAPTURED: tuple[str, ...] = ("off", "replayed")
"""The values of `graph` that a `Graph` is tested with."""

BITWISE: dict[str, str] = {
    "rerun": "the same inputs again",
    "rows": "each row alone, each packed sequence alone, and every row in a batch twice as large",
    "slots": "each row in the slot of the next one",
    "split": "the first tokens in one call, the others in the next",
}
"""Calls that must give the same bits, if a capability declares it."""


@dataclass(frozen=True)
class WithWeights:
    """What a pure operation may return instead of its outputs alone: the outputs, and the parameters that it computed with.

    For weights that cannot be stored exactly (A from A_log). They may differ from those given by rounding only.
    """

    outputs: tuple[Any, ...]
    params: Any


@dataclass(frozen=True)
class Launch:
    """One call of an operation in the parts that a captured graph has.

    `inputs` is every array that `run` reads or writes, on the device, in any tuples, lists, dicts and records; what else
    is in there (numbers, texts, None) must be the same in every call. `run()` computes from them and returns its outputs, on
    the device: it is what is captured. `read(outputs)` makes of these what the operation returns.

    A replay comes after the inputs of another launch, of the same shapes, were copied into these.
    """

    inputs: Any
    run: Callable[[], Any]
    read: Callable[[Any], Any] = lambda outputs: outputs

    def then(self, function: Callable[[Any], Any]) -> "Launch":
        """The same launch, of which the operation returns a function of what it would have returned."""
        return Launch(self.inputs, self.run, lambda outputs: function(self.read(outputs)))


Capture: TypeAlias = Callable[[Callable[[], Any]], tuple[Any, Callable[[], None]]]
"""Runs a function and records it: returns its outputs, and a function that replays it into the same arrays."""


@dataclass(frozen=True)
class Graph:
    """An operation that can be captured in a graph once and replayed after other inputs were copied into its arrays.

    `prepare` takes what the operation takes and returns a `Launch`. Of an operation that decodes windows it returns the
    object, whose `verify` and `commit` return a `Launch` each, or do without one what the host has to do. Called, a graph
    computes without a capture. `capture` records a launch; without it the suite does: in a CUDA graph if the inputs are
    tensors of PyTorch on a GPU, in a list of operations and interpreted kernels if they are on a CPU.
    """

    prepare: Callable[..., Any]
    capture: Capture | None = None

    @property
    def __name__(self) -> str:
        return str(getattr(self.prepare, "__name__", type(self.prepare).__name__))

    def __call__(self, *arguments: Any) -> Any:
        made = self.prepare(*arguments)
        return made.read(made.run()) if isinstance(made, Launch) else LaunchedWindows(made, launched)


def launched(method: str, made: Any) -> Any:
    """The result of a method, launched at once if it is a `Launch`."""
    return made.read(made.run()) if isinstance(made, Launch) else made


class LaunchedWindows:
    """An object that decodes windows, of which each `Launch` of `verify` and `commit` is done by `do(method, launch)`."""

    def __init__(self, of: Any, do: Callable[[str, Any], Any]) -> None:
        self._of, self._do = of, do

    def verify(self, window: Any, parents: Array | None = None) -> Any:
        return self._do("verify", self._of.verify(window, parents))

    def commit(self, advanced: Array, path: Array) -> None:
        self._do("commit", self._of.commit(advanced, path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


@dataclass(frozen=True)
class Capability:
    """One operation of a subject: the function that computes it, its numeric contract, and its limits.

    A pure operation takes and returns what `OPERATIONS` says, in that order, or `WithWeights`. A `layer.` operation is
    `run(layer, rows) -> Layer`: it takes a record of `ssmspec_ref.layers.layer` and returns a layer with these weights and an
    empty state. A `speculate.` operation is `run(mixer, state) -> Speculation`, with records of `ssmspec_ref.layers.mixer`.
    `life.states` is `run(mixer, slots, block) -> States`, and with the option `ranks` `run(mixer, slots, block, ranks)`.
    `verify_snapshots`, `verify_replay`, `buffered_verify` and `buffered_step` are `run(S, params) -> Windows`, with records
    of the recurrence. `bitwise` names laws of `BITWISE` that hold bit for bit. Options of `ASKED` are tested only if the
    limits name them: with `slots` the state is a `slots.Pool`, and the pool is returned; with `slots=far` a `slots.FarPool`,
    with `slots=fresh` a `slots.FreshPool`, with `slots=none` None; with `far` inputs are views of far strides, and so is y.
    If `run` is a `Graph`, it is captured and replayed too; `uncaptured` says why it cannot be.

    Raises: ParameterError for an unknown law, for any law with stochastic rounding of the state, and for a reason why a
    `Graph` cannot be captured.
    """

    run: Callable[..., Any]
    contract: NumericContract
    limits: Limits = Limits()
    bitwise: tuple[str, ...] = ()
    uncaptured: str = ""

    def __post_init__(self) -> None:
        if self.uncaptured and isinstance(self.run, Graph):
            raise ParameterError(
                f"uncaptured is {self.uncaptured!r}, but run is a Graph, which can be captured; omit one of the two"
            )
        if unknown := [law for law in self.bitwise if law not in BITWISE]:
            raise ParameterError(f"bitwise names {unknown[0]!r}; give a tuple of {', '.join(BITWISE)}")
        if self.bitwise and self.contract.state_rounding == "stochastic":
            raise ParameterError(
                "bitwise is declared with state_rounding='stochastic', where two calls give other bits; declare one of them"
            )
        if isinstance(self.limits, Limits):  # anything else is refused where the adapter is read
            plain: dict[str, tuple[str, ...]] = {name: (value,) for name, value in ASKED.items()}
            plain |= {"graph": CAPTURED} if isinstance(self.run, Graph) else {}
            object.__setattr__(self, "limits", replace(self.limits, options=plain | dict(self.limits.options)))


@dataclass(frozen=True)
class Subject:
    """One thing under test (a kernel, a module, a layer family): its operations, and the reasons why others are missing.

    `absent` gives the reason for a missing operation, by its name or by its group ("conv"); the default is "not declared".
    """

    name: str
    capabilities: Mapping[str, Capability]
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decoding:
    """One way to decode a whole model speculatively: `start(model, slots=, cache=, window=) -> Decoder`.

    `model` is a record of `ssmspec_ref.model`. The decoder holds up to `slots` sequences of at most `cache` tokens each, and
    takes windows of at most `window` tokens. `chains` and `trees` say which windows are supported, `drafts` how many rows a
    sequence has in each window. Decodings of one adapter with the same name in `bits` promise bitwise equal results (""
    promises nothing). The options of `limits` are those of the models (`kind`: mamba1, mamba2, delta, attention), its sizes
    those of a window (`t`).
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
    """An implementation under test. `version` is the version of the implementation; `homepage` is where to report bugs."""

    name: str
    version: str
    subjects: tuple[Subject, ...] = ()
    homepage: str = ""
    decodings: tuple[Decoding, ...] = ()


class Layer(Protocol):
    """A stateful layer with given weights, residual stream in and out (`ssmspec_ref.layers.layer`).

    If a weight could not be stored exactly (A from A_log), the layer may have an attribute `used`: the record of the weights
    as loaded. It may differ from the given record by rounding only.
    """

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        """Advance by a window of tokens from the layer's cache, and return the outputs.

        `live` marks the real tokens of a padded batch; outputs at other tokens are not compared.
        """
        ...

    def state(self) -> tuple[Array, Array]:
        """Copies of M, the last w inputs of the convolution, and of S, the state, both in the reference's layout."""
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` tokens by the layer's own method."""
        ...


class Speculation(Protocol):
    """The part of a layer between its projections (`ssmspec_ref.layers.mixer`), decoding speculatively from a given state.

    It may have a method `poison()`, as a `Decoder` has: write NaN into all memory that is not in use, such as slots without a
    row, snapshots that were not accepted and unused entries of a ring. It is called between windows.
    """

    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        """The outputs at every token of a window (`MixerInputs`), a chain or a tree. Nothing is accepted yet."""
        ...

    def commit(self, advanced: Array, path: Array) -> None:
        """Accept, in each row of the window just verified, the first `advanced` tokens of `path` (0: no window)."""
        ...

    def state(self) -> tuple[Array, Array]:
        """M and S after the accepted tokens, as in plain decoding."""
        ...


class Windows(Protocol):
    """A recurrence alone (`ssmspec_ref.ssd`, `ssmspec_ref.delta`), decoding window by window from a given state.

    It may have a method `poison()`, as a `Speculation` may.
    """

    def verify(self, window: Any, parents: Array | None = None) -> Array:
        """The outputs at every token of a window, a chain or a tree. `buffered_step` takes windows of one token."""
        ...

    def commit(self, advanced: Array, path: Array) -> None:
        """For each row accept the first `advanced` tokens of `path` (0: no window). A single token is always accepted."""
        ...

    def state(self) -> Array:
        """S after the accepted tokens, as in plain decoding: pending tokens are replayed, buffered ones flushed."""
        ...


class States(Protocol):
    """The states of one layer between its projections on one server: sequences in slots, with a prefix cache.

    The state of a sequence may be saved whenever its number of tokens is a multiple of `block`, and dropped later; with a
    block of 0 there is no cache, and `begin` finds nothing. A saved or exported state must not change when more tokens are
    fed. It may have a method `poison()`, as a `Speculation` may.

    A server of several tensor-parallel ranks gets the whole mixer and whole inputs, cuts them, and returns the outputs of all
    heads. Rank r of R has the heads r h / R .. and, of each part of the convolution's channels (x | B | C, or q | k | v), the
    heads or groups r n // R .., so that several ranks have the same group if there are more ranks than groups. The first axis
    of `state` is the rank. `take` may get a state that a server with another number of ranks has exported.
    """

    def begin(self, slot: int, tokens: Array) -> int:
        """Put a prompt into a free slot, starting from a saved prefix of it that leaves a token to feed, if there is one.

        Returns: the number of tokens of that prefix, 0 without one. The other tokens are fed next.
        """
        ...

    def feed(self, slot: int, tokens: Array, inputs: Any) -> Array:
        """Advance a sequence by tokens with these inputs (`MixerInputs` of one row), and return the outputs (1 t ..)."""
        ...

    def fork(self, slot: int, to: int) -> None:
        """Copy a sequence into a free slot; the two continue separately."""
        ...

    def end(self, slot: int) -> None:
        """Free a slot. The prefixes that its sequence has saved stay."""
        ...

    def evict(self) -> None:
        """Drop every saved prefix; running sequences continue."""
        ...

    def export(self, slot: int) -> Any:
        """The state of a sequence, for this server or another one of the same layer."""
        ...

    def take(self, slot: int, held: Any) -> None:
        """Put an exported state into a free slot."""
        ...

    def state(self, slot: int) -> tuple[Array, Array]:
        """Copies of M and S (1 ..) after all tokens of a sequence. Reading them changes nothing."""
        ...


@dataclass(frozen=True)
class TokenWindow:
    """A window that a decoder verifies in one pass. Each row is a root and its drafts, as a chain or as a packed tree.

    `tokens` (b, t); `slots` (b) gives the slot of each row's sequence, negative for padding. `lengths` (b) counts the real
    tokens of chains, which come first; `parents` (b, t) makes the rows trees: -1 at the root, -2 at padding. Each sequence
    has `drafts` consecutive rows.
    """

    tokens: Array
    slots: Array
    lengths: Array | None = None
    parents: Array | None = None
    drafts: int = 1


@dataclass(frozen=True)
class TokenVerdict:
    """What is accepted of a window, for each of its sequences (n): the first `advanced` nodes of `path` (n, t) in row `row`.

    These nodes enter the states; `root` is the next root, which does not. If an end of sequence or a budget has cut the run,
    the path continues after `advanced`: those nodes were accepted but are not committed. `advanced` is 0 at padding and at
    least 1 elsewhere. The path is padded with -1.
    """

    advanced: Array
    path: Array
    row: Array
    root: Array


class Decoder(Protocol):
    """Sequences in slots, decoded in one way. A slot is free until a prompt, a fork or a restored snapshot takes it.

    Between `verify` and `commit`, other sequences may be forked and snapshotted; no other call is made.
    """

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        """Put prompts into free slots. All tokens but the last enter the states; the last token is the first root."""
        ...

    def verify(self, window: TokenWindow) -> Array:
        """The logits (b, t, i) after every token; logits at padding are not read."""
        ...

    def commit(self, verdict: TokenVerdict) -> None:
        """Apply the root and the accepted drafts of the window just verified to the states."""
        ...

    def fork(self, slot: int, to: int) -> None:
        """Copy the sequence of a slot into a free slot."""
        ...

    def release(self, slot: int) -> None:
        """Free a slot; its sequence is not read again."""
        ...

    def snapshot(self, slot: int) -> Any:
        """Everything needed to continue the sequence, in this or another decoder of the same adapter and model."""
        ...

    def restore(self, slot: int, held: Any) -> None:
        """Put a snapshot into a free slot."""
        ...

    def flush(self, slots: Sequence[int]) -> None:
        """Bring the states of these slots up to date with all committed tokens now; later outputs do not change."""
        ...

    def state(self, slot: int) -> tuple[tuple[Array, Array], ...]:
        """M and S, or K and V (l, g, e), of every layer, as in plain decoding. Reading them changes nothing."""
        ...

    def memory(self, slot: int) -> tuple[Array, ...]:
        """Copies of all memory of a slot, in use or not; compared bit for bit."""
        ...

    def poison(self) -> None:
        """Write NaN into all memory that no sequence needs: free slots, rejected tokens, positions after a length."""
        ...
