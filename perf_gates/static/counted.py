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
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.registry import Registry

from ..verdicts.gates import Counted, Gates, load
from .kernel_modules import kernel_module

ROWS = 2
SSD = (2, 18, 16, 2)
"""h, p, n, g; all states together hold six equal parts."""
DELTA = (1, 2, 32, 32)
"""g, h, k, v."""
SHORTCONV = (40, 3)
"""d, w."""
MAMBA3 = (2, 6, 8, 1, 2, 1)
"""h, p, n, g, f, r."""
LINEAR = (64, 48)
"""Inputs and outputs of a layer."""
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


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def case(name: str) -> Case:
    """A case by its name in `gates.toml`: a kernel, T=tokens if it takes several, `verify` or `due`.

    Raises: ValueError for a kernel that belongs to no family.
    """
    module, *words = name.split()
    tokens = next((int(w[2:]) for w in words if w.startswith("T=")), 1)
    if module in ("linear_rows", "linear_added"):
        return (linear if module == "linear_rows" else linear_added)(int(words[0][2:]))
    if (family := module.split("_")[0]) not in FAMILIES:
        raise ValueError(f"case is {name!r}; it must be a kernel whose name starts with {', '.join(FAMILIES)} or linear")
    return FAMILIES[family].case(module, tokens, set(words))


def ssd(module: str, t: int, words: set[str]) -> Case:
    h, p, n, g = SSD
    tokens = {"x": bf16(ROWS, t, h, p), "dt": bf16(ROWS, t, h), "B": bf16(ROWS, t, g, n), "C": bf16(ROWS, t, g, n)}
    params = {"A": -torch.rand(h), "D": torch.randn(h), "dt_bias": torch.randn(h), "slots": torch.arange(ROWS).int()}
    cursors = {"origin": torch.zeros(ROWS).int(), "held": torch.full((ROWS,), CAPACITY - t if "due" in words else HELD).int()}
    entries = {
        "ring_x": bf16(ROWS, CAPACITY, h, p),
        "ring_dt": torch.rand(ROWS, CAPACITY, h),
        "ring_B": bf16(ROWS, CAPACITY, g, n),
    }
    made = (lambda: kernel("ssd_ring", "Ring")(*entries.values(), *cursors.values())) if "buffered" in module else None
    return _case(module, t, words, (h, p, n), (h, p, n, g), tokens, params, entries | cursors, made, bf16(ROWS, t, h, p))


def delta(module: str, t: int, words: set[str]) -> Case:
    g, h, k, v = DELTA
    tokens = {"q": bf16(ROWS, t, g, k), "k": bf16(ROWS, t, g, k), "v": bf16(ROWS, t, h, v)}
    tokens |= {"g": -torch.rand(ROWS, t, h), "beta": torch.rand(ROWS, t, h)}
    params = {"slots": torch.arange(ROWS).int()}
    cursors = {"origin": torch.zeros(ROWS).int(), "held": torch.full((ROWS,), CAPACITY - t if "due" in words else HELD).int()}
    entries = {
        "ring_u": bf16(ROWS, CAPACITY, h, v),
        "ring_k": bf16(ROWS, CAPACITY, g, k),
        "ring_g": -torch.rand(ROWS, CAPACITY, h),
    }
    made = (lambda: kernel("delta_ring", "Ring")(*entries.values(), *cursors.values())) if "buffered" in module else None
    return _case(module, t, words, (h, k, v), (g, h, k, v), tokens, params, entries | cursors, made, bf16(ROWS, t, h, v))


def shortconv(module: str, t: int, words: set[str]) -> Case:
    """The state is w - 1 = HELD columns, as many as a ring holds before it must flush: they are all read from it."""
    d, w = SHORTCONV
    tokens = {name: bf16(ROWS, t, d) for name in ("B", "C", "x", "out")}
    params = {"weight": torch.randn(d, w), "bias": torch.randn(d), "slots": torch.arange(ROWS).int()}
    S = torch.randn(ROWS * (1 + t if "snapshots" in module else 1), d, w - 1)
    named: dict[str, Any] = tokens | params
    tensors, left_out, more, sizes = {**named, "S": S}, [*params], dict[str, Any](), (ROWS, t, d, w)
    if "snapshots" in module:
        more["places"] = ROWS + torch.arange(ROWS * t).int().view(ROWS, t)
    if "tree" in module:
        more["parents"] = ((torch.arange(t) - 1) // 2).int().expand(ROWS, t).contiguous()
        sizes = (ROWS, ROWS * t, d, w)
    tensors, left_out, rest = tensors | more, [*left_out, *more], dict[str, Any]()
    if "verify" in words:
        more["write_state"] = rest["write_state"] = False
    if "buffered" in module:
        held = CAPACITY - t if "due" in words else HELD
        cursors = {"origin": torch.zeros(ROWS).int(), "held": torch.full((ROWS,), held).int()}
        u = torch.randn(ROWS, CAPACITY, d)
        more |= {"ring": kernel("shortconv_ring", "Ring")(u, *cursors.values()), "window": t}
        tensors, left_out = tensors | {"u": u} | cursors, [*left_out, *cursors]
        formula = kernel(module, "traffic_bytes")([held] * ROWS, t, d, w, capacity=CAPACITY, window=t)
    else:
        formula = kernel(module, "traffic_bytes")(*sizes, **rest)
    return Case(lambda: kernel(module)(S=S, **named, **more), tensors, "S", tuple(left_out), formula)


def mamba3(module: str, t: int, words: set[str]) -> Case:
    """SISO. Heads share B, C and the angle, and a ring keeps what the projection wrote."""
    h, p, n, g, f, r = MAMBA3
    e, heads, ranks = p * n + f + r * n + p, (h,), (r, g, n)
    shapes = {"x": (h, p), "dt": heads, "A": heads, "trap": heads, "angle": (f,), "B": ranks, "C": ranks, "out": (h, p)}
    tokens = {name: bf16(ROWS, t, *shape) for name, shape in shapes.items()}
    params = {name: torch.randn(n) for name in ("B_norm", "C_norm")} | {"slots": torch.arange(ROWS).int()}
    params |= {name: torch.randn(h, r, n) for name in ("B_bias", "C_bias")} | {"dt_bias": torch.randn(h), "D": torch.randn(h)}
    S = torch.rand(ROWS * (1 + t if "snapshots" in module else 1), h, e)
    given: dict[str, Any] = tokens | params
    tensors, left_out, rest = given | {"S": S}, [*params], dict[str, Any]()
    bytes_of, sizes = kernel(module, "traffic_bytes"), (g, h, p, n, f, r)
    if "snapshots" in module:
        given["places"] = tensors["places"] = ROWS + torch.arange(ROWS * t).int().view(ROWS, t)
        left_out += ["places"]
    if "tree" in module:
        given["ancestors"] = tensors["ancestors"] = ladder(t)
    if "verify" in words:
        given["write_state"] = rest["write_state"] = False
    if "buffered" in module:
        held = CAPACITY - t if "due" in words else HELD
        cursors = {"origin": torch.zeros(ROWS).int(), "held": torch.full((ROWS,), held).int()}
        entries = {name: bf16(ROWS, CAPACITY, *shapes[name]) for name in ("x", "dt", "A", "trap", "angle", "B")}
        given |= {"ring": kernel("mamba3_ring", "Ring")(**entries, **cursors), "window": t}
        tensors |= {f"ring.{name}": x for name, x in entries.items()} | cursors
        left_out += [*cursors]
        formula = bytes_of([held] * ROWS, t, *sizes, capacity=CAPACITY, window=t)
    else:
        formula = bytes_of(ROWS, t, *sizes, **rest)
    return Case(lambda: kernel(module)(S=S, **given), tensors, "S", tuple(left_out), formula)


@dataclass(frozen=True)
class Family:
    """A recurrence whose kernels are counted."""

    name: str
    case: Callable[[str, int, set[str]], Case]


FAMILIES = Registry(
    "family of counted kernels",
    Family("ssd", ssd),
    Family("delta", delta),
    Family("shortconv", shortconv),
    Family("mamba3", mamba3),
)


def _case(
    module: str,
    t: int,
    words: set[str],
    state: tuple[int, ...],
    sizes: tuple[int, ...],
    tokens: dict[str, Tensor],
    params: dict[str, Tensor],
    held: dict[str, Tensor],
    ring: Callable[[], Any] | None,
    out: Tensor,
) -> Case:
    """The launch and the formula of one kernel of either family."""
    snapshots = "snapshots" in module
    S = torch.randn(ROWS * (1 + t if snapshots else 1), *state)
    named: dict[str, Any] = tokens | params | {"out": out}
    tensors, left_out = tokens | params | {"out": out}, (*params, "origin", "held")
    source = "delta_scan" if module == "delta_chunked" else "ssd_scan" if module == "ssd_window" else module
    bytes_of, rest = kernel(source, "traffic_bytes"), {}
    if snapshots:
        named["places"] = tensors["places"] = ROWS + torch.arange(ROWS * t).int().view(ROWS, t)
        left_out = (*left_out, "places")
    if module == "ssd_gated":
        h, p, _, _ = sizes
        named |= {"z": bf16(ROWS, t, h, p), "weight": torch.randn(h, p)}
        named["squares"] = torch.empty(ROWS, t, kernel("ssd_gated", "parts")(h, p))
        tensors, left_out = tensors | {n: named[n] for n in ("z", "weight", "squares")}, (*left_out, "weight")
    if "tree" in module:
        named["ancestors"] = tensors["ancestors"] = ladder(t)
    if "verify" in words:
        named["write_state"] = rest["write_state"] = False
    if ring is not None:
        named["ring"], tensors = ring(), tensors | held
        rows = [int(n) for n in held["held"]]
        several = {"window": t} if "step" not in module else {}
        formula = bytes_of(rows, *([t] if several else []), *sizes, capacity=CAPACITY, **several)
    else:
        formula = bytes_of(ROWS, t, *sizes, **rest)
    return Case(lambda: kernel(module)(S=S, **named), tensors | {"S": S}, "S", left_out, formula)


def linear(rows: int) -> Case:
    tensors = {"x": bf16(rows, LINEAR[0]), "W": bf16(LINEAR[1], LINEAR[0]), "out": bf16(rows, LINEAR[1])}
    call = lambda: kernel("linear_rows")(tensors["x"], tensors["W"], out=tensors["out"])  # noqa: E731
    return Case(call, tensors, "W", (), kernel("linear_rows", "traffic_bytes")(rows, *LINEAR))


def linear_added(rows: int) -> Case:
    (k, o), bytes_of = LINEAR, kernel("linear_added", "traffic_bytes")
    tensors = {"x": bf16(rows, k), "W": bf16(o, k), "residual": torch.randn(rows, o), "weight": bf16(o)}
    tensors |= {"out": bf16(rows, o), "sums": torch.empty(rows, kernel("linear_added", "parts_of")(o))}
    return Case(lambda: kernel("linear_added")(**tensors), tensors, "W", ("weight",), bytes_of(rows, k, o))


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
        os.execve(sys.executable, [sys.executable, "-m", "perf_gates.static.counted"], os.environ | {"TRITON_INTERPRET": "1"})
    sys.exit(main())
