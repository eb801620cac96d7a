"""Attention over a cache for the suite: caches in a pool, slots out of order, NaN between them."""

from dataclasses import dataclass
from typing import Any

import torch

from ssmspec_fast.adapters.tensors import pooled
from ssmspec_kernels.attention.kv_compact import kv_compact
from ssmspec_kernels.attention.tree_attention import tree_attention
from ssmspec_kernels.attention.tree_mask import tree_mask
from ssmspec_ref.contract import Capability, Graph, Launch, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array


@dataclass(frozen=True)
class Attention:
    """The kernels on one device, keys, values and activations stored in one format."""

    device: str
    io: torch.dtype

    def verify_tree(
        self, K: Array, V: Array, length: Array, q: Array, k: Array, v: Array, ancestors: Array, scale: Any
    ) -> Launch:
        lengths, slots = pooled(length, self.device, torch.int64, 2**30)
        window = (torch.tensor(x, device=self.device).to(self.io) for x in (q, k, v))
        caches = (pooled(x, self.device, self.io)[0] for x in (K, V))
        kernel: Any = tree_attention
        sees = torch.tensor(ancestors, device=self.device)
        given, named = (*window, *caches, lengths), {"ancestors": sees, "scale": scale, "slots": slots}
        return Launch((given, named), lambda: kernel(*given, **named), lambda y: y.double().cpu().numpy())

    def compact(self, K: Array, V: Array, length: Array, path: Array) -> Launch:
        lengths, slots = pooled(length, self.device, torch.int64, 0)
        keys, values = (pooled(x, self.device, self.io)[0] for x in (K, V))
        given = keys, values, torch.tensor(path, device=self.device), lengths

        def read(_: Any) -> tuple[Array, ...]:
            return tuple(x[slots].double().cpu().numpy() for x in (keys, values))

        return Launch((given, slots), lambda: kv_compact(*given, slots=slots), read)

    def positions(self, length: Array, parents: Array) -> Array:
        _, depths = tree_mask(torch.tensor(parents, device=self.device))
        found: Array = (torch.tensor(length, device=self.device)[:, None] + depths.clamp_min(0)).cpu().numpy()
        return found


def subjects(device: str, io: torch.dtype, contract: NumericContract) -> list[Subject]:
    kernels = Attention(device, io)
    nodes = Limits(sizes={"t": (1, 128)}, reason="nodes of a tree")
    operations: dict[str, Any] = {"attention.verify_tree": Graph(kernels.verify_tree)}
    operations |= {"attention.compact": Graph(kernels.compact)}
    operations |= {"attention.positions": kernels.positions} if io == torch.float32 else {}  # bf16 does not hold them
    return [Subject("attention", {name: Capability(run, contract, nodes) for name, run in operations.items()})]
