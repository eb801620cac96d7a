"""Every global byte of the kernels, counted in Triton's interpreter: `python -m perf_gates.static.counted`, on any machine.

    state reads, writes   the bytes requested from the states, in states: as `gates.toml` names them   (1)
    all bytes             touched at least once, except parameters and cursors: equal to the kernel's
                          `traffic_bytes`                                                         (2)

(1) counts repeated requests, so it shows if a kernel reads its state again, and how much of it.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from conformance.main import run_command
from ssmspec_ref.mamba3 import width

from ..verdicts.gates import Counted, Gates, load
from .entry import BF16, FP32, Kind, assembled
from .kernel_modules import kernel_module
from .rows import Entry, row_of

ROWS = 2
CAPACITY = 9
HELD = 2
"""Tokens in the ring of a row that is not due; a row that must flush has room for exactly one more window."""
SHOWN = 3
"""Accesses outside a tensor, or races, that are printed for a case."""


@dataclass(frozen=True)
class Case:
    """One launch: its arguments, which of them is the state, what (2) leaves out, and what (2) must be."""

    call: Callable[[], object]
    tensors: dict[str, Tensor]
    state: str
    left_out: tuple[str, ...]
    formula: int


@dataclass(frozen=True)
class Found:
    """What was counted. Units: bytes; `state` is that of all rows."""

    case: str
    state: int
    read: int
    written: int
    total: int
    formula: int
    faults: tuple[str, ...] = ()


def kernel(name: str, function: str | None = None) -> Any:
    return getattr(kernel_module(name), function or name)


KINDS = {
    "ssd": Kind("h p n g", {"": (2, 18, 16, 2)}, "D dt_bias slots out squares"),  # all states together hold six equal parts
    "delta": Kind("g h k v", {"": (1, 2, 32, 32)}, "slots out", dict.fromkeys(("g", "beta", "ring.g"), FP32)),
    "shortconv": Kind("d w", {"": (40, 3)}, "bias slots out", {"ring.u": FP32}, derived=lambda axes: {"q": axes["w"] - 1}),
    "mamba3": Kind(
        "g h p n f r",
        {"": (1, 2, 6, 8, 2, 1)},
        "D slots out",
        derived=lambda axes: {"e": width(*(axes[letter] for letter in "pnfr"))},
    ),
    "linear": Kind("k o", {"": (64, 48)}, "out sums", {"weight": BF16, "residual": FP32}),
}
"""The launchers that are counted, by the first word of their names."""


def case(name: str) -> Case:
    """A case by its name in `gates.toml`: a kernel, T=tokens if it takes several, `verify` or `due`, or M=rows of a layer.

    Raises: ValueError for a kernel that belongs to no kind.
    """
    module, *words = name.split()
    number = next((int(w[2:]) for w in words if w[:2] in ("T=", "M=")), 1)
    first = module.split("_")[0]
    if first not in KINDS:
        *others, last = KINDS
        raise ValueError(f"case is {name!r}; it must be a kernel whose name starts with {', '.join(others)} or {last}")
    of, launcher, held = KINDS[first], kernel(module), CAPACITY - number if "due" in words else HELD
    axes = of.axes("", ROWS, number) | {"l": CAPACITY}
    axes |= {"m": number, "j": kernel(module, "parts_of")(axes["o"])} if module == "linear_added" else {"m": number}
    axes |= {"s": ROWS * (1 + number)} if "snapshots" in module else {}
    axes |= {"parts": kernel(module, "parts")(axes["h"], axes["p"])} if module == "ssd_gated" else {}
    row = [e for e in row_of(launcher) if not e.optional or e.parameter in of.give.split()]
    tensors = {e.name: drawn(e, [axes[letter] for letter in of.letters_of(e)], of.dtype(e), held) for e in row}
    more: dict[str, Any] = {"write_state": False} if "verify" in words else {}
    windows: dict[str, Any] = {"window": number} if module.endswith("_buffered") else {}
    left_out = tuple(e.name for e in row if not e.argument.size)
    call = partial(launcher, **assembled(row, tensors), **more, **windows)
    return Case(call, tensors, "W" if first == "linear" else "S", left_out, formula(module, of, number, held, more, windows))


def formula(module: str, of: Kind, number: int, held: int, more: dict[str, Any], windows: dict[str, Any]) -> int:
    """The bytes that a kernel says of its case."""
    source = {"delta_chunked": "delta_scan", "ssd_window": "ssd_scan"}.get(module, module)
    bytes_of, sizes = kernel(source, "traffic_bytes"), of.sizes[""]
    if module.startswith("linear"):
        return int(bytes_of(number, *sizes))
    if "buffered" in module:
        return int(bytes_of([held] * ROWS, *windows.values(), *sizes, capacity=CAPACITY, **windows))
    return int(bytes_of(ROWS, ROWS * number if module == "shortconv_tree" else number, *sizes, **more))


def drawn(entry: Entry, shape: list[int], dtype: torch.dtype, held: int) -> Tensor:
    """Its values: of a short convolution with HELD columns, all that a ring must hold before they are read from it alone."""
    name = entry.name.rpartition(".")[2]
    if dtype.is_floating_point:
        x = torch.rand(shape) if name in ("dt", "beta", "A", "g") else torch.randn(shape)
        return (-x if name in ("A", "g") and dtype == FP32 else x).to(dtype)
    made: dict[str, Callable[[], Tensor]] = {
        "slots": lambda: torch.arange(ROWS),
        "origin": lambda: torch.zeros(shape),
        "held": lambda: torch.full(shape, held),
        "places": lambda: ROWS + torch.arange(torch.Size(shape).numel()).view(shape),
        "parents": lambda: ((torch.arange(shape[-1]) - 1) // 2).expand(shape).contiguous(),
        "ancestors": lambda: ladder(shape[-1]),
    }
    return made[name]().to(dtype)


def ladder(nodes: int) -> Tensor:
    """The ancestors of a full binary tree, for each row."""
    seen = torch.eye(nodes, dtype=torch.bool)
    for i in range(1, nodes):
        seen[i] |= seen[(i - 1) // 2]
    return seen.expand(ROWS, nodes, nodes).contiguous()


def count(name: str, made: Case) -> Found:
    """Runs a case in the interpreter, with its accesses recorded."""
    from conformance.interpreter.faithful import faithful
    from conformance.interpreter.memory import watch

    with faithful(), watch(**made.tensors) as seen:
        made.call()
    left_out = sum(seen.loaded(other).distinct for other in made.left_out)
    state = made.tensors[made.state]
    held = ROWS * state[0].numel() * state.element_size() if made.state == "S" else state.numel() * state.element_size()
    read, written = seen.loaded(made.state).requested, seen.stored(made.state).requested
    faults = (*seen.outside[:SHOWN], *seen.races[:SHOWN])
    return Found(name, held, read, written, seen.distinct_bytes() - left_out, made.formula, faults)


def wrong(found: Found, gate: Counted) -> Iterator[str]:
    """(1) and (2), to the byte."""
    for what, bytes_, states in (("reads", found.read, gate.reads), ("writes", found.written, gate.writes)):
        if bytes_ != states * found.state:
            more = bytes_ - states * found.state
            yield f"{found.case}: {what} {bytes_} bytes of state, {more:+d} of {states} x {found.state}"
    if found.total != found.formula:
        yield f"{found.case}: moves {found.total} bytes, {found.total - found.formula:+d} of its formula"
    yield from (f"{found.case}: {fault}" for fault in found.faults)


def main() -> int:
    """A line of JSON for each case, then what is wrong; 1 if anything is."""
    gates: Gates = load()
    faults: list[str] = []
    for gate in gates.bytes:
        found = count(gate.case, case(gate.case))
        print(json.dumps(asdict(found)), flush=True)
        faults += wrong(found, gate)
    print("\n".join(faults) or f"{len(gates.bytes)} kernels move the bytes of their formulas", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":
        command = [sys.executable, "-m", "perf_gates.static.counted", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"TRITON_INTERPRET": "1"})
    sys.exit(run_command(main))
