import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def step(S, token, params):  # your kernel goes here; this one is Mamba-2's step in NumPy's float32
    S, x, dt, B, C, A = (a.astype(np.float32) for a in (S, token.x, token.dt, token.B, token.C, params.A))
    B, C = (np.repeat(a, x.shape[1] // a.shape[1], axis=1) for a in (B, C))  # one group serves several heads
    dt = np.logaddexp(np.float32(0), dt)
    S = np.exp(dt * A)[..., None, None] * S + (dt[..., None] * x)[..., None] * B[:, :, None, :]
    return np.einsum("bhpn, bhn -> bhp", S, C), S


def adapter():
    contract = NumericContract(state="fp32", io="fp32", accumulate="fp32", function_ulp=3)  # how it computes
    # the values of each option that the kernel takes; of an option that is not named it takes all values
    takes = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
    subject = Subject("ssd", {"ssd.step": Capability(step, contract, Limits(takes, reason="no such option"))})
    return Adapter("my kernels", "0.1", (subject,))
