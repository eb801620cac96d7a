"""The selective scan of Mamba-1 over a packed tree, from one state and without writing it.

dt  = softplus(dt_raw + dt_bias)                                                            (1)
At  = L (dt A)                    per channel and state, because A is (d, n)                (2)
y_i = sum_n C_in (exp(At_in) S0_n + sum_j L_ij exp(At_in - At_jn) dt_j x_j B_jn)            (3)
y_i = y_i + D x_i, then y silu(z) if z is given                                             (4)

The decay depends on n, so C_i B_j does not factor out of the sum over n as it does for SSD (`ssd_tree`).
"""

from numpy import einsum

from .. import tree
from ..checks import checked
from ..functions import silu
from ..records import masked
from ..shapes import Ancestors, ChannelState, Inners
from . import SelectiveParams, SelectiveWindow, step_size


@checked
def scan(S: ChannelState, window: SelectiveWindow, ancestors: Ancestors, params: SelectiveParams) -> Inners:
    """The output at every node: equations (1) to (4) of the module; 0 at padding, whose values are ignored.

    The ancestor sets of the mask must nest (`tree`).

    Units: as `selective.step`.
    Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological, NotNested.
    Source: STree, section 3, equations 5 and 6, with A_log per channel and state; D and z as in `selective`.
    """
    tree.check_nested(ancestors)
    window = masked(window, tree.live(ancestors))
    x, B, C = window.x, window.B, window.C
    dt = step_size(window.dt, params)  # (1)
    from_state, between = tree.decays(ancestors, dt[..., None] * params.A)  # (2)
    y = einsum("btn, btdn, bdn -> btd", C, from_state, S)
    y = y + einsum("btn, btjdn, bjd, bjd, bjn -> btd", C, between, dt, x, B)  # (3)
    if params.D is not None:
        y = y + params.D * x  # (4)
    return y if window.z is None else y * silu(window.z)
