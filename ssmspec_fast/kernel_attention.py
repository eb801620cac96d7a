"""Attention over a cache as the suite sees it: caches in a pool, slots out of order, NaN between them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssmspec_kernels.kv_compact import kv_compact
from ssmspec_kernels.tree_attention import tree_attention
from ssmspec_ref.contract import Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array


@dataclass(frozen=True)
class Attention:
    """The kernels on one device, keys, values and activations stored in one format."""

    device: str
    io: torch.dtype

    def verify_tree(
        self, K: Array, V: Array, length: Array, q: Array, k: Array, v: Array, ancestors: Array, scale: Any
    ) -> Array:
        slots, lengths = self.slots(K), self.pooled(length, torch.int64, 2**30)
        window = (self.given(x) for x in (q, k, v))
        caches = (self.pooled(x, self.io, float("nan")) for x in (K, V))
        kernel: Any = tree_attention
        sees = torch.tensor(ancestors, device=self.device)
        y: Tensor = kernel(*window, *caches, lengths, ancestors=sees, scale=scale, slots=slots)
        return y.double().cpu().numpy()

    def compact(self, K: Array, V: Array, length: Array, path: Array) -> tuple[Array, Array]:
        slots, lengths = self.slots(K), self.pooled(length, torch.int64, 0)
        keys, values = (self.pooled(x, self.io, float("nan")) for x in (K, V))
        kv_compact(keys, values, torch.tensor(path, device=self.device), lengths, slots=slots)
        return keys[slots].double().cpu().numpy(), values[slots].double().cpu().numpy()

    def given(self, array: Array) -> Tensor:
        return torch.tensor(array, device=self.device).to(self.io)

    def slots(self, rows: Array) -> Tensor:
        return torch.arange(2 * (len(rows) - 1), -1, -2, device=self.device)

    def pooled(self, rows: Array, dtype: torch.dtype, between: float) -> Tensor:
        pool = torch.full((2 * len(rows), *rows.shape[1:]), between, dtype=dtype, device=self.device)
        pool[self.slots(rows)] = torch.tensor(rows, device=self.device).to(dtype)
        return pool


def subjects(device: str, io: torch.dtype, contract: NumericContract) -> list[Subject]:
    kernels = Attention(device, io)
    nodes = Limits(sizes={"t": (1, 128)}, reason="nodes of a tree")
    operations: dict[str, Any] = {"attention.verify_tree": kernels.verify_tree, "attention.compact": kernels.compact}
    return [Subject("attention", {name: Capability(run, contract, nodes) for name, run in operations.items()})]
