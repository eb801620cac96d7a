"""Mamba-3 over a window, with the state after every token: the baseline for all other methods.

    S_0 = S[slots],  S_t and y_t as in `mamba3_scan`        S[places_t] = S_t

S_t are all four pieces, so a rejected token costs nothing afterwards: the next window starts from the place of the last
accepted token. The kernel is that of `mamba3_scan`, with a store after each token; the pieces are carried in fp32 and rounded
only when they are stored.

Layout: S (s, h, e), one pool for the states before and after; places (b, t). Nothing is stored for a negative place.
Bound by the bytes of the states: one read, t writes.
"""

from typing import Annotated

import torch
from torch import Tensor

from ..row import Axes, Live, Slots, launcher, points
from . import mamba3_inputs as mamba3
from .mamba3_inputs import check_window
from .mamba3_scan import launch
from .mamba3_scan import traffic_bytes as scan_bytes


def traffic_bytes(
    b: int, t: int, g: int, h: int, p: int, n: int, f: int, r: int, *, state: int = 4, io: int = 2, z: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows that keep every state.

    Units: bytes; `state` and `io` are the bytes of an element; `z` says that the outputs are gated.
    """
    kept = b * t * h * (p * n + f + r * n + p) * state
    return scan_bytes(b, t, g, h, p, n, f, r, state=state, io=io, z=z, write_state=False) + kept


@launcher
def mamba3_snapshots(
    axes: Axes,
    S: mamba3.State,
    x: mamba3.Heads,
    dt: mamba3.PerHeads,
    A: mamba3.PerHeads,
    trap: mamba3.PerHeads,
    angle: mamba3.Angles,
    B: mamba3.Projs,
    C: mamba3.Projs,
    B_norm: mamba3.Norm,
    C_norm: mamba3.Norm,
    B_bias: mamba3.RankBias,
    C_bias: mamba3.RankBias,
    dt_bias: mamba3.PerHead,
    places: Annotated[Tensor, points("b t")],
    *,
    D: mamba3.PerHead | None = None,
    z: mamba3.Heads | None = None,
    up: mamba3.Map | None = None,
    gate: mamba3.Map | None = None,
    down: mamba3.Map | None = None,
    A_floor: float = 1e-4,
    eps: float = 1e-5,
    halves: bool = False,
    slots: Slots | None = None,
    live: Live | None = None,
    out: mamba3.Outputs | None = None,
    num_warps: int | None = None,
) -> Tensor:
    """Scans a window from S[slots], stores the state after token t in S[places[b, t]], returns the outputs (b, t, h, p).

    The other arguments are those of `mamba3_scan`. No place may be the slot or a place of another row; a row may overwrite
    its own slot. A padding row stores nothing. The bits are those of a scan.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    check_window(axes, A_floor, eps, slots)
    weights = B_norm, C_norm, B_bias, C_bias, dt_bias, D, up, gate, down
    y = torch.empty_like(x) if out is None else out
    launch(
        axes, S, (x, dt, A, trap, angle, B, C, z), weights, (slots, live, places, None, None, y), axes["t"], A_floor, eps,
        halves, False, num_warps,
    )  # fmt: skip
    return y
