"""mamba-ssm: its Triton kernels of Mamba-2, `selective_state_update` for one token and `mamba_chunk_scan_combined` for many.

The step writes the state in place, by slot where indices are given; a slot below zero is padding. It has no limits of dt, and
forms softplus as log(e^x + 1). dt, A, D and the bias come per channel, widened by strides of 0, as its own layer calls it.
"""

from dataclasses import replace
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .peers import Tensors, bare, module, placed, version_of

STEP = NumericContract(softplus="log")
CHUNK = 16
SCAN = replace(STEP, order="chunked", chunk=CHUNK, dot="tf32")
"""Its products leave the precision of float32 operands to Triton, whose default is tf32."""
NO_LIMIT = Limits({"dt_limit": ("off",)}, reason="selective_state_update has no dt_limit")
ABSENT = {
    "": "mamba-ssm judged here is its Triton kernels of Mamba-2",
    "ssd": "no window with accepted tokens, and no tree",
    "ssd.scan_masked": "no mask of tokens",
}


class Kernels:
    """The two kernels on one device."""

    def __init__(self, device: str) -> None:
        self.tensor = Tensors(device)
        self.update = module("mamba_ssm.ops.triton.selective_state_update").selective_state_update
        self.combined = module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined

    def step(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        """The rows in descending slots of a pool; slot 0 is live, NaN lies between."""
        rows, (h, p, n) = len(S), S.shape[1:]
        slots = self.tensor.torch.arange(2 * (rows - 1), -1, -2, device=self.tensor.device)
        pool = self.tensor.torch.full((2 * rows, h, p, n), float("nan"), device=self.tensor.device)
        pool[slots] = self.tensor(S)
        D, bias = self.tensor(params.D), self.tensor(params.dt_bias)
        y = self.update(
            pool,
            self.tensor(token.x),
            self.tensor(token.dt)[:, :, None].expand(-1, -1, p),
            self.tensor(params.A)[:, None, None].expand(h, p, n),
            self.tensor(token.B),
            self.tensor(token.C),
            D=D if D is None or D.dim() == 2 else D[:, None].expand(h, p),
            z=self.tensor(token.z),
            dt_bias=None if bias is None else bias[:, None].expand(h, p),
            dt_softplus=params.dt_softplus,
            state_batch_indices=slots.int(),
        )
        return self.tensor.back(y, pool[slots])

    def scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        given = map(self.tensor, (window.x, window.dt, params.A, window.B, window.C))
        y, S_next = self.combined(
            *given,
            CHUNK,
            D=self.tensor(params.D),
            z=self.tensor(window.z),
            dt_bias=self.tensor(params.dt_bias),
            initial_states=self.tensor(S),
            dt_softplus=params.dt_softplus,
            dt_limit=params.dt_limit,
            return_final_states=True,
        )
        return self.tensor.back(y, S_next)


def adapter(device: str = "cpu") -> Adapter:
    """The installed mamba-ssm. Raises: ImportError, Unsupported."""
    placed(device)
    bare("mamba_ssm")
    kernels = Kernels(device)
    step = Subject("selective_state_update", {"ssd.step": Capability(kernels.step, STEP, NO_LIMIT)}, ABSENT)
    combined = Subject("mamba_chunk_scan_combined", {"ssd.scan": Capability(kernels.scan, SCAN)}, ABSENT)
    homepage = "https://github.com/state-spaces/mamba/issues"
    return Adapter("mamba_ssm", version_of("mamba-ssm"), (step, combined), homepage)
