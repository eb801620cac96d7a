"""causal-conv1d: the references in torch of its two functions, on a CPU.

Its CUDA functions are imported beside them and are replaced by stubs. The window has w - 1 columns, which a prompt may begin
from; an update writes the window in place, or into a ring at a position for each row.
"""

from typing import Any

from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .peer_kernels import stub_modules
from .peer_kernels.formats import formats, named
from .peer_kernels.sources import Tensors, bare, module, version_of

ABSENT = {
    "": "causal-conv1d is a convolution only",
    "conv": "no mask of tokens, no tree, and no window with accepted tokens",
}
CUDA = ("causal_conv1d_fwd_function", "causal_conv1d_bwd_function", "causal_conv1d_update_function")


class References:
    """The two references in one format of the activations; weights stay fp32, and the window is an activation."""

    def __init__(self, home: Any, activations: str) -> None:
        self.home, self.tensor = home, Tensors("cpu", activations)

    def rest(self, params: Any) -> dict[str, Any]:
        weight, bias = self.tensor(params.weight), self.tensor(params.bias)
        return {"weight": weight, "bias": bias, "activation": "silu" if params.activation else None}

    def held(self, M: Array) -> Any:
        """The last w - 1 columns; the oldest is not read again."""
        return self.tensor.active(M[:, :, 1:]).contiguous()

    def scan(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        x = self.tensor.active(u).transpose(1, 2)
        given = {"initial_states": self.held(M), "return_final_states": True}
        y, after = self.home.causal_conv1d_ref(x, **self.rest(params), **given)
        return self.tensor.back(y.transpose(1, 2), after)

    def step(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        state = self.held(M)
        y = self.home.causal_conv1d_update_ref(self.tensor.active(u), state, **self.rest(params))
        return self.tensor.back(y, state)

    def update(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        """Several tokens in one update."""
        state, x = self.held(M), self.tensor.active(u).transpose(1, 2)
        y = self.home.causal_conv1d_update_ref(x, state, **self.rest(params))
        return self.tensor.back(y.transpose(1, 2), state)

    def ring(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        """As `update`, in a ring that every row enters at another place; what it does not hold is NaN."""
        torch, old, x = self.tensor.torch, self.held(M), self.tensor.active(u).transpose(1, 2)
        rows, _, kept = old.shape
        length, tokens = kept + u.shape[1] + 1, u.shape[1]
        begin = kept + 3 * torch.arange(rows)
        state = torch.full((*old.shape[:2], length), float("nan"), dtype=old.dtype)
        before, after = (columns(begin + ahead, kept, length, old) for ahead in (0, tokens))
        state.scatter_(2, before, old)
        y = self.home.causal_conv1d_update_ref(x, state, **self.rest(params), cache_seqlens=begin.int())
        return self.tensor.back(y.transpose(1, 2), state.gather(2, after))

    def ring_step(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        y, after = self.ring(M, u[:, None], params)
        return y[:, 0], after


def columns(end: Any, kept: int, length: int, like: Any) -> Any:
    """Where the columns before a position lie in a ring, for every channel."""
    import torch

    places = torch.remainder(end[:, None] - torch.arange(kept, 0, -1), length)
    return places[:, None].expand(-1, like.shape[1], -1)


def subjects(references: References, contract: NumericContract) -> tuple[Subject, ...]:
    functions: dict[str, dict[str, Any]] = {
        "causal_conv1d_ref": {"conv.scan": references.scan},
        "causal_conv1d_update_ref": {"conv.step": references.step, "conv.scan": references.update},
        "causal_conv1d_update_ref, ring": {"conv.step": references.ring_step, "conv.scan": references.ring},
    }
    return tuple(
        Subject(named(name, contract), {o: Capability(run, contract) for o, run in found.items()}, ABSENT)
        for name, found in functions.items()
    )


def adapter() -> Adapter:
    """The adapter of the installed causal-conv1d. Raises: ImportError."""
    bare("causal_conv1d")
    stub_modules.module("causal_conv1d.cpp_functions", **{name: stub_modules.unused(name) for name in CUDA})
    home = module("causal_conv1d.causal_conv1d_interface")
    made = [subjects(References(home, c.io), c) for c in formats(NumericContract(), states=False)]
    homepage = "https://github.com/Dao-AILab/causal-conv1d/issues"
    return Adapter("causal_conv1d", version_of("causal-conv1d"), tuple(s for each in made for s in each), homepage)
