"""Kimi Delta Attention, one or several tokens in one launch, token by token in registers.

    g, beta as in `kda_inputs`;   q^ = scale q / |q|,  k^ = k / |k|     (1)
    S- = diag(exp g) S                                                 (2)
    u  = beta (v - S-^T k^)                                            (3)
    S' = S- + k^ u^T,   o = S'^T q^                                    (4)

The kernel is that of `delta.delta_scan`, whose gates may have a lower bound; the tiles are its own. For an element of the
state a token takes four instructions: the decay, the two sums over k, which do not wait for each other
(`delta.delta_inputs`), and the write.

Layout: S (s, h, k, v), a pool that rows index through `slots`; a row with a negative slot is padding and is skipped. Bound by
the bytes of the state: one read, and one write if it is kept. Source: Kimi Linear, section 3.
"""

import triton
from torch import Tensor

from ..delta import delta_inputs as delta
from ..delta.delta_scan import launch_scan
from ..row import Axes, Live, Slots, launcher, moved
from ..shared.tuning import H200
from .kda_inputs import KeyBias, KeyGates, check_kda


def traffic_bytes(
    b: int, t: int, g: int, h: int, k: int, v: int, *, state: int = 4, io: int = 2, gate: int = 4, write_state: bool = True
) -> int:
    """Bytes that must cross the memory bus for b live rows: state, q, k, v, o, g and beta; parameters are left out.

    Units: bytes; `state`, `io` and `gate` are the bytes of an element; `gate` is that of g and beta.
    """
    axes = {"s": b, "b": b, "t": t, "g": g, "h": h, "k": k, "v": v}
    return moved(kda_scan, axes, {"state": state, "io": io, "gate": gate}, kept=write_state)


@launcher
def kda_scan(
    axes: Axes,
    S: delta.State,
    q: delta.Keys,
    k: delta.Keys,
    v: delta.Values,
    g: KeyGates,
    beta: delta.Strengths,
    *,
    A: delta.Decay | None = None,
    dt_bias: KeyBias | None = None,
    lower_bound: float | None = None,
    l2_norm: bool = True,
    scale: float | None = None,
    eps: float = 1e-6,
    slots: Slots | None = None,
    live: Live | None = None,
    write_state: bool = True,
    out: delta.Outputs | None = None,
    fused: bool = True,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """Advances the states S[slots] by a window of tokens, in place, and returns the outputs (b, t, h, v): (1) to (4).

    `g` (b, t, h, k) is a log decay, `beta` (b, t, h); with `A` (h) both are given as projections, and g is formed with
    `dt_bias` (h, k) and, if given, `lower_bound` (`kda_inputs`). `slots` (b) gives the state of each row (None: row b has
    slot b); several rows may share one if `write_state` is off. `live` (b, t) marks the real tokens; a no-op's output is 0.
    The output of a padding row is not written. Unless `fused`, products are rounded before they are summed, and all windows
    have one tile: the bits of a token do not depend on the number of tokens. `tiles`: see `tile`.

    Raises: ShapeMismatch, PrecisionError, ParameterError, before anything is written.
    """
    scale = check_kda(axes, A, dt_bias, lower_bound, slots, scale, eps)
    return launch_scan(
        axes, S, q, k, v, g, beta, A, dt_bias, slots, live, None, out, scale, eps,
        tiles or tile(axes["k"], axes["v"], axes["t"], fused), lower_bound or 0.0, BOUNDED=lower_bound is not None,
        L2_NORM=l2_norm, WRITE_STATE=write_state, enable_fp_fusion=fused,
    )  # fmt: skip


def tile(k: int, v: int, tokens: int, fused: bool = True) -> tuple[int, int, int]:
    """Lanes along k, value channels, and warps of a program.

    The number of rows does not matter, nor that of tokens unless `fused`: other warps would sum norms in another order.
    """
    row = H200["kda_scan"]
    if not fused:
        return unfused_tile(k, v, row["unfused_block_v"])
    block, warps = (row["step_block_v"], row["step_warps"]) if tokens == 1 else (row["block_v"], 1)
    return min(row["lanes"], triton.next_power_of_2(k)), min(block, triton.next_power_of_2(v)), warps


def unfused_tile(k: int, v: int, block: int) -> tuple[int, int, int]:
    """As `tile`, of up to `block` value channels, which do not change the bits: those of a scan that is not fused."""
    return min(H200["kda_scan"]["unfused_lanes"], triton.next_power_of_2(k)), min(block, triton.next_power_of_2(v)), 1
