"""What a projection that overlaps the launch before it reads or writes before its wait, in the PTX for sm_90, as JSON.

Run by `test_awaited` in a process without the interpreter, for the kernel and for faults planted in it.
"""

import json
from types import ModuleType
from typing import Any

from perf_gates.static import ptx
from perf_gates.static.capture import build, launches_of
from perf_gates.static.entry import FP32, meta
from perf_gates.static.kernel_modules import kernel_module

from .mutants import mutated

FAULTS = {
    "rows are not awaited": ("_block(x, at_x, now,", "_block(x, at_x, k0,"),
    "nothing is awaited": ("now = _awaited(k0, BLOCK_K) if EARLY else k0", "now = k0"),
    "weights are awaited": ("w = _block(W, at_W, k0,", "w = _block(W, at_W, _awaited(k0, BLOCK_K) if EARLY else k0,"),
    "the bias is read before the loop": (
        "    for k0 in tl.range(0, K, BLOCK_K",
        "    acc += tl.load(bias + out, mask=out < o, other=0.0)[None, :, None]\n    for k0 in tl.range(0, K, BLOCK_K",
    ),
}
TWOFOLD = {
    "squares are not awaited": ("alone=squares is None", "alone=True"),
    "the residual is not awaited": ("alone: bool = False", "alone: bool = True"),
}
"""Faults of the other form of the kernel: which launches start early."""


def before_the_wait(module: ModuleType, launcher: str, *shape: int, **given: Any) -> list[str]:
    """The arguments of a launch of 16 rows that are read or written before the first wait; "everything" without one."""
    k, o = shape
    call = lambda: getattr(module, launcher)(meta(16, k), meta(o, k), meta(o), overlap=True, **given)  # noqa: E731
    (launch,) = launches_of(call)
    built = build(launch, 90)
    before, wait, _ = built.compiled.asm["ptx"].partition("griddepcontrol.wait")
    return sorted({name for a in ptx.accesses(before, built.parameters) for name in a.owners}) if wait else ["everything"]


def alone(module: ModuleType) -> dict[str, list[str]]:
    """Of a product with nothing but a bias: the two projections of Mamba2-2.7B, and rows that no copy of 4 bytes fits."""
    shapes = {"in_proj": (2560, 10576), "out_proj": (5120, 2560), "odd": (71, 37)}
    return {name: before_the_wait(module, "linear_rows", *shape) for name, shape in shapes.items()}


def added(module: ModuleType) -> list[str]:
    """Of a projection that ends in the residual."""
    given = {"residual": meta(16, 2560, dtype=FP32), "weight": meta(2560)}
    return before_the_wait(module, "linear_added", 5120, 2560, **given)


def with_squares(module: ModuleType) -> list[str]:
    """Of a projection whose rows come with squares."""
    return before_the_wait(module, "linear_rows", 2560, 10576, squares=meta(16, 160, dtype=FP32))


def main() -> None:
    rows, end = (kernel_module(name) for name in ("linear_rows", "linear_added"))
    squares, residual = TWOFOLD.values()
    print(
        json.dumps(
            {
                "alone": alone(rows),
                "with squares": with_squares(rows),
                "with a residual": added(end),
                "squares are not awaited": with_squares(mutated(rows, *squares)),
                "the residual is not awaited": added(mutated(end, *residual)),
                **{name: alone(mutated(rows, *change)) for name, change in FAULTS.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
