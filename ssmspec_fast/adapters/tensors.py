"""Moves the suite's arrays to a device, into pools and into the shapes of windows."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ssmspec_ref.shapes import Array

POOLS: dict[str, tuple[str, ...]] = {"slots": ("rows", "shuffled", "padded")}
"""Pools whose rows write where they read: other slots to write are not taken."""


def exact(array: Array | None, device: str) -> Any:
    """Parameters, masks and indices unchanged; floats in fp32."""
    if array is None:
        return None
    tensor = torch.tensor(array, device=device)
    return tensor.float() if tensor.is_floating_point() else tensor


def apart(rows: int, device: str, last: int = 0) -> Tensor:
    """The slots of `rows` rows: descending to `last`, with a free slot between two."""
    return torch.arange(last + 2 * (rows - 1), last - 1, -2, device=device)


def pooled(
    rows: Array, device: str, dtype: torch.dtype, between: float = float("nan"), last: int = 0
) -> tuple[Tensor, Tensor]:
    """A pool with the rows in slots `apart` and `between` in all others; and the slot of each row."""
    slots = apart(len(rows), device, last)
    pool = torch.full((2 * len(rows), *rows.shape[1:]), between, dtype=dtype, device=device)
    pool[slots] = torch.tensor(rows, device=device).to(dtype)
    return pool, slots


def is_pool(rows: Any) -> bool:
    """Whether a case gives a pool (`states`, `read` and `write`) in place of the states of its rows."""
    return hasattr(rows, "states")


def held(rows: Any, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The pool and the slots that a case gives; of rows, a pool with them in slots `apart`."""
    if not is_pool(rows):
        return pooled(rows, device, dtype)
    return torch.tensor(rows.states, device=device).to(dtype), torch.tensor(rows.read, device=device)


def mapped(function: Callable[[Array], Array], record: Any) -> Any:
    """The record with a function applied to each of its arrays."""
    return SimpleNamespace(**{name: None if a is None else function(a) for name, a in vars(record).items()})


def spelled(record: Any) -> dict[str, Any]:
    """The fields of a record of the suite by the names of the engine and the launchers."""
    fields = dict(vars(record) if hasattr(record, "__dict__") else record)
    return fields | ({"halves": fields["pairs"] == "halves"} if "pairs" in fields else {})


def wide(token: Any) -> Any:
    """A token record, each array with an axis of one token."""
    return mapped(lambda a: a[:, None], token)


def nearest(ancestors: Tensor) -> Tensor:
    """The parent of every node: -1 at a root, -2 at padding (a node that does not see itself)."""
    nodes = torch.arange(ancestors.shape[2], device=ancestors.device)
    above = torch.where(ancestors & (nodes[:, None] > nodes), nodes, -1).amax(dim=2)
    return torch.where(ancestors.diagonal(dim1=1, dim2=2), above, -2)
