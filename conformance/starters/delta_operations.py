"""An adapter of single operations: functions from arrays to arrays. It tests a NumPy kernel; put yours in its place.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the kernel?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


def step(S, token, params):
    """One token of the gated delta rule (Gated DeltaNet): delta.step(S, token, params) -> o, S.

    S (b h k v), token.q and token.k (b g k), token.v (b h v), token.g and token.beta (b h); value head h reads key head
    h // (h / g). The letters are in ssmspec_ref/shapes.py. g is a log decay, no rate: the gate was computed before. All
    arrays come in float64 and hold numbers that are exact in the formats of the contract below, so a cast changes nothing.
    Do not write into them. Return NumPy arrays. If your state is (v, k), transpose it here, on the way in and out.
    """
    S, q, k, v, g, beta = (np.asarray(a, dtype=np.float32) for a in (S, token.q, token.k, token.v, token.g, token.beta))
    heads, eps = v.shape[1], np.float32(params.eps)
    scale = np.float32(q.shape[-1] ** -0.5 if params.scale is None else params.scale)

    # Here your kernel is called: o, S = my_kernel(torch.from_numpy(q), ...)
    # Cast its inputs by `conformance.casting.cast`, which keeps their strides, so that a wrong one shows; `astype` does not.
    q, k = (a / np.sqrt(np.sum(a * a, axis=-1, keepdims=True) + eps) for a in (q, k))
    q, k = (np.repeat(a, heads // a.shape[1], axis=1) for a in (scale * q, k))
    S = np.exp(g)[..., None, None] * S
    u = beta[..., None] * (v - np.einsum("bhkv, bhk -> bhv", S, k))
    S = S + k[..., None] * u[:, :, None, :]
    o = np.einsum("bhkv, bhk -> bhv", S, q)

    return o, S


# How the kernel computes; the error that it is allowed follows from this and from the data. Say what is true: a wider
# contract allows a larger error, and the report shows it.
CONTRACT = NumericContract(
    state="fp32",  # how the state is stored between calls: fp64, fp32, fp16, bf16
    io="fp32",  # how outputs are stored
    accumulate="fp32",  # the arithmetic of everything else
    dot="ieee",  # how operands of a matrix product are rounded: ieee, tf32x3, tf32, fp16, bf16
    order="sequential",  # or "chunked" (with chunk=), or "output_only"
    function_ulp=3,  # the error of exp, log1p, rsqrt and division; 2.5 covers CUDA and PyTorch, NumPy's exp needs 3
)

# The values of each option that the kernel takes; of an option that is not named it takes all values. `sizes`: the smallest
# and the largest. Other cases are left out, and the report shows the reason. `ssmspec conform list` shows the options.
TAKES = {"gate": ("head",), "l2_norm": ("on",)}
LIMITS = Limits(TAKES, sizes={"k": (1, 256)}, reason="the kernel has no such option")


def adapter():
    """Named on the command line. To take --device, write adapter(device="cpu") and put your tensors on that device."""
    step_capability = Capability(step, CONTRACT, LIMITS)
    # Every operation that can be tested, and its signature: ssmspec_ref.contract.OPERATIONS
    subject = Subject("delta", {"delta.step": step_capability}, absent={"": "not written yet"})
    return Adapter("my kernels", "0.1", (subject,))
