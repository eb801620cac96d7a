"""An adapter of a Triton kernel: one token of SSD (Mamba-2). Put your kernel in its place. It can be tested without a GPU.

ssmspec conform check --adapter MODULE:adapter --device interpreter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter --device interpreter        is the kernel? Without a GPU, slowly
ssmspec conform run --adapter MODULE:adapter --device cuda               on a GPU
"""

import os

import torch
import triton
import triton.language as tl

from conformance.interpreter.guard import guarded
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.errors import Unsupported


@triton.jit
def step_kernel(S, x, dt, B, C, A, y, S_next, h, g, p, n, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program for each row and head: S' = exp(dt A) S + dt x B^T, y = S' C."""
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // (h // g)
    at_p, at_n = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    in_p, in_n = at_p < p, at_n < n
    inside = in_p[:, None] & in_n[None, :]
    state = (row * h + head) * p * n + at_p[:, None] * n + at_n[None, :]

    raw = tl.load(dt + row * h + head)
    step = tl.where(raw > 20.0, raw, tl.log(1.0 + tl.exp(raw)))
    decay = tl.exp(step * tl.load(A + head))
    x_t = tl.load(x + (row * h + head) * p + at_p, mask=in_p, other=0.0)
    B_t = tl.load(B + (row * g + group) * n + at_n, mask=in_n, other=0.0)
    C_t = tl.load(C + (row * g + group) * n + at_n, mask=in_n, other=0.0)
    after = decay * tl.load(S + state, mask=inside, other=0.0) + (step * x_t)[:, None] * B_t[None, :]
    tl.store(S_next + state, after, mask=inside)
    tl.store(y + (row * h + head) * p + at_p, tl.sum(after * C_t[None, :], axis=1), mask=in_p)


class Step:
    """The kernel on one device, called as the suite calls it: ssd.step(S, token, params) -> y, S."""

    def __init__(self, device):
        self.device = device

    def tensor(self, array):
        return torch.tensor(array, dtype=torch.float32, device=self.device)

    def __call__(self, S, token, params):
        """S (b h p n), token.x (b h p), token.dt (b h), token.B and token.C (b g n), params.A (h); NumPy arrays."""
        S, x, dt, B, C, A = map(self.tensor, (S, token.x, token.dt, token.B, token.C, params.A))
        (b, h, p, n), g = S.shape, B.shape[1]
        y, S_next = torch.full_like(x, float("nan")), torch.full_like(S, float("nan"))
        blocks = {"BLOCK_P": triton.next_power_of_2(p), "BLOCK_N": triton.next_power_of_2(n)}
        # The interpreter refuses an access outside a launch's tensors; the guard also sees programs that share an address.
        with guarded(S=S, x=x, dt=dt, B=B, C=C, A=A, y=y, S_next=S_next):
            step_kernel[(b, h)](S, x, dt, B, C, A, y, S_next, h, g, p, n, **blocks)
        return y.cpu().numpy(), S_next.cpu().numpy()


# How the kernel computes. The allowed error follows from this and from the data. Say what is true.
CONTRACT = NumericContract(
    exp="ex2",  # tl.exp is 2^(x log2 e) on a GPU
    softplus="log",  # log(1 + e^x), not log1p
)

# The values of each option that the kernel takes; of an option that is not named it takes all values. `sizes`: the smallest
# and the largest. Other cases are left out, and the report shows the reason. `ssmspec conform list` shows the options.
TAKES = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
LIMITS = Limits(TAKES, sizes={"p": (1, 128), "n": (1, 256)}, reason="the kernel has no such option")


def adapter(device="cpu"):
    """Named on the command line. `device` is cuda, or cpu where the interpreter runs the kernels."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("this is a Triton kernel: add --device interpreter, or --device cuda on a GPU")
    kernel = Capability(Step(device), CONTRACT, LIMITS)
    return Adapter("my triton kernels", "0.1", (Subject("ssd", {"ssd.step": kernel}, absent={"": "not written yet"}),))
