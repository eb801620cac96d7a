"""Acceptance in float64: the sweep over all nodes, the rules on floats, distributions without sorting."""

from typing import Any

import numpy as np

from ssmspec_ref.accept import UniformDice, greedy, stop
from ssmspec_ref.accept.draft_tree import unpadded
from ssmspec_ref.accept.emitted import Emitted
from ssmspec_ref.accept.sampled import sampled
from ssmspec_ref.contract import FLOAT64, Capability, Subject
from ssmspec_ref.shapes import Array

from .processors import process, process_rows

Runs = tuple[Array, Array, Array, Array]


def accept_greedy(tokens: Array, parents: Array, choice: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    swept = zip(*greedy.sweep(tokens, parents, choice), strict=True)
    runs = [Emitted(tuple(map(int, said[:n])), tuple(map(int, path[:n]))) for said, path, n in swept]
    return padded(runs, tokens.shape[1], budget, eos)


def accept_logits(tokens: Array, parents: Array, logits: Array, budget: Array, eos: tuple[int, ...]) -> Runs:
    """The choice is the first token that no other exceeds."""
    above = logits[..., None, :] > logits[..., None]
    return accept_greedy(tokens, parents, (~above.any(axis=3)).argmax(axis=2), budget, eos)


def accept_sampled(
    tokens: Array,
    parents: Array,
    p: Array,
    q: Array,
    coins: Array,
    picks: Array,
    budget: Array,
    eos: tuple[int, ...],
    law: str,
) -> Runs:
    runs = []
    for b, row in enumerate(zip(tokens, parents, strict=True)):
        tree = unpadded(*row)
        dice = UniformDice(coins[b].tolist(), picks[b].tolist())
        p_rows, q_rows = (x[b, : len(tree)].tolist() for x in (p, q))
        runs.append(sampled(tree, law, p_rows, q_rows, dice))
    return padded(runs, tokens.shape[1], budget, eos)


def padded(runs: list[Emitted], nodes: int, budget: Array, eos: tuple[int, ...]) -> Runs:
    """Runs, cut to length, as padded arrays."""
    tokens, path = (np.full((len(runs), nodes), -1) for _ in range(2))
    advanced, ended = np.zeros(len(runs), dtype=np.int64), np.zeros(len(runs), dtype=bool)
    for b, run in enumerate(runs):
        cut, finish = stop.cut(run, (), stop.Stop(frozenset(eos)), int(budget[b]))
        tokens[b, : len(cut.tokens)], path[b, : len(cut.path)] = cut.tokens, cut.path
        advanced[b], ended[b] = len(cut.tokens), finish is not None
    return tokens, path, advanced, ended


def subject() -> Subject:
    rules: dict[str, Any] = {
        "greedy": accept_greedy,
        "greedy_logits": accept_logits,
        "sampled": accept_sampled,
        "process": process,
        "process_rows": process_rows,
    }
    return Subject(
        "acceptance",
        {f"acceptance.{name}": Capability(rule, FLOAT64) for name, rule in rules.items()},
        absent={"": "another part of the reference"},
    )
