"""What a launcher refuses beyond its row (`test_rows`): sizes that do not fit together, options out of range, operands of two
types. Each stands once, and holds for every launcher that has what it is about. Nothing is written."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from ssmspec_kernels.row import row_of
from ssmspec_ref.errors import ParameterError, PrecisionError, RingOverflow, ShapeMismatch, Unsupported
from tests.kernels.calls import LAUNCHERS, Arguments, Form, call, forms, tensors
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept

pytestmark = pytest.mark.interpreter

NAN = float("nan")
FP32 = torch.float32


@dataclass(frozen=True)
class Refusal:
    """A call that launchers refuse: `of` are their names, or what tells whether one has what this is about. The call is drawn
    with other sizes, without some tensors, with other options, or changed."""

    of: str | Callable[[str], bool]
    error: type[Exception]
    message: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    without: str = ""
    types: Mapping[str, torch.dtype] = field(default_factory=dict)
    change: Callable[[Arguments], Arguments] = lambda given: {}
    form: int = 0

    def holds_for(self, name: str) -> bool:
        return name in self.of.split() if isinstance(self.of, str) else self.of(name)


def letters(name: str) -> set[str]:
    return {letter for e in row_of(vars(LAUNCHERS[name])[name]) for form in e.argument.forms for letter in form}


def takes(*options: str, but: str = "") -> Callable[[str], bool]:
    """Whether a launcher has all these parameters."""
    return lambda name: (
        {*options} <= inspect.signature(vars(LAUNCHERS[name])[name]).parameters.keys() and name not in but.split()
    )


def spans(*axes: str, but: str = "") -> Callable[[str], bool]:
    """Whether a launcher has all these axes."""
    return lambda name: {*axes} <= letters(name) and name not in but.split()


DELTA = "delta_buffered delta_buffered_step delta_chunk_scan delta_chunked delta_scan delta_snapshots delta_tree"
DELTA += " kda_scan kda_snapshots kda_tree"
COMMITS = "conv_commit kda_commit mamba3_commit shortconv_commit ssd_commit"
BUFFERED = "delta_buffered mamba3_buffered shortconv_buffered ssd_buffered"
FLUSHES = "delta_flush mamba3_flush shortconv_flush ssd_flush"
OF_ROWS = f"{FLUSHES} commit_flush commit_step commit_halves"
TREES = (
    "accept_greedy accept_sampled commit_tokens conv_tree kv_compact selective_tree shortconv_tree tree_attention tree_mask"
)
REFUSALS = [
    # --- sizes ---
    Refusal(
        takes("slots", but="ngram_drafts"), ParameterError, "the pool holds 2 states for 3 rows", {"s": 2}, without="slots"
    ),
    Refusal(spans("g", "h", but="rotary mamba3_scan"), ParameterError, "3 groups do not divide", {"g": 3}),
    Refusal("ssd_commit", ParameterError, "3 groups do not divide 4 heads", {"e": 3}),
    Refusal(takes("bounds"), ShapeMismatch, "at least one sequence", {"m": 1}),
    Refusal(takes("bounds"), ShapeMismatch, "bounds hold 3 entries for 3 sequences", {"m": 3}),
    Refusal(takes("ancestors"), ShapeMismatch, "6 columns", {"j": 6}),
    Refusal(
        "kda_commit mamba3_commit shortconv_commit ssd_commit", ShapeMismatch, "5 rows for 3 seq", {"m": 5}, without="rows"
    ),
    Refusal("conv_commit conv_packed conv_step conv_tree conv_window", ParameterError, "the window has 1 taps", {"w": 1}),
    Refusal("conv_commit conv_packed conv_step conv_tree conv_window", ParameterError, "the window has 9 taps", {"w": 9}),
    Refusal(spans("q", "w"), ShapeMismatch, "the state has 3 columns, but a convolution of 3 taps keeps 2", {"w": 3}),
    Refusal(spans("q", "w"), ParameterError, "the window has 1 taps", {"w": 1}),
    Refusal("shortconv_commit shortconv_flush", ParameterError, "the window has 9 taps", {"q": 8}),
    Refusal(spans("e", "f", "r"), ShapeMismatch, "a head keeps 34 numbers, but .* is 35", {"e": 34}),
    Refusal(spans("e", "f", "r"), ParameterError, "4 angles turn pairs of 6 channels", {"f": 4}),
    Refusal("rotary", ParameterError, "5 frequencies turn 10 channels, but a head has 8; give at most 4", {"f": 5}),
    Refusal(
        "gated_norm",
        ParameterError,
        "4 groups do not divide 11 heads",
        options={"groups": 4},
        change=lambda given: {name: torch.zeros(1, 5, 11) for name in ("y", "z", "out")} | {"weight": torch.zeros(11)},
    ),
    # --- how much a launch takes ---
    Refusal(
        TREES,
        Unsupported,
        "129",
        {"t": 129, "j": 129, "l": 140},
    ),
    Refusal("ssd_tree_scan ssd_window ssd_replay_scan", Unsupported, "129 tokens", {"t": 129, "j": 129, "l": 258}),
    Refusal("delta_tree kda_tree", ParameterError, "holds 129 nodes", {"t": 129, "j": 129}),
    Refusal("kda_tree", Unsupported, "tiles of 32 channels are refused for 33", {"t": 33, "j": 33}, {"block_v": 32}, "pairs"),
    Refusal("mamba3_tree", ParameterError, "33 nodes; a launch takes up to 32", {"t": 33, "j": 33}),
    Refusal("conv_window", Unsupported, "65 tokens, .* call conv_packed", {"t": 65}),
    Refusal("delta_chunked", ParameterError, "the window holds 33 tokens", {"t": 33}),
    Refusal("delta_buffered_step ssd_buffered_step", ParameterError, "holds 2 tokens; standard decode takes one", {"t": 2}),
    Refusal("linear_rows linear_added", Unsupported, "129 rows, but .* at most 128", {"m": 129}),
    Refusal("norm", Unsupported, "65537 channels", {"u": 65537}),
    Refusal("gated_norm", Unsupported, "65537 channels", {"v": 65537}),
    Refusal(
        "gated_norm",
        ShapeMismatch,
        "z has .* axes are .b t c.$",
        change=lambda given: {"y": torch.zeros(3, 5, 6), "z": torch.zeros(3, 5, 2, 3), "weight": torch.zeros(6), "out": None},
    ),
    # --- rings, caches, cursors ---
    Refusal(BUFFERED, RingOverflow, "a ring of 9 cannot hold the windows of 5 tokens", {"l": 9}),
    Refusal(BUFFERED, RingOverflow, "at least 12", options={"window": 6}),
    Refusal(BUFFERED, ParameterError, "the window holds 5 tokens, but 4 are declared", options={"window": 4}),
    Refusal("commit_window", RingOverflow, "at least 12", options={"window": 6}),
    Refusal("ssd_replay_scan", ParameterError, "the cache holds 11 entries", {"l": 11}),
    Refusal("ssd_replay_scan", RingOverflow, "a window of 5 tokens does not fit the 4 entries", {"l": 8}),
    Refusal(OF_ROWS, ParameterError, "rows", options={"rows": 0}, without="slots"),
    Refusal(OF_ROWS, ParameterError, "rows (and eps )?(is|are) 2", options={"rows": 2}),
    Refusal(OF_ROWS, ParameterError, "rows (and eps )?(is|are) 5", options={"rows": 5}),
    Refusal("commit_flush commit_step", ParameterError, "give at least 1", options={"capacity": 0}),
    # --- what is accepted ---
    Refusal(f"{COMMITS} conv_tree conv_window", ParameterError, "0 of advanced and path", without="advanced path"),
    Refusal(f"{COMMITS} conv_tree conv_window", ParameterError, "2 of advanced and path", without="nothing"),
    Refusal("conv_tree conv_window", ParameterError, "no previous inputs", without="previous path"),
    Refusal(
        "conv_tree conv_window",
        ParameterError,
        "'committed' without previous",
        {},
        {"keep": "committed"},
        "previous path advanced",
    ),
    Refusal("conv_tree conv_window", ParameterError, "keep is 'all'", options={"keep": "all"}),
    Refusal("conv_tree", ParameterError, "keep is 'final'.* no one window", options={"keep": "final"}),
    # --- options ---
    *(
        Refusal(takes("dt_limit"), ParameterError, "0 <= low <= high", options={"dt_limit": x})
        for x in ((0.5, 0.1), (NAN, 1), (-1, 1))
    ),
    *(Refusal(DELTA, ParameterError, "scale and eps are", options={"scale": x}) for x in (0.0, NAN)),
    *(Refusal(f"{DELTA} delta_flush", ParameterError, "eps", options={"eps": x}) for x in (0.0, -1.0, NAN)),
    *(Refusal(takes("A_floor"), ParameterError, "A_floor and eps", options={"eps": x}) for x in (0.0, NAN)),
    *(Refusal(takes("A_floor"), ParameterError, "A_floor and eps", options={"A_floor": x}) for x in (-1.0, NAN)),
    Refusal("kda_commit", ParameterError, "eps is 0.0", options={"eps": 0.0}),
    *(
        Refusal("gated_norm linear_added linear_rows norm", ParameterError, "eps is", options={"eps": x})
        for x in (-1e-6, NAN)
    ),
    *(Refusal("causal_attention tree_attention", ParameterError, "scale is", options={"scale": x}) for x in (0.0, NAN)),
    *(
        Refusal(takes("lower_bound"), ParameterError, "lower_bound is", options={"lower_bound": x})
        for x in (0.0, 1.0, NAN, -float("inf"))
    ),
    Refusal(takes("lower_bound"), ParameterError, "lower_bound is given without A", {}, {"lower_bound": -5.0}, "A dt_bias"),
    Refusal(f"{DELTA} kda_commit", ParameterError, "dt_bias (is given )?without A", without="A"),
    Refusal(takes("products"), ParameterError, "products is 'tf32'; give 'fp32' or 'bf16'", options={"products": "tf32"}),
    Refusal(
        "causal_attention",
        PrecisionError,
        "products is 'bf16' for activations in torch.float32",
        options={"products": "bf16"},
        types={"q": FP32, "K": FP32, "V": FP32},
    ),
    Refusal(
        "ssd_chunk_scan",
        PrecisionError,
        "products is 'bf16' for activations in torch.float32",
        options={"products": "bf16"},
        types={"x": FP32, "B": FP32, "C": FP32},
    ),
    Refusal(
        "delta_chunk_scan",
        PrecisionError,
        "products is 'bf16' for activations in torch.float32",
        options={"products": "bf16"},
        types={"q": FP32, "k": FP32, "v": FP32},
    ),
    Refusal("ssd_chunk_scan delta_chunk_scan", ParameterError, "chunk is 24; give a power of two", options={"chunk": 24}),
    Refusal("ssd_chunk_scan delta_chunk_scan", ParameterError, "chunk is 8; give a power of two", options={"chunk": 8}),
    Refusal("causal_attention", ParameterError, "chunk is 24", options={"block_t": 24}),
    Refusal("delta_chunk_scan", ParameterError, "chunk is 128; give 16, 32 or 64", options={"chunk": 128}),
    Refusal("ssd_chunk_scan", Unsupported, "num_warps is 8 and num_stages is 2", options={"num_warps": 8}),
    Refusal("ssd_chunk_scan", Unsupported, "num_warps is 4 and num_stages is 1", options={"num_stages": 1}),
    Refusal("ssd_chunk_scan delta_chunk_scan", ShapeMismatch, "places hold 2 entries, but the run may have 3", {"c": 2}),
    Refusal("ssd_chunk_scan delta_chunk_scan", ShapeMismatch, "scratch has shape", {"chunks": 2}),
    Refusal(
        "ssd_buffered ssd_tree_scan ssd_window",
        ParameterError,
        "3 heads a program do not divide the 2 heads",
        options={"heads": 3},
    ),
    Refusal(
        "ssd_buffered",
        ParameterError,
        "2 heads a program, 1 warps and 5 tokens; the kernel for short",
        {},
        {"heads": 2, "short": True},
    ),
    Refusal("ssd_buffered", ParameterError, "tiles of 32 channels", options={"block_p": 32, "short": True}),
    Refusal(
        "ssd_buffered",
        ParameterError,
        "1 warps and 9 tokens; the kernel for short windows",
        {"t": 9, "l": 18},
        {"short": True},
    ),
    Refusal("delta_buffered", ParameterError, "a short window has", options={"short": True}),
    Refusal(
        "delta_buffered_step",
        ParameterError,
        "a short ring has 11 entries",
        options={"short": True},
        types={"q": FP32, "k": FP32, "v": FP32, "ring.k": FP32},
    ),
    Refusal(
        "delta_chunked delta_tree",
        ParameterError,
        "they take up to 16 tokens of 128 channels",
        options={"two_launches": True},
        types={"q": FP32, "k": FP32, "v": FP32},
        form=1,
    ),
    Refusal(
        "delta_chunked delta_tree",
        ParameterError,
        "they take up to 16 tokens",
        {"t": 17, "j": 17},
        {"two_launches": True},
        form=1,
    ),
    Refusal(
        "delta_chunked delta_tree",
        ParameterError,
        "they take up to 16 tokens of 128",
        {"k": 129},
        {"two_launches": True},
        form=1,
    ),
    Refusal("ssd_gated ssd_gated_window", ShapeMismatch, "squares has 3 parts, but a token has 4", {"parts": 3}),
    Refusal(
        "ssd_gated ssd_gated_window",
        PrecisionError,
        "may overflow",
        types={"x": torch.float16, "B": torch.float16, "C": torch.float16},
    ),
    Refusal("ssd_gated ssd_gated_window", PrecisionError, "may overflow", types={"out": torch.float16}),
    Refusal("ssd_coded_step", ParameterError, "1 scales for 6 states in blocks of 4", options={"block": 4}),
    Refusal("ssd_coded_step", ParameterError, "blocks of 0", options={"block": 0}),
    Refusal("ssd_coded_step", ParameterError, "call has 2 numbers", {"i": 2}),
    Refusal("gated_norm", ParameterError, "gate is 'tanh'", options={"gate": "tanh"}),
    Refusal("gated_norm", ParameterError, "groups is 0", options={"groups": 0}),
    Refusal("gated_norm", ParameterError, "1 where heads are normed one by one", options={"groups": 2}),
    Refusal("linear_added", ShapeMismatch, "sums has 2 parts, but 14 outputs have 1; give .m, 1.", {"j": 2}),
    Refusal("tree_attention", ParameterError, "split is 40", options={"split": 40}),
    Refusal("tree_attention", ShapeMismatch, "parts holds 3 parts, but 2 are needed", {"part": 3}),
    Refusal(
        "kv_compact", ShapeMismatch, "give a tensor of its own", change=lambda given: {"advanced_length": given["length"]}
    ),
    Refusal("ngram_drafts", ParameterError, "ask for at least 1", options={"tokens": 0}),
    Refusal("ngram_drafts", ParameterError, "ask for at least 1", options={"drafts": 0}),
    Refusal("ngram_drafts", ParameterError, "but the table has 2 to a row", {"k": 2}),
    Refusal("ngram_drafts", ShapeMismatch, "2 drafts were asked for, but there is room for 3", {"m": 3}),
    Refusal("ngram_drafts", ShapeMismatch, "4 tokens and their root were asked for, but there is room for 3", {"i": 3}),
    Refusal("ngram_drafts", ShapeMismatch, "kinds of places", {"a": 1}),
    Refusal("accept_sampled", ParameterError, "law is 'beam'", options={"law": "beam"}),
    Refusal("accept_sampled", ParameterError, "the law naive takes no coins", options={"law": "naive"}),
    Refusal("accept_sampled", ParameterError, "the law point_mass takes no q", options={"law": "point_mass"}),
    Refusal("accept_sampled", ParameterError, "the law without_replacement needs q", without="q"),
    Refusal("accept_sampled", ParameterError, "the law without_replacement needs coins", without="coins"),
]
OPERANDS = {
    "causal_attention": "q K V",
    "delta_buffered": "q k v ring.k",
    "delta_buffered_step": "q k v ring.k",
    "delta_chunk_scan": "q k v",
    "delta_chunked": "q k v",
    "delta_tree": "q k v",
    "kda_tree": "q k v",
    "kv_compact": "K V",
    "linear_rows": "x W",
    "ssd_buffered": "x B C ring.x ring.B",
    "ssd_buffered_step": "x B C ring.x ring.B",
    "ssd_chunk_scan": "x B C",
    "ssd_flush": "ring.x ring.B",
    "ssd_gated_window": "B C",
    "ssd_replay_scan": "x B C cache.x cache.B cache.dt",
    "ssd_tree_scan": "x B C",
    "ssd_window": "x B C",
    "tree_attention": "q k v K V",
}
"""The operands of a launcher's matrix products, or what moves between tensors: of one type."""
ONE_TYPE = "one type|takes one type|q, k, v are|holds torch|they are given|a cache has"
REFUSALS += [
    Refusal(name, PrecisionError, ONE_TYPE, types={operand: torch.float16})
    for name, operands in OPERANDS.items()
    for operand in operands.split()
]
REFUSALS += [Refusal("linear_added", PrecisionError, "takes one type", types={name: FP32}) for name in ("x", "W")]


def cases() -> Iterator[tuple[str, Refusal]]:
    for refusal in REFUSALS:
        yield from ((name, refusal) for name in LAUNCHERS if refusal.holds_for(name))


def raised(launch: Callable[..., object], given: Arguments) -> Exception | None:
    try:
        launch(**given)
    except Exception as error:
        return error
    return None


def check(module: ModuleType, case: tuple[str, Refusal]) -> None:
    """The call raises its error with its message, and every tensor keeps its bits."""
    name, refusal = case
    drawn = forms(name)[min(refusal.form, len(forms(name)) - 1)]
    without = "" if refusal.without == "nothing" else f"{drawn.without} {refusal.without}"
    form = Form({**drawn.sizes, **refusal.sizes}, {**drawn.options, **refusal.options}, without)
    given = call(name, form, types=refusal.types)
    given |= refusal.change(given)
    kept = Kept(**{tensor.replace(".", "_"): x for tensor, x in tensors(name, given).items()})
    error = raised(vars(module)[name], given)
    assert isinstance(error, refusal.error), f"{name} must refuse with {refusal.error.__name__}, but gave {error!r}"
    assert re.search(refusal.message, str(error)), f"{name}: {error}"
    kept.check()


@pytest.mark.parametrize(("name", "refusal"), [*cases()], ids=[f"{name}-{refusal.message[:40]}" for name, refusal in cases()])
def test_a_call_that_a_launcher_cannot_serve_raises_its_error_and_nothing_is_written(name: str, refusal: Refusal) -> None:
    check(LAUNCHERS[name], (name, refusal))


FAULTS = [
    ("kda_tree", "check_one_type(q, k, v)", "check_one_type(q, q, v)"),
    ("tree_attention", "q.dtype == k.dtype == v.dtype", "q.dtype == q.dtype == v.dtype"),
    ("ssd_buffered", "ring.check_types(x, B, C)", "pass"),
    ("delta_flush", 'or axes.get("b", rows) != rows or not eps > 0', 'or axes.get("b", rows) != rows and not eps > 0'),
    ("delta_flush", 'or axes.get("b", rows) != rows or not eps > 0', "or not eps > 0"),
    ("delta_flush", 'or axes.get("b", rows) != rows or not eps > 0', 'or axes.get("b", rows) != rows or eps < 0'),
    ("ssd_scan", "check_limit(self.dt_limit)", "pass"),
    ("delta_scan", "check_bias(A, dt_bias)", "pass"),
]


@pytest.mark.parametrize(("name", "old", "new"), FAULTS, ids=[new for *_, new in FAULTS])
def test_a_planted_gap_in_the_checks_is_caught(name: str, old: str, new: str) -> None:
    assert caught(mutated(LAUNCHERS[name], old, new), check, [(n, refusal) for n, refusal in cases() if n == name])


def test_every_refusal_is_of_a_launcher() -> None:
    assert [r for r in REFUSALS if not any(r.holds_for(name) for name in LAUNCHERS)] == []
    named = {name for r in REFUSALS if isinstance(r.of, str) for name in r.of.split()}
    assert named <= LAUNCHERS.keys()
