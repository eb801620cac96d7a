"""The gated delta rule over a window, with the state after every token: the baseline for all other methods.

    S_0 = S[slots],  S_t and o_t as in `delta_scan`        S[places_t] = S_t

A rejected token costs nothing afterwards: the next window starts from the place of the last accepted token. The cost is a
write of the whole state for every token. The kernel is that of `delta_scan`, with a store after each token; the state is
carried in fp32 and rounded only when it is stored.

Layout: S (s, h, k, v), one pool for the states before and after; places (b, t). Nothing is stored for a negative place.
Bound by the bytes of the states: one read, t writes.
"""

from typing import Annotated

from torch import Tensor

from ..launch import AS_WRITTEN
from ..row import Axes, Live, Slots, launcher, points
from . import delta_inputs as delta
from .delta_inputs import check_inputs
from .delta_scan import launch_scan, tile
from .delta_scan import traffic_bytes as scan_bytes


def traffic_bytes(
    b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4, channel: bool = False
) -> int:
    """Bytes that must cross the memory bus for b live rows that keep every state.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    scan = scan_bytes(b, t, g, h, k, v, state=state, io=io, gate=gate, write_state=False, channel=channel)
    return scan + b * t * h * k * v * state


@launcher
def delta_snapshots(
    axes: Axes,
    S: delta.State,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: delta.Gates,
    beta: delta.Strengths,
    places: Annotated[Tensor, points("b t")],
    *,
    A: delta.Decay | None = None,
    dt_bias: delta.GateBias | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    live: Live | None = None,
    out: delta.Outputs | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """Scans a window from S[slots], stores the state after token t in S[places[b, t]], returns the outputs (b, t, h, v).

    The other arguments are those of `delta_scan`. No place may be the slot or a place of another row; a row may overwrite
    its own slot. A padding row stores nothing. The bits are those of a scan that is not `fused`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    scale = check_inputs(axes, A, dt_bias, slots, scale, eps)
    return launch_scan(
        axes, S, q, k, v, g, beta, A, dt_bias, slots, live, places, out, scale, eps,
        tiles or tile(axes["k"], axes["v"], axes["t"], fused=False), L2_NORM=l2_norm, WRITE_STATE=False, **AS_WRITTEN,
    )  # fmt: skip
