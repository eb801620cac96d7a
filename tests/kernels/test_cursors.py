"""The cursors of replay buffers beside the oracle's rule."""

from types import ModuleType

import numpy as np
import pytest
import torch

from ssmspec_kernels.shared import cursors
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from tests.kernels.mutants import mutated


@pytest.mark.parametrize("capacity", [2, 3, 13, 33, 64])
def test_the_cursors_follow_the_rule_at_any_capacity_and_a_window_always_fits(capacity: int) -> None:
    check_cursors(cursors, capacity)


def check_cursors(module: ModuleType, capacity: int) -> None:
    """The cursors of 200 rows over many windows, beside the rule of the oracle."""
    rng, window, rows = np.random.default_rng(capacity), max(1, min(7, capacity // 2)), 200
    slots = torch.from_numpy(rng.permutation(rows + 9)[:rows])
    slots[slots == 0] = rows + 8 if rows + 8 not in slots else -1
    slots[3], slots[5] = (0 if capacity % 2 == 0 else slots[3]), -1
    origin, held = (torch.zeros(rows + 9, dtype=torch.int32) for _ in range(2))
    origin.copy_(torch.from_numpy(rng.integers(0, capacity, rows + 9)))
    want, rule = [origin.clone().long(), held.clone().long()], ReplayBuffer(capacity, window)
    for _ in range(12):
        lengths = torch.from_numpy(rng.integers(0, window + 1, rows))
        took = torch.from_numpy(rng.integers(0, lengths.numpy() + 1))
        module.commit_window(origin, held, took, capacity=capacity, window=window, slots=slots, lengths=lengths)
        for row, slot in enumerate(slots.tolist()):
            if slot < 0 or lengths[row] == 0:
                continue
            if bool(rule.due(np.array(int(want[1][slot])))):
                want[0][slot] = (want[0][slot] + want[1][slot]) % capacity
                want[1][slot] = 0
            want[1][slot] += int(took[row])
        assert torch.equal(origin.long(), want[0])
        assert torch.equal(held.long(), want[1])
        assert int(held.max()) + window <= capacity


def check_all_cursors(module: ModuleType) -> None:
    for capacity in (13, 8):
        check_cursors(module, capacity)


CURSOR_FAULTS = [
    ("took &= slot >= 0", "took &= slot > 0"),
    ("held + 2 * WINDOW > CAPACITY", "held + WINDOW > CAPACITY"),
    ("held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY"),
    ("(start + past) % CAPACITY", "(start + past) & (CAPACITY - 1)"),
    ("tl.where(due, new, past + new)", "tl.where(due, 0, past + new)"),
    ("took &= slot >= 0", "slot = tl.maximum(slot, 0)"),
    ("took &= tl.load(lengths + b, mask=took, other=0) > 0", "pass"),
    ("b = tl.program_id(0) * BLOCK + ", "b = "),
]


@pytest.mark.parametrize(("old", "new"), CURSOR_FAULTS, ids=[new for _, new in CURSOR_FAULTS])
def test_planted_fault_of_the_cursors_is_caught(old: str, new: str) -> None:
    mutant = mutated(cursors, old, new)
    with pytest.raises(AssertionError):
        check_all_cursors(mutant)
