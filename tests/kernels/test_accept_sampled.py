"""`accept_sampled` against the oracle, decision by decision: the same noise, the same fp32 laws, exact arithmetic."""

from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from conformance.interpreter.memory import watch
from ssmspec_kernels.tokens import accept_sampled as module
from ssmspec_kernels.tokens.accept_greedy import new_emitted
from ssmspec_ref.accept import UniformDice, proposals
from ssmspec_ref.accept import multi_step as tree_rule
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.accept.sampled import LAWS

from .mutants import caught, mutated
from .sampled_cases import CASES, GRID, I32, I64, close, drawn_case, exact, judge


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c[:5])))
def test_every_decision_is_the_oracles_and_none_needs_an_excuse(case: tuple[Any, ...]) -> None:
    assert judge(module, drawn_case(case)) == (True, 0)


def one(
    kernel: ModuleType,
    law: str,
    tokens: list[int],
    parents: list[int],
    p: Any,
    q: Any,
    coins: Any,
    picks: Any,
    budget: int = 99,
) -> tuple[list[int], list[int]]:
    """Tokens and path of one row; p and q are rows for every node."""
    as_row = [torch.tensor([x]) for x in (tokens, parents)]
    p, coins, picks = (torch.tensor([x], dtype=torch.float32) for x in (p, coins, picks))
    laws = {"q": torch.tensor([q], dtype=torch.float32)} if law in ("iid", "without_replacement") else {}
    noise = {} if law == "naive" else {"coins": coins}
    out = kernel.accept_sampled(*as_row, p, picks, torch.tensor([budget]), law=law, **laws, **noise, block_i=2)
    count = int(out.advanced[0])
    return out.tokens[0, :count].tolist(), out.path[0, :count].tolist()


@pytest.mark.parametrize("law", ["iid", "without_replacement", "point_mass"])
def test_a_coin_at_zero_never_accepts_an_excluded_token(law: str) -> None:
    p = [[0.0, 0.5, 0.5]] * 2
    assert one(module, law, [9, 0], [-1, 0], p, [[0.5, 0.25, 0.25]] * 2, [0, 0], [0, 0]) == ([1], [0])


@pytest.mark.parametrize("law", ["iid", "without_replacement"])
def test_equal_laws_accept_at_the_largest_uniform(law: str) -> None:
    p = [[0.3, 0.7]] * 2
    assert one(module, law, [9, 1], [-1, 0], p, p, [0, 1 - 2**-24], [0, 0])[1] == [0, 1]


def edges_fit(kernel: ModuleType, law: str) -> bool:
    """Picks at the edges of tokens with and without weight, a coin at u = p / q, and a token that is rejected twice."""
    p, edges = [[0.0, 0.5, 0.0, 0.5, 0.0]], [(0.0, 1), (0.5 - 2**-25, 1), (0.5, 3), (1 - 2**-24, 3)]
    fit = [one(kernel, law, [9], [-1], p, [[0.2] * 5], [0], [u]) == ([token], [0]) for u, token in edges]
    if law in ("iid", "without_replacement"):
        fit.append(one(kernel, law, [9, 0], [-1, 0], [[0.25, 0.75]] * 2, [[0.5, 0.5]] * 2, [0, 0.5], [0, 0]) == ([1], [0]))
        p, q = [[0.0, 0.25, 0.375, 0.375]] * 3, [[0.5, 0.125, 0.125, 0.25]] * 3
        picked = {"iid": [1, 2, 2], "without_replacement": [1, 2, 3]}[law]
        for u, token in zip((0.125, 0.5, 0.875), picked, strict=True):
            fit.append(one(kernel, law, [9, 0, 0], [-1, 0, 0], p, q, [0, 0.5, 0.5], [u] * 3) == ([token], [0]))
    return all(fit)


@pytest.mark.parametrize("law", LAWS)
def test_a_pick_falls_on_no_token_without_weight(law: str) -> None:
    assert edges_fit(module, law)


@pytest.mark.parametrize("law", ["iid", "without_replacement"])
def test_the_first_coin_falls_as_the_exact_product_says(law: str) -> None:
    rng = np.random.default_rng(5)
    below = above = 0
    for _ in range(60):
        q, u = np.float32(rng.uniform(0.3, 0.7)), np.float32(rng.integers(2**23, GRID) / GRID)
        p = np.float32(float(u) * float(q))
        accepts = Fraction(float(u)) * Fraction(float(q)) < Fraction(float(p))
        of_p, of_q = ([[float(x), 1 - float(x)]] * 2 for x in (p, q))
        assert one(module, law, [9, 0], [-1, 0], of_p, of_q, [0, float(u)], [0, 0])[1] == ([0, 1] if accepts else [0])
        below, above = below + accepts, above + (not accepts)
    assert min(below, above) > 10


@pytest.mark.parametrize("law", LAWS)
def test_the_last_token_is_picked_by_the_share_of_the_sum_found(law: Any) -> None:
    p = np.random.default_rng(3).random((1, 1, 301)).astype(np.float32)
    arguments = (torch.tensor([[9]]), torch.tensor([[-1]]))
    given: dict[str, Any] = {} if law == "naive" else {"coins": torch.tensor([[0.5]])}
    given |= {"q": torch.full((1, 1, 301), 1 / 301)} if law in ("iid", "without_replacement") else {}
    for u in (0.0, 0.25, 0.9, 1 - 2**-24):
        wanted = int(np.searchsorted(np.cumsum(p[0, 0].astype(float)), u * p.astype(float).sum(), side="right"))
        picks, budget = torch.tensor([[u]], dtype=torch.float32), torch.tensor([9])
        out = module.accept_sampled(*arguments, torch.from_numpy(p), picks, budget, law=law, **given, block_i=64)
        assert int(out.tokens[0, 0]) == wanted


def test_a_decision_on_the_edge_after_a_rejection_is_called_close_and_others_are_not() -> None:
    tree = DraftTree((9, 0, 1), (-1, 0, 0))
    p = exact([[0.25, 0.25, 0.5]] * 3)
    q = exact([[0.5, 0.5, 0.0]] * 3)
    picks = [Fraction(1, 8)] * 3
    for u, expected in ((Fraction(1, 4), False), (Fraction(0), True)):
        coins = [Fraction(0), Fraction(3, 4), u]
        run = tree_rule.multi_step(tree, p, proposals.iid(tree, q), UniformDice(coins, picks))
        assert run.path == (0,)
        assert close("iid", tree, run, p, q, coins, picks) is expected


@pytest.mark.parametrize("index", [I32, I64])
def test_only_the_rows_that_draw_are_read(index: torch.dtype) -> None:
    tokens = torch.tensor([[9, 1, 2], [9, 3, 4], [9, 5, 6], [9, 5, 6]], dtype=index)
    parents = torch.tensor([[-1, 0, 1]] * 4, dtype=index)
    p, q = (torch.full((4, 3, 37), 1 / 37) for _ in "pq")
    p[1, 0, 3] = p[0, 1, 2] = 0
    coins, picks, budget = torch.full((4, 3), 0.5), torch.full((4, 3), 0.5), torch.tensor([9] * 4, dtype=index)
    out = new_emitted(tokens, parents)
    named = {"tokens": tokens, "parents": parents, "p": p, "q": q, "coins": coins, "picks": picks, "budget": budget}
    with watch(**named, **{f"y_{k}": x for k, x in out._asdict().items()}) as seen:
        module.accept_sampled(tokens, parents, p, picks, budget, law="iid", q=q, coins=coins, out=out, block_i=16)
    assert out.path.tolist() == [[0, 1, -1], [0, -1, -1], [0, 1, 2], [0, 1, 2]]
    assert seen.distinct_bytes() == module.traffic_bytes(4, 3, 37, 2, 5, index=index.itemsize)
    assert seen.outside == seen.races == []


MUTANTS = {
    "u = p / q accepts": (
        "iid",
        "(u * q_x * S < r_x * W)",
        "(u * q_x * S <= r_x * W)",
    ),
    "a point mass accepts at u = p": (
        "point_mass",
        "(u * S < r_x)",
        "(u * S <= r_x)",
    ),
    "the second child is judged by p": (
        "iid",
        "r_x = tl.maximum(r_x - l * q_x, 0.0)",
        "r_x = tl.maximum(r_x, 0.0)",
    ),
    "the residual is not normalised": (
        "iid",
        "accepted = tested & (u * q_x * S",
        "accepted = tested & (u * q_x",
    ),
    "q keeps its norm without the drawn tokens": (
        "without_replacement",
        "W = W_next if SHRINKING",
        "W = W if SHRINKING",
    ),
    "q keeps the drawn tokens": (
        "without_replacement",
        "W += tl.sum(_undrawn(q_i, i, first, drawn, token, BLOCK_I)",
        "W += tl.sum((q_i)",
    ),
    "a twin is judged again": (
        "without_replacement",
        "tested = tested & (tl.max((before & (token == x))",
        "tested = tested & (tl.max((before & (token != token))",
    ),
    "excluded children are rejected": (
        "iid",
        "tested = q_x > 0",
        "tested = q_x >= 0",
    ),
    "the residual of the first rejection only": (
        "iid",
        "l_next = l + S / W",
        "l_next = one",
    ),
    "no residual": (
        "iid",
        "if S_next > 0:",
        "if S_next < 0:",
    ),
    "p - q where q is greater": (
        "iid",
        "r = tl.maximum(r - l * tl.load(at, mask=i < V, other=0.0).to(tl.float64), 0.0)",
        "r = tl.abs(r - l * tl.load(at, mask=i < V, other=0.0).to(tl.float64))",
    ),
    "drawn tokens keep their weight": (
        "point_mass",
        "r = _undrawn(r, i, first, drawn, token, BLOCK_I)",
        "r = r",
    ),
    "the residual outlives its node": (
        "iid",
        "l, S, W = one - one, one, one\n                summed",
        "summed",
    ),
    "the pick at the parent": (
        "iid",
        "node = child\n                p_n",
        "p_n",
    ),
    "the pick's noise of the root": (
        "iid",
        "u = tl.load(picks + b * stride_pick.b + node * stride_pick.t).to(tl.float64)\n        x",
        "u = tl.load(picks + b * stride_pick.b).to(tl.float64)\n        x",
    ),
    "the coin of the parent": (
        "iid",
        "u = tl.sum(tl.where(i == child, coin, 0.0), axis=0)",
        "u = tl.sum(tl.where(i == node, coin, 0.0), axis=0)",
    ),
    "picked one block late": (
        "naive",
        "passed = (before + tl.cumsum",
        "passed = (tl.cumsum",
    ),
    "the first block of the vocabulary only": (
        "naive",
        "while (first < V) & (found == V):",
        "while (first < 1) & (found == V):",
    ),
    "u <= sum picks": (
        "iid",
        "tl.cumsum(r, axis=0) > u * S) & (r > 0)",
        "tl.cumsum(r, axis=0) >= u * S) & (r >= 0)",
    ),
    "the second child first": (
        "iid",
        "child = tl.min(tl.where((parent == node) & (i > after), i, BLOCK_T), axis=0)",
        "child = tl.min(tl.where((parent == node) & (i > after) & (i % 3 != 1), i, BLOCK_T), axis=0)",
    ),
    "the cut is passed": (
        "iid",
        "walking = over == 0\n                going = walking",
        "walking = over < 2\n                going = walking",
    ),
    "q of the root": (
        "iid",
        "q_n = q + b * stride_q.b + node * stride_q.t",
        "q_n = q + b * stride_q.b",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    law, *change = MUTANTS[name]
    mutant = mutated(module, *change)
    checks: list[Any] = [lambda kernel: edges_fit(kernel, law)]
    checks += [lambda kernel, case=case: judge(kernel, drawn_case(case))[0] for case in reversed(CASES) if case[0] == law]
    assert caught(mutant, lambda kernel, check: check(kernel), checks)
