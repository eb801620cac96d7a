"""The calls of a tree of this repository, of this revision or an older one: `python -m NAME.digest.measured`.

NAME is the package that holds this code; the tree is first on the path. What it prints, as JSON, by name:

    calls      of every measurement, by part/shape/operation/batch, the digest of its call                     (1)
               and of its inputs                                                                              (2)
    entries    of every entry of the catalogue, the digest of its call                                        (3)
    machine    of those that are asked for, the digest of their call as machine code                          (4)
    kernels    of every entry the kernels that it launches, each with a hash of its source; if asked for      (5)

In a case of a part, each graph that is timed is one measurement, if there are as many, in their order; otherwise all are one
call. A time may be a small multiple of its graph's. A step of the engine is one call, in a model of two blocks of each kind.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from ..static.on_device import on_device as device
from .calls import Call, Calls, calls
from .launches import Codes, ir, machine_code
from .texts import digest

H200 = 90
CORE, ENGINE = "core_set", "bench"
Row = tuple[str, list[Call]]
"""The name of a measurement, and its calls."""


def found(*names: str) -> Any:
    """The first of some modules that the tree has. Raises: ImportError."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError(f"the tree has none of {', '.join(names)}")


def part(name: str) -> Iterator[Row]:
    """(1) and (2) of a part."""
    clock = found("perf_gates.gpu.clock", "perf_gates.clock")
    module = found(f"perf_gates.gpu.kernels.{name}", f"perf_gates.gpu.{name}")
    recording: list[Calls] = []
    timed: list[Call] = []

    def graph_us(launches: Sequence[Callable[[], object]], *_: Any, **__: Any) -> float:
        with recording[-1].call() as call:
            for launch in (*launches[:2], launches[-1]):
                launch()
        timed.append(call)
        return 10.0 ** len(timed)

    for imported in [held for held in sys.modules.values() if hasattr(held, "graph_us")]:
        vars(imported)["graph_us"] = graph_us
    for function in [name for name in vars(module) if name.endswith("_float64")]:
        vars(module)[function] = lambda *_: None  # thousands of operators, for a comparison that `compiling` leaves out
    for case in module.cases():
        timed.clear()
        with device(H200), clock.compiling(), calls() as recorded:
            recording.append(recorded)
            timings = module.timings(*case)
        if timings and not timed:
            raise RuntimeError(f"{name}, {case}: no graph is timed, so that nothing tells its code")
        one_each = len(timings) == len(timed) and all(0.2 < t.us / 10.0**i < 5 for i, t in enumerate(timings, 1))
        for timing, call in zip(timings, timed if one_each else [None] * len(timings), strict=True):
            yield f"{name}/{timing.model}/{timing.operation}/{timing.batch}", [call] if call else [*timed]


def engine(names: list[str] | None = None) -> Iterator[Row]:
    """The same of steps of the engine, but not of other projects' models. `names`: only these."""
    clock = found("perf_gates.gpu.clock")
    module, engines = found(f"perf_gates.gpu.engine.{ENGINE}"), found("perf_gates.gpu.engine.engines")
    stepping, timed = module.stepping, list[Call]()
    for (step,) in module.cases():
        name = f"{ENGINE}/{step.model}/{step.operation}/{step.batch // step.leaves}"
        if not wanted(name, names):
            continue
        timed.clear()
        engines._models.clear()  # each step draws its own weights, whichever step came before it
        with device(H200), clock.compiling(), calls() as recorded:

            def recording(*given: Any, recorded: Calls = recorded) -> Callable[[], None]:
                run = stepping(*given)

                def call() -> None:
                    with recorded.call() as made:
                        run()
                    timed.append(made)

                return call

            module.stepping = recording
            module.timings(step)
        if timed:
            yield name, [*timed]


def core() -> Iterator[Row]:
    """The same of the core set."""
    sides, gates = found("perf_gates.gpu.core"), found("perf_gates.verdicts.gates", "perf_gates.gates")
    clock = found("perf_gates.gpu.clock", "perf_gates.clock")
    for pair in gates.load().core:
        for operation in dict.fromkeys((pair.over, pair.under)):
            with device(H200), clock.compiling(), calls() as recorded:
                side = sides.side(pair.dims, operation, pair.batch)
                with recorded.call() as call:
                    side.call()
            rows = 1 if operation == "projection of 1" else pair.batch  # as `timed.place` names it
            yield f"{CORE}/{pair.dims}/{operation}/{rows}", [call]


def entries() -> Iterator[Row]:
    """(3)"""
    for entry in found("perf_gates.static.catalogue", "perf_gates.catalogue").entries():
        if H200 in entry.on:
            with device(H200), calls() as recorded:
                entry.call()
            yield entry.name, [recorded.now]


def wanted(name: str, names: list[str] | None) -> bool:
    """Whether names have this one, or the launcher of an entry."""
    return names is None or name in names or name.split(" ")[0] in names


def kernels(call: Call) -> dict[str, str]:
    """(5)"""
    return {launch.name: digest(launch.kernel.cache_key) for _, launch in call.events if launch}


def main() -> None:
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    rows_of: dict[str, Callable[[], Iterator[Row]]] = {CORE: core, ENGINE: partial(engine, asked["names"])}
    irs = Codes(ir, folder)
    # Of equal Triton IR the machine code is made once, unless that is in question.
    machine = Codes(machine_code, folder) if asked["apart"] else Codes(machine_code, folder, lambda *launch: (irs(*launch),))
    found: dict[str, dict[str, Any]] = {"calls": {}, "entries": {}, "machine": {}, "kernels": {}}
    with redirect_stdout(sys.stderr):
        for kind, rows in (
            ("calls", (row for name in asked["parts"] for row in (rows_of[name]() if name in rows_of else part(name)))),
            ("entries", entries() if asked["entries"] else ()),
        ):
            for name, made in rows:
                if wanted(name, asked["names"]):
                    call = joined([call.digest(irs, H200) for call in made])
                    inputs = joined([call.inputs for call in made])
                    found[kind][name] = f"{call} {inputs[:8]}" if kind == "calls" else call
                    if name in asked["machine"]:
                        found["machine"][name] = joined([call.digest(machine, H200) for call in made])
                    if kind == "entries" and asked["apart"]:
                        found["kernels"][name] = kernels(*made)
    print(json.dumps(found))


def joined(digests: list[str]) -> str:
    return digests[0] if len(digests) == 1 else digest(" ".join(digests))


if __name__ == "__main__":
    main()
