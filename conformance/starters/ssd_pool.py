"""An adapter of a step over a pool of states, as a server calls it: each row reads one slot and writes one. Here in NumPy.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the step?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def step(pool, token, params):
    """One token of SSD (Mamba-2) in a pool: ssd.step(pool, token, params) -> y, states.

    pool.states (s h p n) are the states of all slots; row b reads slot pool.read[b] and writes slot pool.write[b]. A row with
    negative slots is padding: its output is not compared, and it writes nothing. Rows marked in pool.fresh start from zeros,
    whatever their slot holds. Return all slots: those that no row writes stay as they are, bit for bit.
    """
    live = pool.read >= 0
    fresh = getattr(pool, "fresh", np.zeros(len(live), dtype=bool))
    S = pool.states[pool.read].astype(np.float32)
    S[fresh | ~live] = 0

    x, dt, B, C, A = (np.asarray(a, dtype=np.float32) for a in (token.x, token.dt, token.B, token.C, params.A))
    heads = x.shape[1]
    B, C = (np.repeat(a, heads // a.shape[1], axis=1) for a in (B, C))
    dt = np.logaddexp(np.float32(0), dt)
    S = np.exp(dt * A)[..., None, None] * S + (dt[..., None] * x)[..., None] * B[:, :, None, :]
    y = np.einsum("bhpn, bhn -> bhp", S, C)

    states = pool.states.copy()  # do not write into an input
    states[pool.write[live]] = S[live]
    return y, states


CONTRACT = NumericContract(function_ulp=3)  # float32 throughout; NumPy's exp needs 3 ulp

# The values of each option that the step takes; of an option that is not named it takes all values. `slots` is tested only
# if it is named here. Other cases are left out, and the report shows the reason.
TAKES = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
TAKES["slots"] = ("shuffled", "padded", "apart", "fresh")
LIMITS = Limits(TAKES, reason="the step has no such option")


def adapter():
    """Named on the command line."""
    pooled = Capability(step, CONTRACT, LIMITS)
    return Adapter("my pool", "0.1", (Subject("pool", {"ssd.step": pooled}),))
