"""SSD (Mamba-2) over a window, with the state after every token: the baseline for all other methods.

    S_0 = S[slots],  S_t and y_t as in `ssd_scan`        pool[places_t] = S_t

A rejected token costs nothing afterwards: the next window starts from the place of the last accepted token. The cost is a
write of the whole state for every token. The kernel is that of `ssd_scan`, with a store after each token; the state is
carried in fp32 and rounded only when it is stored.

Layout: S (s, h, p, n), places (b, t). The states are kept in S itself, as in vLLM, or in a separate pool, such as
the view (b t, h, p, n) of a buffer (b, t, h, p, n). Nothing is stored for a negative place.
Bound by the bytes of the states: one read, t writes.
Source: ReplaySSM, algorithm 3 (standard speculative decode).
"""

from typing import Annotated

import torch
import triton
from torch import Tensor

from ..launch import AS_WRITTEN, overlapped, strides
from ..row import Axes, Live, Slots, launcher, points, writes
from ..shared.strides import StateStrides, TokenStrides
from . import ssd_inputs as ssd
from .ssd_inputs import Inputs, skip_strides, window_strides
from .ssd_scan import ssd_scan_kernel, tile
from .ssd_scan import traffic_bytes as scan_bytes


def traffic_bytes(b: int, t: int, h: int, p: int, n: int, g: int, *, state: int = 4, io: int = 2, z: bool = False) -> int:
    """Bytes that must cross the memory bus for b live rows that keep every state.

    Units: bytes; `state` and `io` are the bytes of an element.
    """
    return scan_bytes(b, t, h, p, n, g, state=state, io=io, write_state=False, z=z) + b * t * h * p * n * state


@launcher
def ssd_snapshots(
    axes: Axes,
    S: ssd.State,
    x: ssd.Heads,
    dt: ssd.PerHeads,
    A: ssd.Decay,
    B: ssd.Projs,
    C: ssd.Projs,
    places: Annotated[Tensor, points("b t")],
    *,
    pool: Annotated[Tensor, writes("kept h p n", size="state")] | None = None,
    D: ssd.Skip | None = None,
    z: ssd.Heads | None = None,
    dt_bias: ssd.PerHead | None = None,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    slots: Slots | None = None,
    live: Live | None = None,
    out: ssd.Outputs | None = None,
    block_p: int | None = None,
    num_warps: int | None = None,
    run: int = 32,
) -> Tensor:
    """Scans a window from S[slots], stores the state after token t in pool[places[b, t]], returns the outputs (b, t, h, p).

    `pool` None means S. No place may be the slot or a place of another row; a row may overwrite its own slot. A
    padding row stores nothing. The other arguments are those of `ssd_scan`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    given = Inputs(axes, S, x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit, slots)
    b, t, h, p, n, _ = given.sizes
    y, kept = torch.empty_like(x) if out is None else out, S if pool is None else pool
    block, warps = tile(p, t, n, S.element_size())
    block, warps = block_p or block, num_warps or warps
    ssd_scan_kernel[(triton.cdiv(p, block), h, b)](
        *given.tensors, live, places, kept, y, None, None, window_strides(given, y), TokenStrides(*strides(live, 2)),
        TokenStrides(*strides(places, 2)), StateStrides(*strides(kept, 3)), TokenStrides(0, 0), skip_strides(given),
        *given.dt_limit, T=t, P=p, N=n, **given.constants,
        WRITE_STATE=False, BLOCK_T=triton.next_power_of_2(t), BLOCK_P=block, BLOCK_N=triton.next_power_of_2(n),
        RUN=min(run, triton.next_power_of_2(n)), num_warps=warps, **AS_WRITTEN,
        **overlapped(S.device),
    )  # fmt: skip
    return y
