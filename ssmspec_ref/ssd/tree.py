"""SSD over a packed tree, from one state and without writing it: the closed form of STree.

dt  = clip(softplus(dt_raw + dt_bias), dt_limit)                                        (1)
At  = L (dt A)                                                                          (2)
y_i = exp(At_i) C_i S0 + sum_j L_ij (C_i B_j) exp(At_i - At_j) dt_j x_j                 (3)
y_i = y_i + D x_i, then y silu(z) if z is given                                          (4)

With a lower-triangular mask this is one chunk of the chunked form of Mamba-2.
"""

from numpy import einsum

from .. import tree
from ..checks import checked
from ..functions import silu
from ..records import masked
from ..shapes import Ancestors, Heads, State
from . import SSDParams, SSDWindow, per_head, skip, step_size


@checked
def scan(S: State, window: SSDWindow, ancestors: Ancestors, params: SSDParams) -> Heads:
    """The output at every node: equations (1) to (4) of the module; 0 at padding, whose values are ignored.

    The ancestor sets of the mask must nest (`tree`).

    Units: as `ssd.step`.
    Raises: ShapeMismatch, PrecisionError, EmptyWindow, ParameterError, NotTopological, NotNested.
    Source: STree, section 3, equations 5 and 6 and M_x, M_u; D and z as in `ssd`.
    """
    tree.check_nested(ancestors)
    window = masked(window, tree.live(ancestors))
    x, heads = window.x, window.x.shape[2]
    B, C = per_head(window.B, heads), per_head(window.C, heads)
    dt = step_size(window.dt, params)  # (1)
    from_state, between = tree.decays(ancestors, dt * params.A)  # (2)
    scores = einsum("bthn, bjhn -> btjh", C, B) * between
    y = from_state[..., None] * einsum("bthn, bhpn -> bthp", C, S) + einsum("btjh, bjh, bjhp -> bthp", scores, dt, x)  # (3)
    y = y + skip(x, params.D)  # (4)
    return y if window.z is None else y * silu(window.z)
