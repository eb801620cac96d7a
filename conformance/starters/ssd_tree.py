"""An adapter of a scan over trees: every node continues the state along its own path. Here in NumPy; put yours in its place.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the scan?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def verify_tree(S, window, ancestors, params):
    """The outputs (b t h p) at every node: ssd.verify_tree(S, window, ancestors, params) -> y.

    S (b h p n) is the state before the root, window.x (b t h p), window.dt (b t h), window.B and window.C (b t g n),
    params.A (h). ancestors (b t t) is a mask: ancestors[b, i, j] says that node j is i or lies above it. The nodes above a
    node come before it. Padding is not even its own ancestor; it may hold NaN, and its output is 0.
    """
    S, x, dt, B, C = (np.asarray(a, dtype=np.float32) for a in (S, window.x, window.dt, window.B, window.C))
    heads, A = x.shape[2], np.asarray(params.A, dtype=np.float32)
    B, C = (np.repeat(a, heads // a.shape[2], axis=2) for a in (B, C))
    dt, y = np.logaddexp(np.float32(0), dt), np.zeros_like(x)
    for b in range(len(x)):
        after = {}  # the state after each node
        for i in np.flatnonzero(ancestors[b].diagonal()):
            above = np.flatnonzero(ancestors[b, i, :i])  # the last one is the parent
            before = after[above[-1]] if len(above) else S[b]
            after[i] = (
                np.exp(dt[b, i] * A)[:, None, None] * before + (dt[b, i, :, None] * x[b, i])[..., None] * B[b, i, :, None]
            )
            y[b, i] = np.einsum("hpn, hn -> hp", after[i], C[b, i])
    return y


CONTRACT = NumericContract(function_ulp=3)  # float32 throughout; NumPy's exp needs 3 ulp

# The values of each option that the scan takes; of an option that is not named it takes all values. Other cases are left
# out, and the report shows the reason.
TAKES = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
LIMITS = Limits(TAKES, reason="the scan has no such option")


def adapter():
    """Named on the command line."""
    tree = Capability(verify_tree, CONTRACT, LIMITS)
    return Adapter("my tree scan", "0.1", (Subject("tree", {"ssd.verify_tree": tree}),))
