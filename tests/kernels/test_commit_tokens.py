"""`commit_tokens` against lists that grow: every token, count and flag, and nothing beside."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.tokens import commit_tokens as module
from ssmspec_kernels.tokens.accept_greedy import Emitted, accept_greedy

from . import accept_cases as cases
from .mutants import caught, mutated

I32, I64 = torch.int32, torch.int64
COUNTERS = ("length", "root", "cursor", "budget", "ended")
CASES = [
    (1, 6, 5, I64, True, COUNTERS),
    (2, 5, 13, I32, True, ("length",)),
    (3, 4, 1, I32, False, ("length", "root", "ended")),
    (4, 7, 128, I64, True, ("length", "cursor", "budget")),
]


class Case:
    """Runs of 0 to t tokens, in a pool of which some slots are used, with buffers that one of the rows overruns."""

    def __init__(self, seed: int, rows: int, nodes: int, index: torch.dtype, slots: bool, given: tuple[str, ...]) -> None:
        rng = np.random.default_rng(seed)
        pool, self.size = rows + 3 if slots else rows, 2 * nodes + 5
        self.slots = rng.permutation(pool)[:rows] if slots else np.arange(rows)
        if slots:
            self.slots[2] = -1
        self.advanced = rng.integers(0, nodes + 1, rows)
        self.advanced[0], self.advanced[1] = nodes, 0
        self.tokens = rng.integers(0, 999, (rows, nodes))
        for b, count in enumerate(self.advanced):
            self.tokens[b, count:] = -1
        self.run_ended = rng.random(rows) < 0.4
        self.pool = {
            "length": rng.integers(0, self.size - nodes + 1, pool),
            "root": rng.integers(0, 9, pool),
            "cursor": rng.integers(0, 99, pool),
            "budget": rng.integers(nodes, 999, pool),
            "ended": rng.random(pool) < 0.3,
        }
        self.pool["length"][self.slots[-1]] = self.size - 1
        self.sequences = rng.integers(0, 999, (pool, self.size))
        self.given, self.index = given, index

    def expected(self) -> dict[str, np.ndarray]:
        """Row by row, as lists grow."""
        state = {name: self.pool[name].copy() for name in self.given} | {"sequences": self.sequences.copy()}
        for b, slot in enumerate(self.slots):
            if slot < 0:
                continue
            new = self.tokens[b, : self.advanced[b]].tolist()
            held = [*self.sequences[slot, : self.pool["length"][slot]].tolist(), *new][: self.size]
            state["sequences"][slot, : len(held)] = held
            changes = {"length": len(new), "cursor": len(new), "budget": -len(new)}
            for name in set(self.given) & set(changes):
                state[name][slot] += changes[name]
            if "root" in self.given and new:
                state["root"][slot] = new[-1]
            if "ended" in self.given:
                state["ended"][slot] |= self.run_ended[b]
        return state

    def call(self, kernel: ModuleType) -> dict[str, torch.Tensor]:
        rows = len(self.tokens)
        run = Emitted(
            cases.gapped(self.tokens, self.index),
            torch.zeros(rows, len(self.tokens[0]), dtype=self.index),
            torch.from_numpy(self.advanced).to(self.index),
            torch.from_numpy(self.run_ended),
        )
        state = {n: cases.vector(self.pool[n], torch.bool if n == "ended" else self.index) for n in self.given}
        wide = np.pad(self.sequences, ((1, 1), (0, 0)), constant_values=cases.SENTINEL)
        sequences, slots = cases.gapped(wide, self.index)[1:-1], torch.from_numpy(self.slots).to(self.index)
        named = {"slots": slots if len(self.sequences) > rows else None} | state
        kernel.commit_tokens(run, sequences, named.pop("length"), **named)
        return state | {"sequences": sequences}


def judge(kernel: ModuleType, case: tuple[Any, ...]) -> bool:
    drawn = Case(*case)
    wanted, found = drawn.expected(), drawn.call(kernel)
    margins = [x._base is not None and int(x._base.flatten()[0]) == 0 for n, x in found.items() if n != "sequences"]
    wide = found["sequences"]._base
    margins.append(wide is not None and bool((wide[:2] == cases.SENTINEL).all() and (wide[-2:] == cases.SENTINEL).all()))
    equal = [np.array_equal(found[name].numpy(), wanted[name]) for name in wanted]
    return all([*equal, *margins, cases.gaps_stand(found["sequences"])])


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c[:3])))
def test_sequences_and_counts_are_those_of_lists_that_grow(case: tuple[Any, ...]) -> None:
    assert judge(module, case)


def test_windows_one_after_the_other_write_what_they_emit() -> None:
    rng = np.random.default_rng(5)
    rows = cases.draw(5, 4, 6, 2, eos=(1,))
    sequences, length = torch.full((8, 40), -5), torch.zeros(8, dtype=I64)
    state: dict[str, Any] = {"budget": torch.from_numpy(rows.budget) + 6, "ended": torch.zeros(8, dtype=torch.bool)}
    held: list[list[int]] = [[] for _ in range(4)]
    for _ in range(5):
        choice = torch.from_numpy(rng.choice([0, 0, 0, 1], (4, 6)))
        run = accept_greedy(
            torch.from_numpy(rows.tokens), torch.from_numpy(rows.parents), choice, **state, eos=torch.tensor([1])
        )
        module.commit_tokens(run, sequences, length, **state)
        for b in range(4):
            held[b] += run.tokens[b, : run.advanced[b]].tolist()
    for b in range(4):
        assert sequences[b, : length[b]].tolist() == held[b]
        assert 1 not in held[b][:-1]
        assert len(held[b]) + int(state["budget"][b]) == rows.budget[b] + 6


@pytest.mark.parametrize("index", [I32, I64])
def test_bytes_are_the_closed_form_each_element_once(index: torch.dtype) -> None:
    tokens, advanced = torch.zeros(4, 7, dtype=index), torch.tensor([2, 0, 7, 0], dtype=index)
    run = Emitted(tokens, torch.zeros(4, 7, dtype=index), advanced, torch.zeros(4, dtype=torch.bool))
    sequences = torch.zeros(4, 30, dtype=index)
    state = {name: torch.ones(4, dtype=index) for name in ("length", "root", "cursor", "budget")}
    with watch(tokens=tokens, advanced=advanced, sequences=sequences, **state) as seen:
        module.commit_tokens(run, sequences, **state)
    assert seen.distinct_bytes() == module.traffic_bytes(4, 7, 9, 2, 3, index=index.itemsize)
    assert all(access.requested == access.distinct for access in seen.accesses.values())
    assert seen.outside == seen.races == []


MUTANTS = {
    "tokens one too far": ("(start + n) * stride_seq_l", "(start + n + 1) * stride_seq_l"),
    "tokens from the start": ("(start + n) * stride_seq_l", "n * stride_seq_l"),
    "padding tokens are written": ("fits = (n < T) & (n < count) & (start", "fits = (n < T) & (start"),
    "behind the end of the buffer": (" & (start + n < L)", ""),
    "the length stays": ("tl.store(length + slot, (start + count)", "tl.store(length + slot, start"),
    "the cursor stays": ("_add(cursor, slot, count)", "_add(None, slot, count)"),
    "the budget grows": ("_add(budget, slot, -count)", "_add(budget, slot, count)"),
    "the root is the last draft": ("n == count - 1", "n == count - 2"),
    "rows that stand still lose their root": ("mask=count > 0)", "mask=count >= 0)"),
    "an ended row comes back": ("over = (tl.load(ended + slot) != 0) | ", "over = "),
    "an end is not kept": (" | (tl.load(run_ended + b) != 0)", ""),
    "the sequence of the row, not of the slot": ("sequences + slot * stride_seq_s", "sequences + b * stride_seq_s"),
    "padding rows are entered": ("if slot >= 0:", "if slot >= -1:"),
    "the first row's tokens": ("tokens + b * stride_tok_b", "tokens"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    assert caught(mutated(module, *MUTANTS[name]), judge, CASES)
