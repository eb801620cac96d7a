"""mamba-ssm: its Triton kernels of Mamba-2, `selective_state_update` for one token and `mamba_chunk_scan_combined` for many,
and those of Mamba-3 (`siso`).

The step writes the state in place, by slot if indices are given; a negative slot is padding. It has no dt limits, and
computes softplus as log(e^x + 1). dt, A, D and the bias are passed per channel, expanded with strides of 0, as in its own
layer.
"""

from dataclasses import replace
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .peer_kernels.formats import formats, named
from .peer_kernels.mamba3_layer import prompted
from .peer_kernels.pools import Pool, by_head
from .peer_kernels.siso import Siso
from .peer_kernels.sources import Tensors, bare, module, placed, version_of

STEP = NumericContract(softplus="log")
CHUNK = 16
SCAN = replace(STEP, order="chunked", chunk=CHUNK, dot="tf32")
"""It leaves the precision of float32 matrix products to Triton, whose default is tf32; tensor cores truncate operands."""
NO_LIMIT = Limits({"dt_limit": ("off",)}, reason="selective_state_update has no dt_limit")
MAMBA3 = {"bf16 products": NumericContract(dot="bf16", function_ulp=4.5), "alone": NumericContract(function_ulp=4.5)}
"""The step reads its outputs by a product of bf16 operands, whatever the inputs are; cos.approx has an error of 2^-20.9."""
SISO = Limits(
    {"pairs": ("neighbours",), "maps": ("off",)},
    {"r": (1, 1), "n": (16, 16), "p": (16, 16), "f": (4, 4)},
    reason="rank 1, pairs of neighbours; states and channels that are a power of two, and an even number of angles",
)
LAYER = Limits(
    {"kind": ("mamba3",), "pairs": ("neighbours",), "maps": ("off",), "conv_bias": ("off",), "conv_act": ("off",)},
    {"r": (1, 1), "n": (16, 16), "p": (16, 16), "f": (4, 4)},
    reason="layers of Mamba-3 with rank 1, and states and channels that are a power of two",
)
TURNS = Limits(sizes={"r": (4, 4), "n": (16, 16), "f": (4, 4)}, reason="ranks and states that are a power of two")
ABSENT = {
    "layer": "a layer of Mamba-3 begins with an empty cache, and its step is mamba3_step_fn: CuTe, which no interpreter runs",
    "": "only mamba-ssm's Triton kernels of Mamba-2 and Mamba-3 are tested",
    "mamba3": "no mask, no tree, no window with accepted tokens; MIMO is TileLang and CuTe, which no interpreter runs",
    "ssd": "no window with accepted tokens, and no tree",
    "ssd.scan_masked": "no mask of tokens",
}


class Kernels:
    """The two kernels on one device."""

    def __init__(self, device: str, activations: str = "fp32", state: str = "fp32") -> None:
        self.tensor = Tensors(device, activations, state)
        self.update = module("mamba_ssm.ops.triton.selective_state_update").selective_state_update
        self.combined = module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined

    def step(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, S)
        x, dt, B, C, z = map(self.tensor.active, (token.x, token.dt, token.B, token.C, token.z))
        wide = by_head(self.tensor, params, x.shape[-1], B.shape[-1])
        given = {"dt": dt[:, :, None].expand(x.shape), "B": B, "C": C, "z": z, "dt_softplus": params.dt_softplus}
        y = self.update(pool.states, x, **given, **wide, state_batch_indices=pool.index)
        return self.tensor.back(y, pool.rows())

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


def siso_subjects(siso: Siso, one: NumericContract) -> tuple[Subject, ...]:
    """The kernels of Mamba-3: the step, the scan, and the rotation of a step with the rest of it in float64."""
    step, alone = (replace(contract, exp=one.exp, softplus="log1p") for contract in MAMBA3.values())
    many = replace(SCAN, exp="ex2", softplus="log1p", function_ulp=4.5, truncates=one.exp == "ex2", io="bf16", dot="bf16")
    return (
        Subject("mamba3_siso_step", {"mamba3.step": Capability(siso.step, replace(step, exp="ex2"), SISO)}, ABSENT),
        Subject("mamba3_siso_combined", {"mamba3.scan": Capability(siso.scan, many, SISO)}, ABSENT),
        Subject("mamba3_siso_combined, angles in fp32", {"mamba3.scan": Capability(siso.scan_repaired, many, SISO)}, ABSENT),
        Subject("Mamba3", {"layer.prefill": Capability(prompted(siso), many, LAYER)}, ABSENT),
        Subject("Mamba3, angles in fp32", {"layer.prefill": Capability(prompted(siso, repaired=True), many, LAYER)}, ABSENT),
        Subject("rotary_qk_inference", {"mamba3.step": Capability(siso.rotary, alone, TURNS)}, ABSENT),
    )


def adapter(device: str = "cpu") -> Adapter:
    """The adapter of the installed mamba-ssm. Raises: ImportError, Unsupported."""
    placed(device)
    bare("mamba_ssm")
    kernels, compiled = Kernels(device), device != "cpu"
    one, many = (replace(c, exp="ex2" if compiled else c.exp) for c in (STEP, replace(SCAN, truncates=compiled)))
    steps = tuple(
        Subject(
            named("selective_state_update", contract),
            {"ssd.step": Capability(Kernels(device, contract.io, contract.state).step, contract, NO_LIMIT)},
            ABSENT,
        )
        for contract in formats(one)
    )
    siso = Siso(device)
    turned = siso_subjects(siso, one)
    combined = Subject("mamba_chunk_scan_combined", {"ssd.scan": Capability(kernels.scan, many)}, ABSENT)
    homepage = "https://github.com/state-spaces/mamba/issues"
    return Adapter("mamba_ssm", version_of("mamba-ssm"), (*steps, combined, *turned), homepage)
