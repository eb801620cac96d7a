"""What is judged: everything of the reference that the suite has an operation for, the definitions and the derivations."""

from typing import Any

from ssmspec_ref import conv, delta, selective, ssd, tree_paths
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject
from ssmspec_ref.shapes import Ancestors, Array

from . import unrolled

FILES = (
    *("conv", "conv_filter", "conv_tree", "functions", "decay_matrix", "tree_paths", "unrolled", "packed"),
    *("ssd", "ssd_chunked", "ssd_tree", "ssd_buffered", "delta", "delta_chunked", "delta_tree", "delta_buffered"),
    *("selective", "selective_chunked", "selective_tree", "attention_dense"),
    *("backtrack/snapshots", "backtrack/joint", "backtrack/activation_replay", "backtrack/replay_buffer"),
    *("accept/greedy", "accept/multi_step", "accept/naive", "accept/proposals", "accept/stop"),
)
"""The modules whose equations are judged; what only refuses, records or draws is left to the unit tests."""


def along_paths(module: Any) -> Any:
    """A tree by the plain recurrence along every path."""

    def run(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
        return tree_paths.scan(lambda state, path: module.scan(state, path, params), S, window, ancestors)

    return run


def definitions() -> Subject:
    """The recurrences and the convolution, token by token, and trees path by path."""
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}": Capability(run, FLOAT64)
        for module in (ssd, delta, selective)
        for name, run in (
            *(("step", module.step), ("scan", module.scan), ("scan_masked", module.scan)),
            ("verify_tree", along_paths(module)),
        )
    }
    for name in ("step", "scan", "scan_masked", "commit", "commit_path"):
        found[f"conv.{name}"] = Capability(getattr(conv, name), FLOAT64)
    return Subject("definitions", found, absent={"": "judged as a derivation"})


def adapter(device: str = "cpu") -> Adapter:
    """The definitions, what `conformance.adapters.reference` has in NumPy, and what it has no place for."""
    from conformance.adapters import reference

    derived = [s for s in reference.adapter(device).subjects if not s.name.startswith("torch")]
    return Adapter("oracle", "1", (definitions(), *derived, *unrolled.subjects()))
