"""What is judged: everything of the reference that the suite has an operation for, the definitions and the derivations."""

from typing import Any

from ssmspec_ref import conv, delta, mamba3, selective, shortconv, ssd
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject
from ssmspec_ref.shapes import Ancestors, Array
from ssmspec_ref.tree import paths as tree_paths

from . import unrolled

FILES = {
    "conv": "conv/__init__",
    "conv_filter": "conv/filter",
    "conv_tree": "conv/tree",
    "functions": "functions",
    "decay_matrix": "decay_matrix",
    "tree_paths": "tree/paths",
    "unrolled": "tree/token_decays",
    "packed": "packed",
    "ssd": "ssd/__init__",
    "ssd_chunked": "ssd/chunked",
    "ssd_tree": "ssd/tree",
    "ssd_buffered": "ssd/buffered",
    "delta": "delta/__init__",
    "delta_chunked": "delta/chunked",
    "delta_tree": "delta/tree",
    "delta_buffered": "delta/buffered",
    "selective": "selective/__init__",
    "selective_chunked": "selective/chunked",
    "selective_tree": "selective/tree",
    "selective_buffered": "selective/buffered",
    **{f"shortconv{name and f'_{name}'}": f"shortconv/{name or '__init__'}" for name in ("", "chunked", "tree", "buffered")},
    **{f"mamba3{name and f'_{name}'}": f"mamba3/{name or '__init__'}" for name in ("", "chunked", "tree", "buffered")},
    "attention_dense": "attention/dense",
    **{name: f"backtrack/{name}" for name in ("snapshots", "joint", "activation_replay", "replay_buffer")},
    **{name: f"accept/{name}" for name in ("greedy", "multi_step", "naive", "proposals", "stop")},
}
"""The modules whose equations are judged, by the names that breaks are recorded under. What only refuses, records or draws
is left to the unit tests."""


def along_paths(module: Any) -> Any:
    """A tree by the plain recurrence along every path."""

    def run(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
        return tree_paths.scan(lambda state, path: module.scan(state, path, params), S, window, ancestors)

    return run


def definitions() -> Subject:
    """The recurrences and the convolution, token by token, and trees path by path."""
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}": Capability(run, FLOAT64)
        for module in (ssd, delta, selective, shortconv, mamba3)
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
