"""The kernel of a state in codes with scales for the suite: one token."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ssmspec_fast.adapters.tensors import is_pool, pooled
from ssmspec_kernels.coded.ssd_coded_step import ssd_coded_step
from ssmspec_ref.contract import LARGEST_CODE, Capability, Graph, Launch, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

TYPES = {"int8": torch.int8, "int16": torch.int16}
SLOTS = {"slots": ("rows", "shuffled", "padded", "apart")}
KEPT: tuple[dict[str, Any], ...] = (
    {"state": "int8", "state_scale": "row"},
    {"state": "int16", "state_scale": 16},
    {"state": "int8", "state_scale": "row", "state_rounding": "stochastic"},
)
"""How the states of the subjects are kept."""


@dataclass(frozen=True)
class Coded:
    """States in one format; `kernels` is `adapters.kernels.Kernels`. A call rounds with other numbers than the one before."""

    kernels: Any
    contract: NumericContract
    call: Tensor
    launcher: Callable[..., Tensor] = ssd_coded_step

    def encoded(self, states: Array) -> tuple[Tensor, Tensor]:
        """Codes and scales, as the kernel keeps them, of states that are exact in the format."""
        held = torch.tensor(states, device=self.kernels.device)
        blocks = torch.split(held.abs(), self.block(held.shape[-1]), dim=-1)
        largest = torch.stack([block.amax(dim=-1) for block in blocks], dim=-1) / LARGEST_CODE[self.contract.state]
        scales = torch.where(largest > 0, largest, 1.0).float()
        return (held / self.wide(scales, held).double()).round().to(TYPES[self.contract.state]), scales

    def decoded(self, codes: Tensor, scales: Tensor) -> Array:
        """What the kernel would read."""
        return (codes.float() * self.wide(scales, codes)).double().cpu().numpy()

    def wide(self, scales: Tensor, states: Tensor) -> Tensor:
        """The scale of every state."""
        return scales.repeat_interleave(self.block(states.shape[-1]), dim=-1)[..., : states.shape[-1]]

    def block(self, n: int) -> int:
        scale = self.contract.state_scale
        return scale if isinstance(scale, int) else n

    def step(self, S: Any, token: Any, params: Any) -> Launch:
        device, of = self.kernels.device, self.kernels
        if is_pool(S):
            codes, scales = self.encoded(S.states)
            slots, targets = (torch.tensor(a, device=device).int() for a in (S.read, S.write))
        else:
            kept = self.encoded(S)
            (codes, slots), (scales, _) = (
                pooled(a.cpu().numpy(), device, a.dtype, between)
                for a, between in zip(kept, (LARGEST_CODE[self.contract.state], float("nan")), strict=True)
            )
            slots, targets = slots.int(), None
        given, named = (codes, scales), of.arguments(self.launcher, token, params) | {"slots": slots, "targets": targets}
        named |= {"call": self.call if self.contract.state_rounding == "stochastic" else None}

        def read(y: Tensor) -> tuple[Array, Array]:
            states = self.decoded(codes, scales)
            return y.double().cpu().numpy(), states if is_pool(S) else states[slots.cpu().numpy()]

        block = self.block(codes.shape[-1])
        return Launch((given, named), lambda: self.launcher(*given, block=block, **named), read)


def capability(kernels: Any, contract: NumericContract, launcher: Callable[..., Tensor] = ssd_coded_step) -> Capability:
    """One token, from states kept as the contract says."""
    of = Coded(kernels, contract, torch.zeros(1, dtype=torch.int64, device=kernels.device), launcher)
    return Capability(Graph(of.step), contract, Limits(SLOTS))


def subjects(kernels: Any, contract: NumericContract) -> list[Subject]:
    """The formats of the state; in the interpreter, where 2,000 calls take minutes, one that rounds to the nearest."""
    return [
        Subject(f"ssd_coded_step, {how['state']}, {how.get('state_rounding', 'nearest')}", {
            "ssd.step": capability(kernels, replace(contract, **how)),
        })
        for how in (KEPT if kernels.device != "cpu" else KEPT[:1])
    ]  # fmt: skip
