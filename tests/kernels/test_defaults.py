"""What a kernel takes where nothing is given: what the oracle's records take, and the full operation."""

import inspect
from types import ModuleType
from typing import Any

import pytest

from perf_gates.static.kernel_modules import homes, kernel_module
from ssmspec_kernels.attention import causal_attention, tree_attention
from ssmspec_kernels.coded import ssd_coded_step
from ssmspec_kernels.conv import conv_packed, conv_step, conv_tree, conv_window
from ssmspec_kernels.delta import delta_chunk_scan, delta_chunked, delta_scan, delta_snapshots, delta_tree
from ssmspec_kernels.delta.ring import delta_buffered, delta_buffered_step, delta_flush
from ssmspec_kernels.kda import kda_commit, kda_scan, kda_snapshots, kda_tree
from ssmspec_kernels.linear import gated_norm, linear_added, linear_rows, norm
from ssmspec_kernels.mamba3 import (
    mamba3_buffered,
    mamba3_commit,
    mamba3_flush,
    mamba3_packed,
    mamba3_scan,
    mamba3_snapshots,
    mamba3_tree,
)
from ssmspec_kernels.selective import selective_scan, selective_tree
from ssmspec_kernels.shortconv import (
    shortconv_buffered,
    shortconv_packed,
    shortconv_scan,
    shortconv_snapshots,
    shortconv_tree,
)
from ssmspec_kernels.ssd import (
    ssd_chunk_scan,
    ssd_commit,
    ssd_gated,
    ssd_gated_window,
    ssd_scan,
    ssd_snapshots,
    ssd_tree_scan,
    ssd_window,
)
from ssmspec_kernels.ssd.replay import ssd_replay_scan
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_buffered_step
from ssmspec_ref.attention import AttentionParams
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.norm import GatedNorm, Norm
from ssmspec_ref.mamba3 import Mamba3Params
from ssmspec_ref.selective import SelectiveParams
from ssmspec_ref.shortconv import ShortConvParams
from ssmspec_ref.ssd import SSDParams
from tests.kernels.mutants import mutated

RECORDS: dict[type, tuple[ModuleType, ...]] = {
    AttentionParams: (causal_attention, tree_attention),
    ConvParams: (conv_packed, conv_step, conv_tree, conv_window),
    DeltaParams: (
        delta_buffered, delta_buffered_step, delta_chunk_scan, delta_chunked, delta_flush, delta_scan, delta_snapshots,
        delta_tree, kda_commit, kda_scan, kda_snapshots, kda_tree,
    ),
    GatedNorm: (gated_norm,),
    Mamba3Params: (
        mamba3_buffered, mamba3_commit, mamba3_flush, mamba3_packed, mamba3_scan, mamba3_snapshots, mamba3_tree,
    ),
    Norm: (linear_added, linear_rows, norm),
    SelectiveParams: (selective_scan, selective_tree),
    ShortConvParams: (shortconv_buffered, shortconv_packed, shortconv_scan, shortconv_snapshots, shortconv_tree),
    SSDParams: (
        ssd_buffered, ssd_buffered_step, ssd_chunk_scan, ssd_commit, ssd_gated, ssd_gated_window, ssd_replay_scan, ssd_scan,
        ssd_snapshots, ssd_tree_scan, ssd_window, ssd_coded_step,
    ),
}  # fmt: skip
"""The record that holds a layer's parameters, and the kernels that take them one by one."""
STATED = {"write_state": True, "output_only": True, "fused": True, "append": False, "products": "fp32"}
"""Of no record: the state is written, products are those of fp32, a cache is not extended."""
PAIRS = [(record, module) for record, modules in RECORDS.items() for module in modules]


def defaults(function: Any) -> dict[str, Any]:
    """The parameters that need not be given, and what they are then."""
    given = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in given if p.default is not inspect.Parameter.empty}


def check(record: type, module: ModuleType) -> None:
    """Every default that the record or `STATED` has too is the same in the launcher."""
    name = module.__name__.rpartition(".")[2]
    wanted, found = defaults(record) | STATED, defaults(getattr(module, name))
    shared = wanted.keys() & found.keys()
    assert shared, f"{name} shares no default with {record.__name__}"
    assert {p: found[p] for p in shared} == {p: wanted[p] for p in shared}


@pytest.mark.parametrize(("record", "module"), PAIRS, ids=[module.__name__ for _, module in PAIRS])
def test_defaults_are_those_of_the_oracle(record: type, module: ModuleType) -> None:
    check(record, module)


def test_every_launcher_with_such_a_default_is_listed() -> None:
    known = STATED.keys() | {name for record in RECORDS for name in defaults(record)}
    launchers = {name: getattr(kernel_module(name), name, None) for name in homes()}
    found = {name for name, run in launchers.items() if inspect.isfunction(run) and defaults(run).keys() & known}
    assert found == {module.__name__.rpartition(".")[2] for _, module in PAIRS}


ELEMENTS = {"state": 4, "gate": 4, "io": 2, "index": 8, "code": 1}
"""Bytes: states and gates are fp32, activations bf16, indices int64, codes int8."""
UNSAID = {"z": False, "bias": False, "channel": False, "tree": False, "ended": False, "parts": 0, "eos": 0, "table": 0}
"""What not every call has is not counted."""
OWN: dict[str, dict[str, Any]] = {
    "delta_buffered": {"u": 2}, "delta_buffered_step": {"u": 2}, "delta_flush": {"u": 2}, "delta_ring": {"u": 2},
    "shortconv_buffered": {"u": 4}, "shortconv_flush": {"u": 4}, "gated_norm": {"z": 2, "out": 2},
    "linear_added": {"residual": 4}, "norm": {"residual": 0}, "ngram_drafts": {"slots": True},
    "delta_chunk_scan": {"chunk": 32},
}  # fmt: skip
"""Entries of a ring are bf16 for the delta rule, fp32 for a short convolution; a norm's gate and result are bf16."""


def formulas(module: ModuleType) -> list[Any]:
    return [getattr(module, name) for name in ("traffic_bytes", "entry_bytes") if hasattr(module, name)]


def check_bytes(module: ModuleType, formula: Any) -> None:
    """Elements have the types above where nothing is said; a choice of the launcher is the one that it makes."""
    name = module.__name__.rpartition(".")[2]
    found, run = defaults(formula), getattr(module, name, None)
    chosen = defaults(run) if inspect.isfunction(run) else {}
    wanted = {p: x for p, x in (chosen | UNSAID | ELEMENTS | OWN.get(name, {})).items() if p in found}
    assert found == wanted


def test_bytes_are_counted_for_fp32_states_and_bf16_activations() -> None:
    counted = [(module, formula) for module in map(kernel_module, homes()) for formula in formulas(module)]
    assert sum(bool(defaults(formula).keys() & {"state", "io"}) for _, formula in counted) > 20
    for module, formula in counted:
        check_bytes(module, formula)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (ssd_snapshots, "state: int = 4, io: int = 2, z", "state: int = 4, io: int = 3, z"),
        (ssd_buffered, "z: bool = False,\n)", "z: bool = True,\n)"),
        (gated_norm, "z: int = 2, out", "z: int = 1, out"),
        (conv_packed, "io: int = 2, write_state: bool = True", "io: int = 2, write_state: bool = False"),
    ],
)
def test_a_planted_default_of_bytes_is_caught(module: ModuleType, old: str, new: str) -> None:
    mutant = mutated(module, old, new)
    with pytest.raises(AssertionError):
        check_bytes(mutant, mutant.traffic_bytes)


FAULTS = [
    (SelectiveParams, selective_tree, "dt_softplus: bool = True", "dt_softplus: bool = False"),
    (DeltaParams, delta_chunked, "eps: float = 1e-6", "eps: float = 2e-6"),
    (SSDParams, ssd_scan, "write_state: bool = True,\n", "write_state: bool = False,\n"),
    (
        SSDParams,
        ssd_window,
        'dt_limit: tuple[float, float] = (0.0, float("inf"))',
        "dt_limit: tuple[float, float] = (0.0, 1.0)",
    ),
]


@pytest.mark.parametrize(("record", "module", "old", "new"), FAULTS, ids=[new for *_, new in FAULTS])
def test_a_planted_default_is_caught(record: type, module: ModuleType, old: str, new: str) -> None:
    mutant = mutated(module, old, new)
    with pytest.raises(AssertionError):
        check(record, mutant)
