"""The reference tested against itself: by its independent derivations and a rewrite in torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import packed
from ssmspec_ref.contract import FLOAT64, OPERATIONS, Adapter, Capability, Subject
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.layers.recurrences import RECURRENCES, Recurrence
from ssmspec_ref.shapes import Array

from . import torch_fp32
from .reference_parts import acceptance, attention, backtracking, drafts, ranks, sampled_runs, windows
from .reference_parts.pools import no_states, no_windows, over_pools

CHUNK = 4
"""Tokens per chunk: few, so that short cases cross chunk boundaries."""
CHUNKED = replace(FLOAT64, order="chunked", chunk=CHUNK)
AT_ONCE = replace(FLOAT64, order="output_only")

Operation = Callable[..., Any]


def conv_scan_masked(M: Array, u: Array, live: Array, params: ConvParams) -> tuple[Array, Array]:
    return conv_filter.scan(M, u, params, live)


def conv_step(M: Array, u: Array, params: ConvParams) -> tuple[Array, Array]:
    y, M_next = conv_filter.scan(M, u[:, None], params)
    return y[:, 0], M_next


def chunked(module: Any) -> Operation:
    """The chunked scan of a module, with or without a mask."""
    return lambda S, window, params, live=None: module.scan(S, window, params, live, chunk=CHUNK)


def packed_scan(module: Any) -> Operation:
    """A packed run as padded rows, in chunks."""

    def run(S: Array, window: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
        rows, live = packed.unpack(window, np.diff(bounds))
        begin = np.where(fresh.reshape(-1, *[1] * (S.ndim - 1)), 0.0, S)
        y, S_next = module.scan(begin, rows, params, live, chunk=CHUNK)
        return packed.pack(y, live), S_next

    return run


def step(module: Any, kind: type) -> Operation:
    """One token as a window of one."""

    def run(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
        window = kind(**{name: None if a is None else a[:, None] for name, a in vars(token).items()})
        y, S_next = module.scan(S, window, params, chunk=CHUNK)
        return y[:, 0], S_next

    return run


def recurrence(kind: Recurrence) -> Subject:
    """The chunked form and the tree form of one recurrence."""
    name, module = kind.name, kind.chunked
    runs = {
        f"{name}.step": Capability(step(module, kind.window), CHUNKED),
        f"{name}.scan": Capability(chunked(module), CHUNKED),
        f"{name}.scan_masked": Capability(chunked(module), CHUNKED),
        f"{name}.verify_tree": Capability(kind.tree.scan, AT_ONCE),
        f"{name}.scan_packed": Capability(packed_scan(module), CHUNKED),
    }
    return Subject(
        f"{name} chunked",
        {operation: over_pools(run, no_states(kind)) for operation, run in runs.items() if operation in OPERATIONS},
        absent={"": "another part of the reference", "layer": "the second derivations have no layers"},
    )


def adapter(device: str = "cpu") -> Adapter:
    """Every independent derivation in float64, and the recurrences in torch, in float32 and with a bf16 state."""
    conv = Subject(
        "conv filter",
        {
            "conv.step": over_pools(Capability(conv_step, FLOAT64)),
            "conv.scan": over_pools(Capability(conv_filter.scan, FLOAT64), no_windows),
            "conv.scan_masked": over_pools(Capability(conv_scan_masked, FLOAT64), no_windows),
            "conv.verify_tree": over_pools(Capability(conv_tree.scan, FLOAT64)),
        },
        absent={"conv": "one derivation only: it moves columns and computes nothing", "": "another part of the reference"},
    )
    recurrences = map(recurrence, RECURRENCES.values())
    parts = (attention, acceptance, drafts, ranks, sampled_runs)
    paths = (*(part.subject() for part in parts), *windows.subjects(), *backtracking.subjects())
    return Adapter("reference", version(), (conv, *recurrences, *paths, *torch_fp32.subjects(device)))


def version() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("ssmspec")
    except PackageNotFoundError:
        return "checkout"
