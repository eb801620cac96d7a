"""A call of every launcher, drawn from its row: each tensor that the row names, in its types, with gaps and guards around it.

What a row does not say stands here: sizes that depend on each other, numbers that are no tensors, and what integers mean.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import ssmspec_kernels
from ssmspec_kernels.row import FP32, Argument, Entry, row_of
from ssmspec_kernels.ssd import ssd_gated
from tests.kernels.tensors import GUARD

Arguments = dict[str, Any]


def launchers() -> Iterator[tuple[str, ModuleType]]:
    """Every launcher of the package by its name, and its module."""
    for found in pkgutil.walk_packages(ssmspec_kernels.__path__, "ssmspec_kernels."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if inspect.isfunction(value) and hasattr(value, "row") and value.__module__ == module.__name__:
                yield name, module


LAUNCHERS = dict(launchers())
SIZES = {"s": 6, "b": 3, "t": 5, "h": 4, "g": 2, "p": 3, "n": 6, "k": 7, "v": 9, "d": 10, "c": 11, "w": 4, "q": 3, "l": 11}
SIZES |= {"e": 8, "f": 2, "r": 2, "u": 12, "i": 13, "o": 14, "m": 3, "j": 5, "kept": 18, "parts": 4}
"""One row, token and head each more than its groups; as many columns of a mask as nodes."""
RUN = {"t": 9, "m": 4}
"""A packed run of three sequences."""
MAMBA3 = {"h": 2, "g": 1, "e": 3 * 6 + 2 + 2 * 6 + 3, "i": 2}
PATH, DUE = {"l": 3, "i": 2}, {"t": 1, "l": 3}


@dataclass(frozen=True)
class Form:
    """How a launcher is called: the sizes that differ, what is no tensor, what is left out, the type of the activations."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    without: str = ""
    io: torch.dtype = torch.bfloat16


ROWS = {"rows": 3}
FORMS: dict[str, list[Form]] = {
    "accept_sampled": [
        Form(options={"law": "without_replacement"}),
        Form(options={"law": "point_mass"}, without="q"),
        Form(options={"law": "naive"}, without="q coins"),
    ],
    "causal_attention": [Form(RUN)],
    "commit_flush": [Form(options={"capacity": 11} | ROWS)],
    "commit_halves": [Form(options=ROWS)],
    "commit_step": [Form(options={"capacity": 3} | ROWS)],
    "commit_window": [Form(options={"capacity": 11, "window": 5})],
    "conv_commit": [Form(PATH, without="path"), Form(PATH, without="advanced")],
    "conv_packed": [Form(RUN)],
    "conv_tree": [Form(PATH, {"keep": "committed"}, "path"), Form(PATH, {"keep": "committed"}, "advanced")],
    "conv_window": [Form(PATH, without="path"), Form(PATH, without="advanced")],
    "delta_buffered": [Form()],
    "delta_buffered_step": [Form({"t": 1}), Form(DUE)],
    "delta_chunk_scan": [Form(RUN | {"c": 3, "chunks": 3, "rows": 34, "tokens": 16}, {"chunk": 16, "block_v": 16})],
    "delta_chunked": [Form(without="solved"), Form({"parts": 1536, "factors": 64}, {"two_launches": True})],
    "delta_flush": [Form(options=ROWS)],
    "delta_tree": [Form(without="solved"), Form({"parts": 1536, "factors": 64}, {"two_launches": True})],
    "kda_commit": [Form(PATH, without="path"), Form(PATH, without="advanced")],
    "kda_tree": [Form({"pair": 2, "nodes": 16})],
    "linear_added": [Form({"j": 1, "i": 2})],
    "mamba3_buffered": [Form(MAMBA3)],
    "mamba3_commit": [Form(MAMBA3 | {"k": 3}, without="path"), Form(MAMBA3 | {"k": 3}, without="advanced")],
    "mamba3_flush": [Form(MAMBA3, ROWS)],
    "mamba3_packed": [Form(MAMBA3 | RUN)],
    "mamba3_scan": [Form(MAMBA3)],
    "mamba3_snapshots": [Form(MAMBA3 | {"s": 18})],
    "mamba3_tree": [Form(MAMBA3)],
    "ngram_drafts": [Form({"m": 2, "i": 4, "k": 3, "n": 2, "a": 2, "v": 13}, {"tokens": 3, "drafts": 2})],
    "shortconv_commit": [Form(PATH, without="path"), Form(PATH, without="advanced")],
    "shortconv_flush": [Form(options=ROWS)],
    "shortconv_packed": [Form(RUN)],
    "shortconv_snapshots": [Form({"s": 18})],
    "ssd_buffered": [Form()],
    "ssd_buffered_step": [Form({"t": 1}), Form(DUE)],
    "ssd_chunk_scan": [Form(RUN | {"c": 3, "chunks": 3, "numbers": 50}, {"chunk": 16, "block_n": 16, "walk_p": 16})],
    "ssd_coded_step": [Form({"j": 1, "i": 1}, {"block_p": 4})],
    "ssd_commit": [Form(PATH | {"e": 2}, without="path"), Form(PATH | {"e": 2}, without="advanced")],
    "ssd_flush": [Form(options=ROWS)],
    "ssd_gated": [Form({"parts": ssd_gated.parts(4, 3)})],
    "ssd_gated_window": [Form({"parts": 4}, {"block_p": 16})],
    "ssd_replay_scan": [Form({"l": 10, "k": 4})],
    "delta_snapshots": [Form({"s": 18})],
    "ssd_snapshots": [Form(), Form({"s": 18}, without="pool")],
    "kda_snapshots": [Form({"s": 18})],
    "tree_attention": [Form({"part": 2}, {"append": True, "split": 16, "block_l": 16})],
}
"""The calls of each launcher; together they give every tensor of its row. Any other has one call, without `Form`."""


def forms(name: str) -> list[Form]:
    return FORMS.get(name, [Form()])


def call(
    name: str, form: Form, row: tuple[Entry, ...] | None = None, types: Mapping[str, torch.dtype] | None = None
) -> Arguments:
    """The arguments of a call; `types` of tensors that have another than `typed`, `row` instead of the launcher's own."""
    row = row_of(vars(LAUNCHERS[name])[name]) if row is None else row
    left_out, found = form.without.split(), SIZES | dict(form.sizes)
    found |= pool_of([entry for entry in row if entry.parameter not in left_out], found)
    drawn = {}
    for at, entry in enumerate(row):
        if entry.parameter not in left_out:
            dtype = (types or {}).get(entry.name, typed(entry.argument, form.io))
            shape = [found[letter] for letter in entry.argument.forms[0]]
            drawn[entry.name] = placed(values(entry, shape, found, at, dtype), entry.argument, at)
    return assembled(row, drawn, found) | dict(form.options)


def pool_of(given: list[Entry], found: Mapping[str, int]) -> dict[str, int]:
    """The pool that `places` point into, and the last slot that rows take: no place is one of the slots."""
    apart = any("kept" in entry.argument.axes.split() for entry in given)
    shared = any(entry.name == "places" for entry in given) and not apart
    return {"pool": found["kept" if apart else "s"], "last": 2 if shared else found["s"] - 1}


def typed(argument: Argument, io: torch.dtype) -> torch.dtype:
    """Activations in their type if they may have it, states in fp32, integers in 32 bits if they may be."""
    return io if io in argument.types and argument.size in ("io", "z", "out", "u", "bf16") else argument.types[0]


def assembled(row: tuple[Entry, ...], drawn: Mapping[str, Tensor], found: Mapping[str, int]) -> Arguments:
    """The tensors as a launcher takes them: those of a record in one. A field that the launcher does not take is unfit."""
    made: Arguments = {}
    for entry in row:
        if entry.name in drawn and entry.record is None:
            made[entry.parameter] = drawn[entry.name]
        elif entry.name in drawn and entry.record is not None and entry.parameter not in made:
            names = [str(i) for i in range(2)] if entry.record is tuple else [*entry.record.__annotations__]
            parts = [drawn.get(f"{entry.parameter}.{name}", torch.full((0,), float("nan"))) for name in names]
            made[entry.parameter] = tuple(parts) if entry.record is tuple else entry.record(*parts)
    return made


def tensors(name: str, given: Arguments) -> dict[str, Tensor]:
    """The tensors of a call by the names of the row."""
    found = {entry.name: entry.of(given) for entry in row_of(vars(LAUNCHERS[name])[name])}
    return {name: x for name, x in found.items() if x is not None}


def replaced(given: Arguments, entry: Entry, x: Tensor) -> Arguments:
    """The arguments of a call with another tensor in the place of one."""
    if entry.place is None:
        return given | {entry.parameter: x}
    record = given[entry.parameter]
    parts = [*(record if isinstance(record, tuple) else record.tensors)]
    parts[entry.place] = x
    return given | {entry.parameter: tuple(parts) if type(record) is tuple else type(record)(*parts)}


def placed(x: Tensor, argument: Argument, at: int, poison: float = float("nan"), widths: int = 3) -> Tensor:
    """The values in memory of their own, guards around them, and gaps of another width for each tensor where there may be: on
    the last axis too, if its stride is read. `poison` lies in both, and gaps have so many `widths`."""
    gap = 0 if argument.layout == "whole" else 1 + at % widths
    step = 1 if argument.layout or x.dim() == 1 or (x.dim() > 2 and x.dtype.is_floating_point) else 2
    wide = [n + gap for n in x.shape[:-1]] + [step * x.shape[-1] + (2 + gap if x.dim() > 1 and gap else 0)]
    size = torch.Size(wide).numel()
    guard = max(GUARD, size)
    view = unfit(size + 2 * guard, x.dtype, poison)[guard:-guard].view(wide)
    return view[tuple(slice(0, n) for n in x.shape[:-1])][..., : step * x.shape[-1] : step].copy_(x)


def unfit(count: int, dtype: torch.dtype, poison: float = float("nan")) -> Tensor:
    """What must not be read: NaN or another `poison`, or far integers."""
    if dtype.is_floating_point:
        return torch.full((count,), poison, dtype=dtype)
    return torch.full((count,), True if dtype == torch.bool else 101, dtype=dtype)


def values(entry: Entry, shape: list[int], found: Mapping[str, int], at: int, dtype: torch.dtype) -> Tensor:
    """What a tensor holds: by its name where that means something; an output is unfit; numbers are small otherwise."""
    argument, name = entry.argument, entry.name.rpartition(".")[2]
    if not argument.read:
        return unfit(torch.Size(shape).numel(), dtype).view(shape)
    if not dtype.is_floating_point:
        return whole(name, shape, found).to(dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(at))
    if name in ("g",) or (name == "A" and argument.types == FP32):
        x = -x.abs() - 0.1
    elif name in ("beta", "coins", "picks", "scales", "squares") or (name == "dt" and argument.types == FP32):
        x = x.abs().clamp(0.05, 0.95)
    elif name in ("p", "q") and argument.types == FP32:
        x = torch.softmax(x, -1)
    return x.to(dtype)


def whole(name: str, shape: list[int], found: Mapping[str, int]) -> Tensor:
    """Integers and marks, by what they mean. The last slot, or the last place, and the last token of a run are taken: an
    offset of 32 bits is seen there only."""
    b, t, l, last = shape[0], found["t"], found["l"], found["last"]
    first = torch.arange(b)
    number = torch.arange(torch.Size(shape).numel()).reshape(shape)
    chain = torch.arange(shape[-1])
    known: dict[str, Callable[[], Tensor]] = {
        "slots": lambda: torch.tensor([1, last, 0])[:b],
        "targets": lambda: torch.tensor([1, last, 0])[:b],
        "places": lambda: found["pool"] - number.numel() + number,
        "live": lambda: number % 3 != 1,
        "fresh": lambda: first % 2 == 1,
        "lengths": lambda: (t - first % 2).clamp(min=1),
        "advanced": lambda: 1 + first % 2,
        "path": lambda: torch.where(chain < 2, 2 * chain, -1).expand(shape),
        "rows": lambda: first.flip(0),
        "bounds": lambda: torch.tensor([0, 2, t - 1, t])[:b],
        "parents": lambda: ((chain - 1) // 2).expand(shape),
        "ancestors": lambda: torch.ones(shape, dtype=torch.bool).tril(),
        "length": lambda: 5 + first % 2,
        "origin": lambda: l - 1 - first % 2,
        "held": lambda: 1 + first % 2,
        "half": lambda: first % 2,
        "budget": lambda: 9 + first,
        "ended": lambda: first % 4 == 3,
        "sequences": lambda: number % 3,
    }
    return known[name]() if name in known else number % 7
