import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def step(S, token, params):
    """The kernel under judgement: one token of SSD in NumPy's float32."""
    S, x, dt, B, C = (a.astype(np.float32) for a in (S, token.x, token.dt, token.B, token.C))
    A, heads = params.A.astype(np.float32), x.shape[1]
    B, C = (np.repeat(a, heads // a.shape[1], axis=1) for a in (B, C))
    dt = np.logaddexp(np.float32(0), dt)
    S = np.exp(dt * A)[..., None, None] * S + (dt[..., None] * x)[..., None] * B[:, :, None, :]
    return np.einsum("bhpn, bhn -> bhp", S, C), S


OPTIONS = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}


def adapter() -> Adapter:
    contract = NumericContract(state="fp32", io="fp32", accumulate="fp32", function_ulp=3)  # NumPy's exp: 2.52 ulp
    limits = Limits(OPTIONS, reason="the kernel has no such option")
    return Adapter("my kernels", "0.1", (Subject("ssd", {"ssd.step": Capability(step, contract, limits)}),))
