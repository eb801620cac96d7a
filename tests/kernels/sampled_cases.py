"""Sampled acceptance for the tests: trees, laws on a grid, noise beside its edges, the oracle's runs, and close decisions.

The laws are multiples of 2^-24 or of less fine a grid, and sum to one, so that fp32 holds them and their fractions are
distributions. A row is excused only if a decision on its way is closer than the roundings of the kernel can tell (`close`);
first coins never are.
"""

from dataclasses import replace
from fractions import Fraction
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.tokens.accept_greedy import Emitted as Tensors
from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept import rejection as chain_rule
from ssmspec_ref.accept.distribution import acceptance, point_mass, residual, without
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import LAWS, sampled
from tests.trees import packed, parents_of

from . import accept_cases as cases

I32, I64 = torch.int32, torch.int64
GRID = 2**24
U = Fraction(1, 2**53)
CASES = [
    (law, seed, nodes, vocabulary, block_i, eos, slots, index)
    for law in LAWS
    for seed, nodes, vocabulary, block_i, eos, slots, index in [
        (1, 7, 11, 4, (), False, I64),
        (2, 13, 37, 16, (3, 5), True, I32),
        (3, 24, 5, 8, (), True, I64),
    ]
] + [(law, seed, 6, 14, 4, (), False, I64, 16, "star", grid) for law in LAWS[:3] for seed, grid in ((4, 64), (5, 2**20))]


def on_grid(weight: np.ndarray, grid: int) -> np.ndarray:
    """The laws of some weights, rounded to multiples of 1 / grid that sum to one."""
    counts = np.floor(weight / weight.sum(axis=2, keepdims=True) * grid)
    most = counts.argmax(axis=2)[..., None]
    missing = grid - counts.sum(axis=2, keepdims=True)
    np.put_along_axis(counts, most, np.take_along_axis(counts, most, axis=2) + missing, axis=2)
    return counts / grid


def laws_of(rng: np.random.Generator, shape: tuple[int, int, int], star: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights of p and q, a third of the tokens excluded by q; p is q, or is near q, or knows nothing of it.

    In stars p lacks half of q's tokens and has a little more of the others: then children after a rejection are in doubt.
    """
    q, other = (rng.gamma(0.7, size=shape) * (rng.random(shape) > 1 / 3) + 1e-9 for _ in "qp")
    factor = rng.choice([0, 0.2, 2, 2.5, 3], size=shape) + 1e-9
    kind = np.full((*shape[:2], 1), 2) if star else rng.integers(0, 3, (*shape[:2], 1))
    return np.choose(kind, [q, other, q * factor]), q


@cache
def drawn_case(case: tuple[Any, ...]) -> "Case":
    """One case for all faults: the oracle is slow."""
    return Case(*case)


class Case:
    """Trees whose tokens come from q, with target laws near q, and noise at its edges."""

    def __init__(
        self,
        law: str,
        seed: int,
        nodes: int,
        vocabulary: int,
        block_i: int,
        eos: tuple[int, ...],
        slots: bool,
        index: torch.dtype,
        rows: int = 12,
        shape: str | None = None,
        grid: int = GRID,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.law, self.index, self.block_i = law, index, block_i
        drawn = cases.draw(seed, rows, nodes, vocabulary, eos=eos, slots=slots)
        if shape:
            drawn = replace(drawn, parents=packed([parents_of(shape, nodes)] * rows, nodes))
        self.p, self.q = (on_grid(x, grid) for x in laws_of(rng, (rows, nodes, vocabulary), shape is not None))
        tokens = drawn.tokens.copy()
        for b, parents in enumerate(drawn.parents):
            for i in range(1, nodes):
                if parents[i] >= 0 and rng.random() < 0.8:
                    q = self.q[b, parents[i]].copy()
                    q[tokens[b, [j for j in range(1, i) if parents[j] == parents[i]]]] *= 0.1
                    tokens[b, i] = rng.choice(vocabulary, p=q / q.sum())
        self.rows = replace(drawn, tokens=tokens)
        edges = np.array([0.0, 1 - 1 / GRID, 0.5])
        self.coins, self.picks = (
            np.where(
                rng.random((rows, nodes)) < 0.2, rng.choice(edges, (rows, nodes)), rng.integers(0, GRID, (rows, nodes)) / GRID
            )
            for _ in range(2)
        )
        self.on_edges(rng)
        if shape:
            self.beside_turns(rng)

    def on_edges(self, rng: np.random.Generator) -> None:
        """Some coins exactly where the first child's test turns, and just below."""
        for b, parents in enumerate(self.rows.parents):
            for i in range(1, len(parents)):
                if parents[i] >= 0 and rng.random() < 0.2:
                    x, q = self.rows.tokens[b, i], self.q[b, parents[i]]
                    p = self.p[b, parents[i]]
                    at = min(p[x] / q[x], 1 - 1 / GRID) if q[x] > 0 and self.law != "point_mass" else p[x]
                    self.coins[b, i] = max(np.float32(at) - rng.choice([0, 1 / GRID]), 0)

    def poisoned(self) -> tuple[torch.Tensor, torch.Tensor]:
        """p and q with NaN at padding, q with NaN at leaves."""
        p, q = self.p.copy(), self.q.copy()
        for b, parents in enumerate(self.rows.parents):
            p[b, parents == -2] = np.nan
            q[b, [i for i in range(len(parents)) if i not in parents]] = np.nan
        return gapped(p), gapped(q)

    def call(self, kernel: ModuleType) -> Tensors:
        p, q = self.poisoned()
        given, out = self.rows.arguments(self.index), cases.room(self.rows, self.index)
        noise = {} if self.law == "naive" else {"coins": gapped(self.coins)}
        laws = {"q": q} if self.law in ("iid", "without_replacement") else {}
        tokens, parents = (cases.gapped(x, self.index) for x in (self.rows.tokens, self.rows.parents))
        kernel.accept_sampled(
            tokens, parents, p, gapped(self.picks), given.pop("budget"),
            law=self.law, **laws, **noise, **given, out=out, block_i=self.block_i,
        )  # fmt: skip
        return out

    @cached_property
    def whole(self) -> list[Emitted | None]:
        """What the oracle emits, row by row, before the cut."""
        return [None if tree is None else self.run(b, tree) for b, tree in enumerate(self.rows.trees)]

    def run(self, b: int, tree: DraftTree) -> Emitted:
        p, q = exact(self.p[b, : len(tree)]), exact(self.q[b, : len(tree)])
        dice = UniformDice(exact([self.coins[b]])[0], exact([self.picks[b]])[0])
        run = sampled(tree, self.law, p, q, dice)
        if self.law == "iid" and tree.parents == tuple(range(-1, len(tree) - 1)):
            assert run == chain_rule.rejection(tree.tokens[1:], p, q[:-1], dice)
        return run

    def beside_turns(self, rng: np.random.Generator) -> None:
        """Children of the roots whose tests may fall either way, and coins 2 % beside where they turn, mostly to reject."""
        for b in range(len(self.p)):
            p: list[Any] = exact(self.p[b, :1])[0]
            law: list[Any] = exact(self.q[b, :1])[0]
            for child in range(1, len(self.p[b])):
                x = int(rng.integers(len(p)))
                masses = [Fraction(1) if self.law == "point_mass" else c for c in law]
                doubtful = [i for i, c in enumerate(masses) if c and 0 < p[i] < c]
                x = int(rng.choice(doubtful)) if doubtful and rng.random() < 0.8 else x
                self.rows.tokens[b, child] = x
                if masses[x]:
                    turn = float(acceptance(p[x], masses[x]))
                    coin = turn * rng.choice([1 - 2**-10, 1, 1.02], p=[0.1, 0.1, 0.8])
                    self.coins[b, child] = np.float32(min(coin, 1 - 1 / GRID))
                    p = residual(p, point_mass(x, len(p)) if self.law == "point_mass" else law)
                law = without(law, x) if self.law == "without_replacement" else law


def gapped(values: np.ndarray) -> torch.Tensor:
    """The values in fp32 with NaN between their rows."""
    shape = [2 * n + 1 for n in values.shape[:-1]] + [values.shape[-1] + 3]
    wide = torch.full(shape, float("nan"))
    view = wide[(*(slice(1, None, 2) for _ in values.shape[:-1]), slice(0, values.shape[-1]))]
    view.copy_(torch.from_numpy(values))
    assert torch.equal(view.double().nan_to_num(9), torch.from_numpy(values).nan_to_num(9))
    return view


def exact(rows: Any) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in rows]


def close(law: str, tree: DraftTree, run: Emitted, p_rows: Any, q_rows: Any, coins: Any, picks: Any) -> bool:
    """Whether a decision on the way of a run lies within the roundings of float64 sums.

    Exact arithmetic beside the absolute errors dl, dS, dW of the three numbers l, S, W of the kernel: a sum of V terms is
    wrong by V u of itself, r(x) by q(x) dl + u (p + 2 l q)(x), and twice these cover second order.
    """
    size = len(p_rows[0])
    for node in run.path:
        p, q = p_rows[node], q_rows[node] if law in ("iid", "without_replacement") else [Fraction(0)] * size
        l, S, W, dl, dS, dW, fresh = Fraction(0), Fraction(1), Fraction(1), Fraction(0), Fraction(0), Fraction(0), True
        drawn: set[int] = set()
        for child in tree.children(node) if law != "naive" else []:
            x, u = tree.tokens[child], coins[child]
            q_x = Fraction(1) if law == "point_mass" else q[x]
            if q_x == 0 or (x in drawn and law == "without_replacement"):
                continue
            r = Fraction(0) if law == "point_mass" and x in drawn else max(p[x] - l * q[x], Fraction(0))
            dr = 2 * (q[x] * dl + U * (p[x] + 2 * l * q[x]))
            slack = u * q_x * (dS + 2 * U * S) + W * dr + r * (dW + 2 * U * W)
            if not fresh and abs(u * q_x * S - r * W) <= slack:
                return True
            if child in run.path:
                break
            drawn.add(x)
            fresh = False
            if law == "point_mass":
                left = [Fraction(0) if i in drawn else p[i] for i in range(size)]
            else:
                dl, l = 2 * (dl + (S / W) * (dS / S + dW / W + 3 * U)), l + S / W
                left = [max(a - l * c, Fraction(0)) for a, c in zip(p, q, strict=True)]
                if law == "without_replacement":
                    W = sum((c for i, c in enumerate(q) if i not in drawn), Fraction(0))
                    dW = 2 * size * U * W
            S = sum(left, Fraction(0))
            dS = 2 * (dl + U * (1 + 2 * l) + size * U * S)
        else:
            left = [
                Fraction(0) if i in drawn and law == "point_mass" else max(a - l * c, Fraction(0))
                for i, (a, c) in enumerate(zip(p, q, strict=True))
            ]
            sums = np.cumsum(np.array(left, dtype=object))
            slack = 2 * (dl + U * (1 + 2 * l) + (size + 1) * U * S + dS)
            if picks[node] > 0 and any(abs(picks[node] * S - total) <= slack for total in sums):
                return True
    return False


def judge(kernel: ModuleType, case: Case) -> tuple[bool, int]:
    """Whether every row is the oracle's, but for rows with a close decision; and how many of those were different."""
    whole, out = case.whole, case.call(kernel)
    excused = 0
    for b, run in enumerate(whole):
        row = replace(case.rows, tokens=case.rows.tokens[b : b + 1], slots=np.array([case.rows.slot(b)]))
        tokens, path, advanced, ended = (x[b : b + 1] for x in out)
        found = Tensors(tokens, path, advanced, ended)
        if not row_same(row, found, run):
            tree = case.rows.trees[b]
            rows = (exact(x[b]) for x in (case.p, case.q))
            if tree is None or run is None or not close(case.law, tree, run, *rows, *exact((case.coins[b], case.picks[b]))):
                return False, excused
            excused += 1
    return cases.gaps_stand(out.tokens) and cases.gaps_stand(out.path), excused


def row_same(row: cases.Rows, found: Tensors, run: Emitted | None) -> bool:
    nodes = row.tokens.shape[1]
    tokens, path, over = cases.expected(row, 0, run)
    if row.slot(0) < 0:
        return bool((found.tokens == cases.SENTINEL).all()) and int(found.advanced[0]) == cases.SENTINEL
    pad = [-1] * (nodes - len(tokens))
    got = (cases.plain(found.tokens[0]), cases.plain(found.path[0]), int(found.advanced[0]), bool(found.ended[0]))
    return got == (tokens + pad, path + pad, len(tokens), over)
