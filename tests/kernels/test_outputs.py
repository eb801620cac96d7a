"""The outputs of a launcher: those that were given, returned; where none were given, made with the same bits."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.attention import causal_attention, tree_attention
from ssmspec_kernels.coded import ssd_coded_step
from ssmspec_kernels.conv import conv_packed, conv_step, conv_tree, conv_window
from ssmspec_kernels.delta import delta_chunk_scan, delta_chunked, delta_scan, delta_snapshots, delta_tree
from ssmspec_kernels.delta.ring import delta_buffered, delta_buffered_step
from ssmspec_kernels.kda import kda_scan, kda_snapshots, kda_tree
from ssmspec_kernels.linear import gated_norm, linear_added, linear_rows, norm
from ssmspec_kernels.mamba3 import (
    mamba3_buffered,
    mamba3_packed,
    mamba3_ring,
    mamba3_scan,
    mamba3_snapshots,
    mamba3_tree,
)
from ssmspec_kernels.selective import selective_scan, selective_tree
from ssmspec_kernels.shortconv import (
    shortconv_buffered,
    shortconv_packed,
    shortconv_ring,
    shortconv_scan,
    shortconv_snapshots,
    shortconv_tree,
)
from ssmspec_kernels.ssd import ssd_chunk_scan, ssd_gated, ssd_scan, ssd_snapshots, ssd_tree_scan, ssd_window
from ssmspec_kernels.ssd.replay import ssd_replay_scan
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_buffered_step
from tests.kernels import (
    conv_cases,
    delta_cases,
    delta_rings,
    mamba3_cases,
    selective_cases,
    shortconv_cases,
    ssd_cases,
    ssd_rings,
)
from tests.kernels.mutants import mutated
from tests.kernels.tensors import blank, draw, strided

B, T = 2, 3
"""Rows and tokens of the cases, none of them padding."""
Arguments = dict[str, Any]


def chains(form: str = "parents") -> Tensor:
    """One path a row, by its parents or by its ancestors."""
    return torch.arange(-1, T - 1).repeat(B, 1) if form == "parents" else torch.ones(B, T, T, dtype=torch.bool).tril()


def run(given: Arguments, *names: str) -> Arguments:
    """The rows of a batch as one run, with its bounds."""
    return {n: x.flatten(0, 1).contiguous() if n in names else x for n, x in given.items()} | {
        "bounds": torch.arange(0, B * T + 1, T)
    }


def conv() -> Arguments:
    made = conv_cases.case(conv_cases.Options(b=B, t=T, c=5, padding=False, io="bf16"))
    return {"M": made.M, "u": made.u, "weight": made.weight, **made.settings}


def delta(t: int = T, channel: bool = False) -> Arguments:
    """v is wider than k, and g has no channels of v: an output of another's shape has the wrong one."""
    made = delta_cases.draw(delta_cases.Options(b=B, t=t, g=1, h=2, k=4, v=6, io="bf16", channel=channel), padding=False)
    named = ("S", "q", "k", "v", "g", "beta", "slots", "out")
    return {name: getattr(made, name) for name in named} | made.extra


def delta_ring(t: int = T) -> Arguments:
    o = delta_cases.Options(b=B, t=t, g=1, h=2, k=4, v=6, io="bf16")
    return delta(t) | {"ring": delta_rings.ring_of(o, 7, torch.float32)}


def selective() -> Arguments:
    made = selective_cases.case(selective_cases.Options(b=B, t=T, d=3, n=2, padding=False))
    return made.tensors | made.settings


def short() -> Arguments:
    return shortconv_cases.case(shortconv_cases.Options(b=B, t=T, d=5, padding=False, io="bf16")).tensors


def short_ring() -> Arguments:
    given = short()
    cursors = torch.zeros(len(given["S"]), dtype=torch.int32)
    return given | {"ring": shortconv_ring.Ring(torch.zeros(len(given["S"]), 7, 5), cursors, cursors.clone())}


def mamba3() -> Arguments:
    return mamba3_cases.case(mamba3_cases.Options(b=B, t=T, padding=False, io="bf16")).tensors


def mamba3_run() -> Arguments:
    return run(mamba3(), "x", "dt", "A", "trap", "angle", "B", "C", "out")


def mamba3_held() -> Arguments:
    given = mamba3()
    cursors = torch.zeros(len(given["S"]), dtype=torch.int32)
    room = {n: torch.zeros(len(given["S"]), 7, *given[n].shape[2:]) for n in ("x", "dt", "A", "trap", "angle", "B")}
    return given | {"ring": mamba3_ring.Ring(**room, origin=cursors, held=cursors.clone())}


def ssd_options(t: int) -> ssd_cases.Options:
    return ssd_cases.Options(b=B, t=t, h=2, g=1, p=5, n=4, z=True, io="bf16")


def ssd(t: int = T) -> Arguments:
    made = ssd_cases.draw(ssd_options(t), padding=False)
    return {name: getattr(made, name) for name in ("S", "A", *ssd_cases.TOKENS, "slots", "out")} | made.extra


def ssd_coded() -> Arguments:
    given = {n: x[:, 0] if n in (*ssd_cases.TOKENS, "z", "out") else x for n, x in ssd(1).items() if n != "S"}
    codes = torch.ones(5, 2, 5, 4, dtype=torch.int8)
    return given | {"codes": codes, "scales": torch.ones(5, 2, 5, 1)}


def ssd_ring(t: int = T) -> Arguments:
    return ssd(t) | {"ring": ssd_rings.ring_of(ssd_options(t), 7)}


def replay() -> Arguments:
    given = ssd()
    x, dt, B_kept = (
        torch.zeros(len(given["S"]), 2 * T, *given[name].shape[2:], dtype=torch.bfloat16) for name in ("x", "dt", "B")
    )
    half = torch.zeros(len(given["S"]), dtype=torch.int32)
    return given | {"cache": ssd_replay_scan.Cache(x, dt, B_kept, half), "advanced": torch.zeros(B, dtype=torch.int32)}


def attention() -> Arguments:
    rng = np.random.default_rng(0)
    q, *others = (strided(draw(rng, B, n, h, 5), "bf16") for n, h in ((T, 2), (T, 1), (T, 1), (8, 1), (8, 1)))
    return dict(zip("qkvKV", (q, *others), strict=True)) | {"length": torch.tensor([4, 0]), "out": blank("bf16", B, T, 2, 5)}


def prompt() -> Arguments:
    given = attention()
    return run({name: given[name] for name in ("q", "K", "V", "out")}, "q", "out")


def rows(*names: str, width: int = 6) -> Arguments:
    """x or y (b, t, c), with what a norm or a projection has beside it."""
    rng = np.random.default_rng(0)
    made = {name: strided(draw(rng, B, T, width), "bf16") for name in names}
    return made | {"weight": torch.ones(width), "out": blank("bf16", B, T, width)}


def gated() -> Arguments:
    given = ssd()
    squares = blank("fp32", B, T, ssd_gated.parts(2, 5))
    return given | {"weight": torch.arange(1.0, 11.0).reshape(2, 5), "squares": squares}


def added() -> Arguments:
    """o is no k: an output of another's shape has the wrong one."""
    return projection() | {"residual": torch.ones(B, 9), "weight": torch.ones(9), "sums": blank("fp32", B, 1)}


def projection() -> Arguments:
    x, W = (strided(draw(np.random.default_rng(0), *shape), "bf16", gap=8) for shape in ((B, 16), (9, 16)))
    return {"x": x, "W": W, "out": blank("bf16", B, 9)}


PLACES = {"places": torch.full((B, T), -1)}
OUTPUTS = {ssd_gated: ("out", "squares"), linear_added: ("out", "sums")}
"""Of kernels that have several, what they return."""
CALLS: list[tuple[ModuleType, Callable[[], Arguments]]] = [
    (causal_attention, prompt),
    (conv_packed, lambda: run(conv(), "u", "out")),
    (conv_step, lambda: {n: x[:, 0] if n in ("u", "out") else x for n, x in conv().items()}),
    (conv_tree, lambda: conv() | {"parents": chains()}),
    (conv_window, conv),
    (delta_buffered, delta_ring),
    (delta_buffered_step, lambda: delta_ring(1)),
    (delta_chunk_scan, lambda: run(delta(), "q", "k", "v", "g", "beta", "out")),
    (delta_chunked, delta),
    (delta_scan, delta),
    (delta_snapshots, lambda: delta() | PLACES),
    (delta_tree, lambda: delta() | {"ancestors": chains("ancestors")}),
    (kda_scan, lambda: delta(channel=True)),
    (kda_snapshots, lambda: delta(channel=True) | PLACES),
    (kda_tree, lambda: delta(channel=True) | {"ancestors": chains("ancestors")}),
    (gated_norm, lambda: rows("y", "z")),
    (linear_added, added),
    (linear_rows, projection),
    (mamba3_buffered, mamba3_held),
    (mamba3_packed, mamba3_run),
    (mamba3_scan, mamba3),
    (mamba3_snapshots, lambda: mamba3() | PLACES),
    (mamba3_tree, lambda: mamba3() | {"ancestors": chains("ancestors")}),
    (norm, lambda: rows("x")),
    (selective_scan, selective),
    (selective_tree, lambda: selective() | {"parents": chains()}),
    (shortconv_buffered, short_ring),
    (shortconv_packed, lambda: run(short(), "B", "C", "x", "out")),
    (shortconv_scan, short),
    (shortconv_snapshots, lambda: short() | PLACES),
    (shortconv_tree, lambda: short() | {"parents": chains()}),
    (ssd_buffered, ssd_ring),
    (ssd_buffered_step, lambda: ssd_ring(1)),
    (ssd_coded_step, ssd_coded),
    (ssd_chunk_scan, lambda: run(ssd(), *ssd_cases.TOKENS, "z", "out")),
    (ssd_gated, gated),
    (ssd_replay_scan, replay),
    (ssd_scan, ssd),
    (ssd_snapshots, lambda: ssd() | PLACES),
    (ssd_tree_scan, lambda: ssd() | {"ancestors": chains("ancestors")}),
    (ssd_window, ssd),
    (tree_attention, attention),
]


def check(module: ModuleType, drawn: Callable[[], Arguments], names: tuple[str, ...] = ("out",)) -> None:
    """What is given is returned, and what is made is of its shape, its type, its bits, and nobody else's memory."""
    launcher = getattr(module, module.__name__.rpartition(".")[2])
    given, other = drawn(), drawn()
    dense = {n: torch.full(given[n].shape, float("nan"), dtype=given[n].dtype) for n in names}  # as is made: one variant
    returned, made = launcher(**given | dense), launcher(**other | dict.fromkeys(names))
    if len(names) == 1:
        returned, made = (returned,), (made,)
    taken = {x.untyped_storage().data_ptr() for x in other.values() if isinstance(x, Tensor)}
    for out, came, y in zip(dense.values(), returned, made, strict=True):
        assert came is out
        assert (y.shape, y.dtype) == (out.shape, out.dtype)
        assert torch.isfinite(out).all()
        assert torch.equal(y, out)
        assert y.untyped_storage().data_ptr() not in taken


@pytest.mark.parametrize(("module", "drawn"), CALLS, ids=[module.__name__ for module, _ in CALLS])
def test_outputs_are_those_given_and_otherwise_made(module: ModuleType, drawn: Callable[[], Arguments]) -> None:
    check(module, drawn, OUTPUTS.get(module, ("out",)))


def of_long_rings() -> Arguments:
    return delta_ring(1) | {"short": False}


def test_the_output_of_long_rings_is_the_one_given_and_otherwise_made() -> None:
    check(delta_buffered_step, of_long_rings)


FAULTS = [
    (delta_buffered_step, of_long_rings, "return o\n\n\ndef tile(", "return h\n\n\ndef tile("),
    (ssd_buffered, ssd_ring, "return y\n\n\ndef _launch(", "return z\n\n\ndef _launch("),
    (ssd_buffered_step, lambda: ssd_ring(1), "return y\n\n\ndef tile(", "return x\n\n\ndef tile("),
    (delta_buffered, delta_ring, "torch.empty_like(v)", "torch.empty_like(v, dtype=g.dtype)"),
    (selective_scan, selective, "torch.empty_like(x)", "x"),
    (ssd_gated, gated, "j, dtype=torch.float32, device", "j, dtype=x.dtype, device"),
    (ssd_gated, gated, "if squares is None else squares", "if squares is None else squares.clone()"),
]


@pytest.mark.parametrize(("module", "drawn", "old", "new"), FAULTS, ids=[new[:20] for *_, new in FAULTS])
def test_a_planted_output_is_caught(module: ModuleType, drawn: Callable[[], Arguments], old: str, new: str) -> None:
    with pytest.raises(AssertionError):
        check(mutated(module, old, new), drawn, OUTPUTS.get(module, ("out",)))
