"""Rows of a batch read from a pool by slot and written back; a negative slot is padding."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def index(slots: Tensor) -> Tensor:
    """The slots as indices; padding reads slot 0, and what it reads is not used."""
    return slots.clamp_min(0).long()


def sent(numbers: Any, device: torch.device | str) -> Tensor:
    """Integers from the host on a device; the host does not wait for the copy."""
    found = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return found.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else found.to(device)


def take(pool: Tensor, slots: Tensor) -> Tensor:
    """The entries of the rows; those of padding are finite."""
    read = pool[index(slots)]
    return torch.where(expand(slots >= 0, read), read, read.new_zeros(()))


def stand_in(slots: Tensor, *rows: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Slots and rows in which padding repeats the first live row, and whether there is one.

    So rows can be written by index, and padding writes a value that is written anyway: no mask is counted, and nothing waits.
    """
    real = slots >= 0
    first = real.long().argmax()[None]
    index = torch.where(real, torch.arange(len(slots), device=slots.device), first)
    return slots[index].clamp_min(0).long(), tuple(x[index] for x in rows), real.any()


def put(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Writes the rows back, in place, except padding."""
    owner, (new,), some = stand_in(slots, rows)
    pool.index_copy_(0, owner, torch.where(some, new.to(pool.dtype), pool[owner]))


def move(counts: Tensor, slots: Tensor, new: Tensor) -> None:
    """Writes integers back, in place, except padding: by their difference, which is 0 for padding."""
    owner = index(slots)
    counts.index_add_(0, owner, (new - counts[owner]) * expand(slots >= 0, new))


def expand(mask: Tensor, like: Tensor) -> Tensor:
    """A mask with as many axes as `like`."""
    return mask.view(*mask.shape, *(1,) * (like.dim() - mask.dim()))


def each(inputs: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A record with a function applied to each of its tensors."""
    return type(inputs)(*(None if x is None else function(x) for x in inputs))


def unpack(x: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """A packed run (1, t, ..) as rows (m, longest, ..), each padded with zeros, and the mask of real tokens."""
    starts, lengths = bounds[:-1].long(), (bounds[1:] - bounds[:-1]).long()
    longest = int(lengths.max()) if len(lengths) else 0
    steps = torch.arange(longest, device=x.device)
    live = steps < lengths[:, None]
    places = torch.where(live, starts[:, None] + steps, 0)
    rows = x[0][places]
    return torch.where(expand(live, rows), rows, rows.new_zeros(())), live


def repack(rows: Tensor, live: Tensor, like: Tensor) -> Tensor:
    """Rows back into one run of the size of `like`; places that belong to no sequence are 0."""
    out = rows.new_zeros((1, like.shape[1], *rows.shape[2:]))
    found = rows[live]
    out[0, : len(found)] = found
    return out


def down_tree(root: Tensor, parents: Tensor, step: Callable[[Tensor, int], Tensor]) -> Tensor:
    """(b, 1 + t, ..): the value of the root (b, ..), then that of each node t: `step` of its parent's value and t."""
    nodes, rows = parents.shape[1], torch.arange(len(root), device=root.device)
    values = root.new_empty((len(root), nodes + 1, *root.shape[1:]))
    values[:, 0] = root
    above = parents.clamp_min(-1).long() + 1
    for t in range(nodes):
        values[:, t + 1] = step(values[rows, above[:, t]], t)
    return values
