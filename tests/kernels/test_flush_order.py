"""Rows that are due first, of any launch: the order and what a program is told of its row, beside a plain sort."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ssmspec_kernels.shared import flush_order
from ssmspec_kernels.shared.flush_order import row_in_turn
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import watch

T, WINDOW, CAPACITY = 3, 4, 13


@triton.jit
def _turns_kernel(found, slots, lengths, origin, held, rows, T: tl.constexpr, WINDOW: tl.constexpr, CAPACITY: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    p = tl.program_id(0)
    what = row_in_turn(p, slots, lengths, origin, held, rows, T, WINDOW, CAPACITY, BLOCK)
    for i in tl.static_range(5):
        tl.store(found + 5 * p + i, what[i])


def check(module: ModuleType, seed: int) -> None:
    """Padding, lengths below 0 and beyond the window, cursors on both sides of the limit; slots and lengths may be absent.
    Nothing is read beside them."""
    rng = np.random.default_rng(seed)
    rows = (1, 2, 5, 31, 33, 65)[seed % 6]
    index = torch.int32 if seed % 2 else torch.int64
    pool = rows + 3
    slots, lengths = rng.permutation(pool)[:rows], rng.integers(-2, T + 3, rows)
    origin, held = rng.integers(0, CAPACITY, (2, pool))
    slots[rng.random(rows) < 0.3] = -1
    if seed % 3 == 0:
        slots = np.arange(rows)
    if seed % 4 == 1:
        lengths = np.full(rows, T)
    lengths_seen = np.minimum(lengths, T)
    live = slots >= 0
    due = live & (lengths_seen > 0) & (held[slots] + 2 * WINDOW > CAPACITY)
    order = np.argsort(~due, kind="stable")
    told = np.stack([np.arange(rows), slots, lengths_seen, *(np.where(live, x[slots], 0) for x in (origin, held))], axis=1)
    found = torch.full((rows, 5), -9)
    given: list[Any] = [torch.from_numpy(x).to(index) for x in (slots, lengths)]
    # What lies ahead of the cursors would make a row due that is padding.
    given += [torch.from_numpy(np.append(CAPACITY, x)).to(index)[1:] for x in (origin, held)]
    given[0] = None if seed % 3 == 0 else given[0]
    given[1] = None if seed % 4 == 1 else given[1]
    sizes = {"T": T, "WINDOW": WINDOW, "CAPACITY": CAPACITY, "BLOCK": triton.next_power_of_2(rows)}
    globals()["row_in_turn"] = module.row_in_turn
    try:
        named = dict(zip(("slots", "lengths", "origin", "held"), given, strict=True))
        with watch(found=found, **{name: x for name, x in named.items() if x is not None}) as seen:
            _turns_kernel[(rows,)](found, *given, rows, **sizes)
    finally:
        globals()["row_in_turn"] = flush_order.row_in_turn
    assert found.tolist() == told[order].tolist()
    assert seen.outside == []


@pytest.mark.parametrize("seed", range(12))
def test_rows_come_as_a_stable_sort_puts_them_and_a_program_is_told_of_its_own(seed: int) -> None:
    check(flush_order, seed)


FAULTS = [
    ("mask=row < rows, other=0).to(tl.int32), T)", "mask=row < rows, other=0).to(tl.int32), T + 1)"),
    ("tl.full((BLOCK,), T, tl.int32)", "tl.full((BLOCK,), 0, tl.int32)"),
    ("row.to(tl.int64), tl.full", "0 * row.to(tl.int64), tl.full"),
    ("held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY"),
    (" & (length > 0)", " & (length != 0)"),
    ("tl.where(due, before - 1, ", "tl.where(due, row, "),
    ("held + slot, mask=live, other=0", "held + slot, mask=row < rows, other=0"),
    ("slots + row, mask=row < rows", "slots + row, mask=row <= rows"),
    ("lengths + row, mask=row < rows", "lengths + row, mask=row <= rows"),
    ("origin + slot, mask=live, other=0", "origin + slot // 2, mask=live, other=0"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS, ids=[new for _, new in FAULTS])
def test_a_planted_fault_is_caught(old: str, new: str) -> None:
    assert caught(mutated(flush_order, old, new), check, range(12))
