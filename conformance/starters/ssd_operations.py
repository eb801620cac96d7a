"""An adapter of single operations: functions from arrays to arrays. Here it is a NumPy kernel; put yours in its place.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the kernel?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def step(S, token, params):
    """One token of SSD (Mamba-2): ssd.step(S, token, params) -> y, S.

    S (b h p n), token.x (b h p), token.dt (b h), token.B and token.C (b g n), params.A (h); the letters are in
    ssmspec_ref/shapes.py. All arrays are float64, with numbers that are exact in the formats of the contract below, so a
    cast changes nothing. Do not write into them. Return NumPy arrays.
    """
    S, x, dt, B, C, A = (np.asarray(a, dtype=np.float32) for a in (S, token.x, token.dt, token.B, token.C, params.A))
    heads = x.shape[1]
    B, C = (np.repeat(a, heads // a.shape[1], axis=1) for a in (B, C))

    # Here your kernel is called: y, S = my_kernel(torch.from_numpy(x), ...)
    # Cast its inputs by `conformance.casting.cast`, which keeps their strides, so that a wrong one shows; `astype` does not.
    dt = np.logaddexp(np.float32(0), dt)
    S = np.exp(dt * A)[..., None, None] * S + (dt[..., None] * x)[..., None] * B[:, :, None, :]
    y = np.einsum("bhpn, bhn -> bhp", S, C)

    return y, S


# How the kernel computes. The allowed error follows from this and from the data. Say what is true: a wider contract allows
# a larger error, and the report shows it.
CONTRACT = NumericContract(
    state="fp32",  # how the state is stored between calls: fp64, fp32, fp16, bf16
    io="fp32",  # how outputs are stored
    accumulate="fp32",  # the arithmetic of everything else
    dot="ieee",  # how operands of a matrix product are rounded: ieee, tf32x3, tf32, fp16, bf16
    order="sequential",  # or "chunked" or "associative" (with chunk=), or "output_only"
    function_ulp=3,  # the error of exp, log1p, rsqrt and division; 2.5 covers CUDA and PyTorch, NumPy's exp needs 3
)

# The values of each option that the kernel takes; of an option that is not named it takes all values. `sizes`: the smallest
# and the largest. Other cases are left out, and the report shows the reason. `ssmspec conform list` shows the options.
TAKES = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
LIMITS = Limits(TAKES, sizes={"n": (1, 256)}, reason="the kernel has no such option")


def adapter():
    """Named on the command line. To take --device, write adapter(device="cpu") and put your tensors on that device."""
    step_capability = Capability(step, CONTRACT, LIMITS)
    # Every operation that can be tested, and its signature: ssmspec_ref.contract.OPERATIONS
    subject = Subject("ssd", {"ssd.step": step_capability}, absent={"": "not written yet"})
    return Adapter("my kernels", "0.1", (subject,))
