"""`accept_greedy` against the oracle's walk and cut, token for token."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.tokens import accept_greedy as module
from ssmspec_ref.accept import greedy

from . import accept_cases as cases
from .mutants import caught, mutated

I32, I64 = torch.int32, torch.int64
CASES = [
    (1, 12, 1, 3, (), False, I64),
    (2, 12, 6, 2, (1,), True, I32),
    (3, 10, 13, 3, (7, 5, 2), True, I64),
    (4, 8, 64, 2, (), False, I32),
    (5, 6, 128, 2, (6,), True, I64),
    (6, 12, 9, 2, (), True, I64),
]


def choices(rows: cases.Rows, seed: int, vocabulary: int) -> np.ndarray:
    """What the target says; on half of the nodes, where it can be, the token of a child."""
    rng = np.random.default_rng(1000 + seed)
    choice = rng.integers(0, vocabulary, rows.tokens.shape)
    for b, parents in enumerate(rows.parents):
        for i, parent in enumerate(parents):
            if parent >= 0 and rng.random() < 0.5:
                choice[b, parent] = rows.tokens[b, i]
    return choice


def judge(
    kernel: ModuleType,
    seed: int,
    count: int,
    nodes: int,
    vocabulary: int,
    eos: tuple[int, ...],
    slots: bool,
    index: torch.dtype,
) -> bool:
    rows = cases.draw(seed, count, nodes, vocabulary, eos=eos, slots=slots)
    choice = choices(rows, seed, vocabulary)
    tokens, parents, said = (cases.gapped(x, index) for x in (rows.tokens, rows.parents, choice))
    given, out = rows.arguments(index), cases.room(rows, index)
    before: dict[str, Any] = {name: None if x is None else x.clone() for name, x in given.items()}
    kernel.accept_greedy(tokens, parents, said, given.pop("budget"), **given, out=out)
    kept = all(x is None or torch.equal(x, before[name]) for name, x in given.items())
    walks = [
        None if tree is None else greedy.walk(tree, choice[b, : len(tree)].tolist()) for b, tree in enumerate(rows.trees)
    ]
    return kept and cases.same(rows, out, walks)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_runs_equal_the_oracles_walk_and_cut(case: Any) -> None:
    assert judge(module, *case)


def test_without_a_cut_the_runs_equal_the_oracles_sweep() -> None:
    rows = cases.draw(7, 4, 20, 2)
    choice = choices(rows, 7, 2)
    arguments = (torch.from_numpy(x) for x in (rows.tokens, rows.parents, choice, np.full(4, 99)))
    out = module.accept_greedy(*arguments)
    for found, wanted in zip(out[:3], greedy.sweep(rows.tokens, rows.parents, choice), strict=True):
        assert np.array_equal(found.numpy(), wanted)
    assert not out.ended.any()


def chain_of(tokens: list[int], choice: list[int], budget: int, eos: list[int]) -> tuple[list[int], list[int], bool]:
    parents = torch.arange(-1, len(tokens) - 1)[None]
    ends = torch.tensor(eos) if eos else None
    arguments = (torch.tensor([tokens]), parents, torch.tensor([choice]), torch.tensor([budget]))
    out = module.accept_greedy(*arguments, eos=ends)
    count = int(out.advanced[0])
    return out.tokens[0, :count].tolist(), out.path[0, :count].tolist(), bool(out.ended[0])


@pytest.mark.parametrize(
    ("budget", "eos", "wanted"),
    [
        (9, [], ([5, 6, 7, 8], [0, 1, 2, 3], False)),
        (5, [], ([5, 6, 7, 8], [0, 1, 2, 3], False)),
        (4, [], ([5, 6, 7, 8], [0, 1, 2, 3], True)),
        (3, [], ([5, 6, 7], [0, 1, 2], True)),
        (1, [], ([5], [0], True)),
        (0, [], ([], [], True)),
        (-3, [], ([], [], True)),
        (9, [6, 7], ([5, 6], [0, 1], True)),
        (9, [8], ([5, 6, 7, 8], [0, 1, 2, 3], True)),
        (9, [4], ([5, 6, 7, 8], [0, 1, 2, 3], False)),
        (2, [6], ([5, 6], [0, 1], True)),
    ],
)
def test_the_cut_falls_on_the_first_end_of_sequence_and_on_the_budget(budget: int, eos: list[int], wanted: Any) -> None:
    assert chain_of([4, 5, 6, 7], [5, 6, 7, 8], budget, eos) == wanted


def test_the_first_of_two_twins_is_taken_though_the_second_leads_deeper() -> None:
    tokens, parents, choice = [9, 5, 5, 6], [-1, 0, 0, 2], [5, 6, 6, 7]
    given = tuple(torch.tensor([x]) for x in (tokens, parents, choice, 9))
    out = module.accept_greedy(given[0], given[1], given[2], given[3])
    assert out.path[0].tolist() == [0, 1, -1, -1]
    assert out.tokens[0].tolist() == [5, 6, -1, -1]


@pytest.mark.parametrize("case", [(13, 2, False), (40, 4, True)])
def test_bytes_are_the_closed_form_each_element_once(case: tuple[int, int, bool]) -> None:
    nodes, size, flags = case
    index = I64 if size == 2 else I32
    rows = cases.draw(3, 3, nodes, 2)
    tensors = {
        name: torch.from_numpy(x).to(index)
        for name, x in {
            "tokens": rows.tokens,
            "parents": rows.parents,
            "choice": rows.tokens.copy(),
            "budget": rows.budget[:3],
        }.items()
    }
    ended = torch.zeros(3, dtype=torch.bool) if flags else None
    eos = torch.tensor([5, 6, 7], dtype=index)
    out = module.new_emitted(tensors["tokens"], tensors["parents"])
    named = tensors | {"eos": eos} | {f"y_{k}": x for k, x in out._asdict().items()} | ({"ended": ended} if flags else {})
    with watch(**named) as seen:
        module.accept_greedy(*tensors.values(), ended=ended, eos=eos, out=out)
    assert seen.distinct_bytes() == module.traffic_bytes(3, nodes, index=index.itemsize, eos=3, ended=flags)
    for name in ("tokens", "parents", "choice"):
        assert seen.loaded(name).requested == 3 * nodes * index.itemsize
    assert seen.outside == seen.races == []


MUTANTS = {
    "the last sibling wins": (
        "tl.min(tl.where((parent == node) & (token == t_n) & (i > node), i, BLOCK_T), axis=0)",
        "(tl.max(tl.where((parent == node) & (token == t_n) & (i > node), i, -1), axis=0) + BLOCK_T + 1) % (BLOCK_T + 1)",
    ),
    "any node with the token": ("(parent == node) & (token == t_n)", "(token == t_n)"),
    "any child": ("(parent == node) & (token == t_n)", "(parent == node)"),
    "one token beyond the budget": ("(count >= left)", "(count > left)"),
    "the end of sequence is passed": ("over = ends(t_n, eos, EOS, BLOCK_EOS) | ", "over = "),
    "only the first end of sequence counts": ("(k < EOS)).to(tl.int32)", "(k < 1)).to(tl.int32)"),
    "the end is not told": ("tl.store(y_ended + b, over)", "tl.store(y_ended + b, over == 2)"),
    "an ended row goes on": ("over = over | (tl.load(ended + slot) != 0)", "over = over | (tl.load(ended + slot) == 2)"),
    "padding emits": ("return root & (over == 0), left, over", "return over == 0, left, over"),
    "the budget of the row, not of the slot": ("tl.load(budget + slot)", "tl.load(budget + tl.program_id(0))"),
    "padding rows are written": ("if slot >= 0:", "if slot >= -1:"),
    "the path runs one behind": ("path = tl.where(i == count, node, path)", "path = tl.where(i == count + 1, node, path)"),
    "the token after the path is lost": ("emitted = tl.where(i == count, t_n", "emitted = tl.where(i == count - 1, t_n"),
    "said by the first row": ("choice + b * stride_cho_b", "choice"),
    "path unwritten": ("path.to(y_path.dtype.element_ty), mask=i < T", "path.to(y_path.dtype.element_ty), mask=i < T - 1"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    small = [case for case in CASES if case[2] < 64]
    assert caught(mutated(module, *MUTANTS[name]), lambda kernel, case: judge(kernel, *case), small)
