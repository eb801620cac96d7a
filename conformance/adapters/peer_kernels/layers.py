"""Shared code of the vLLM and SGLang layers, whose kernels are called differently: packed prompts, convolutions."""

from abc import ABC, abstractmethod
from typing import Any

from ssmspec_ref.shapes import Array

from .sources import Tensors, joined


class Layers(ABC):
    """The kernels on one device; a subclass provides `chunked` and `conv_scan`."""

    tensor: Tensors

    @abstractmethod
    def chunked(self, states: Any, run: Any, bounds: list[int], params: Any) -> tuple[Any, Any]:
        """SSD over packed sequences, each from its state: the packed outputs, and the state after each sequence."""

    @abstractmethod
    def conv_scan(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]: ...

    def ssd_chunks(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        b, t = window.dt.shape[:2]
        y, S_next = self.chunked(self.tensor(S), joined(window), [t * i for i in range(b + 1)], params)
        return self.tensor.back(y.unflatten(0, (b, t)), S_next)

    def ssd_packed(self, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, ...]:
        """Every sequence from its own state, or from zeros if it is fresh; empty sequences are left out of the batch."""
        states = self.tensor(S)
        states[self.tensor(fresh)] = 0
        full = [i for i in range(len(S)) if bounds[i] < bounds[i + 1]]
        y, after = self.chunked(states[full], joined(run), [0, *(int(bounds[i + 1]) for i in full)], params)
        states[full] = after
        return self.tensor.back(y[None], states)

    def conv_rest(self, params: Any) -> dict[str, Any]:
        return {
            "weight": self.tensor(params.weight),
            "bias": self.tensor(params.bias),
            "activation": "silu" if params.activation else None,
        }

    def conv_step(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        y, M_next = self.conv_scan(M, u[:, None], params)
        return y[:, 0], M_next
