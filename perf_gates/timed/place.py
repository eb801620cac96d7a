"""The names of what the core set measures."""

from perf_gates.verdicts.gates import Core
from perf_gates.verdicts.measured import At

PART = "core_set"


def place(core: Core, which: str) -> At:
    """The measurement of a side."""
    operation = getattr(core, which)
    rows = 1 if operation == "projection of 1" else core.batch
    return At(PART, core.dims, operation, rows)
