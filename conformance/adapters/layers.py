"""What layers of vLLM and of SGLang do alike around kernels that are called differently: prompts in runs, convolutions."""

from abc import ABC, abstractmethod
from typing import Any

from ssmspec_ref.shapes import Array

from .peers import Tensors, joined


class Layers(ABC):
    """The kernels on one device: a peer gives `chunked` and `conv_scan`."""

    tensor: Tensors

    @abstractmethod
    def chunked(self, states: Any, run: Any, bounds: list[int], params: Any) -> tuple[Any, Any]:
        """SSD over sequences in a run, from a state each: the outputs of the run, and the states after each sequence."""

    @abstractmethod
    def conv_scan(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]: ...

    def ssd_chunks(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        b, t = window.dt.shape[:2]
        y, S_next = self.chunked(self.tensor(S), joined(window), [t * i for i in range(b + 1)], params)
        return self.tensor.back(y.unflatten(0, (b, t)), S_next)

    def ssd_packed(self, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, ...]:
        """Every sequence from its own state, one that is fresh from zeros; one without tokens is not in the batch."""
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
