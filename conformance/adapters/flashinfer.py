"""FlashInfer: on a CPU its own torch reference of the selective state update, on a GPU the kernel itself.

The reference is `flashinfer.trace.templates.mamba`, which needs no CUDA. The kernel is compiled at its first call, and needs
the package with all its dependencies and a CUDA compiler. D is a required argument of both.
"""

from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array

from .peer_kernels.formats import formats, named
from .peer_kernels.pools import Pool, by_head
from .peer_kernels.sources import Tensors, bare, module, version_of

HEADS = Limits({"D": ("head", "channel"), "dt_limit": ("off",)}, reason="the update always takes D, and has no limits of dt")
CHANNELS = Limits({"D": ("on",)}, reason="the update always takes D")
COMPILED = Limits(
    HEADS.options,
    {"p": (64, 64), "n": (128, 128)},
    "it takes Mamba-2's head sizes only, always reads D, and has no limits of dt",
)
ABSENT = {
    "": "only FlashInfer's selective state update is tested",
    "delta": "its references of the gated delta rule take raw gates, and round their inputs to bf16",
    "ssd": "its reference takes one token, and no slots; the chunked form has no reference",
    "selective": "its reference takes one token",
}


class Reference:
    """The update in torch: state, x and dt by row and channel, or by row, head and channel."""

    def __init__(self, run: Any, activations: str = "fp32", state: str = "fp32") -> None:
        self.run, self.tensor = run, Tensors("cpu", activations, state)

    def step(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        """Mamba-1, the form that the reference is written for."""
        state, A, D, bias = self.tensor.held(S), *map(self.tensor, (params.A, params.D, params.dt_bias))
        x, dt, B, C, z = map(self.tensor.active, (token.x, token.dt, token.B, token.C, token.z))
        y = self.run(state, x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=params.dt_softplus)
        return self.tensor.back(y, state)

    def by_head(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        """Mamba-2, in the update's form with heads."""
        state = self.tensor.held(S)
        y = self.run(state, **heads(self.tensor, token, params))
        return self.tensor.back(y.reshape(token.x.shape), state)


def heads(tensor: Tensors, token: Any, params: Any) -> dict[str, Any]:
    """A token of Mamba-2 in the form of the update, expanded with strides of 0."""
    x, dt, B, C, z = map(tensor.active, (token.x, token.dt, token.B, token.C, token.z))
    wide = by_head(tensor, params, x.shape[-1], B.shape[-1])
    return {"x": x, "dt": dt[..., None].expand(x.shape), "B": B, "C": C, "z": z, "dt_softplus": params.dt_softplus} | wide


class Kernel:
    """The update on a GPU, with its rows in slots of a pool."""

    def __init__(self, run: Any, device: str, activations: str = "fp32", state: str = "fp32") -> None:
        self.run, self.tensor = run, Tensors(device, activations, state)

    def by_head(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, S)
        y = self.run(pool.states, **heads(self.tensor, token, params), state_batch_indices=pool.index)
        return self.tensor.back(y, pool.rows())


def adapter(device: str = "cpu") -> Adapter:
    """The adapter of the installed FlashInfer. Raises: ImportError, Unsupported (no kernels for the GPU)."""
    homepage, name = "https://github.com/flashinfer-ai/flashinfer/issues", "flashinfer"
    if device == "cpu":
        bare("flashinfer")
        reference = module("flashinfer.trace.templates.mamba")._selective_state_update_reference
        subjects = tuple(
            Subject(
                named("selective_state_update, reference", contract),
                {
                    "selective.step": Capability(run.step, contract, CHANNELS),
                    "ssd.step": Capability(run.by_head, contract, HEADS),
                },
                ABSENT,
            )
            for contract in formats(NumericContract())
            for run in (Reference(reference, contract.io, contract.state),)
        )
    else:
        try:
            update = module("flashinfer.mamba").selective_state_update
        except ImportError as error:
            raise Unsupported(
                f"its CUDA kernels cannot be imported here ({error}); install flashinfer-python with its dependencies and a "
                "CUDA compiler, or omit --device to test its references in torch"
            ) from error
        name = "flashinfer, compiled"
        subjects = tuple(
            Subject(
                named("selective_state_update", contract),
                {"ssd.step": Capability(Kernel(update, device, contract.io, contract.state).by_head, contract, COMPILED)},
                ABSENT,
            )
            for contract in formats(NumericContract(exp="ex2", softplus="log"))
        )
    return Adapter(name, version_of("flashinfer-python"), subjects, homepage)
