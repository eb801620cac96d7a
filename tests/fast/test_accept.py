"""Sampled acceptance of the engine: decision for decision the oracle's, on the same noise and the same fp32 p and q."""

import os
import sys
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssmspec_fast.accept import multi_step, noise
from ssmspec_fast.accept.multi_step import MultiStep, judge
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.noise import COIN, DRAW, PICK, philox, uniforms
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.accept.sampled import choices, pick
from ssmspec_fast.accept.walk import cut, walk
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.window import Proposal, Window
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.accept import UniformDice
from ssmspec_ref.accept.distribution import normalised
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.accept.sampled import LAWS, sampled
from ssmspec_ref.errors import ParameterError, Unsupported

if "triton" not in sys.modules:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # the cases are the kernels' own; whoever imports triton first decides

from ..kernels import sampled_cases as cases
from ..trees import SHAPES, parents_of

OPERATIONS = TorchOperations()


# --- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_its_known_answers(counter: str, key: str, answer: str) -> None:
    words, keys, wanted = ([int(x, 16) for x in text.split()] for text in (counter, key, answer))
    found = philox(tuple(torch.tensor([x]) for x in words), (keys[0], keys[1]))  # type: ignore[arg-type]
    assert [int(x) for x in found] == wanted


def test_a_uniform_depends_on_its_name_alone() -> None:
    """The same in any row, shape and order; another wherever one part of the name differs."""
    request, position = torch.tensor([3, 9, 3])[:, None], torch.tensor([70, 70, 71])[:, None]
    block = uniforms(5, request, position, torch.arange(6), COIN)
    assert block.shape == (3, 6)
    assert float(block[1, 4]) == float(uniforms(5, torch.tensor(9), torch.tensor(70), 4, COIN))
    others = [
        uniforms(seed, torch.tensor(r), torch.tensor(p), n, stream)
        for seed in (5, 6, 5 + 2**32) for r in (3, 9) for p in (70, 71) for n in (0, 1) for stream in (COIN, PICK, DRAW)
    ]  # fmt: skip
    assert len({float(x) for x in others}) == len(others)
    assert block.dtype == torch.float32


def test_uniforms_are_uniform_on_their_grid() -> None:
    """100,000 of them in 50 bins: chi-square with 49 degrees of freedom stays below 115 but for 1 in 10^6 seeds."""
    u = uniforms(1, torch.tensor(0), torch.arange(1000)[:, None], torch.arange(100), PICK).flatten()
    counts = torch.bincount((u * 50).long(), minlength=50).double()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    assert torch.equal(u * 2**24, (u * 2**24).round())
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 115


# --- decisions ---------------------------------------------------------------------------------------------------------


def shim(rule: Any = judge) -> Any:
    """The engine's rule and cut behind the kernel's arguments, for the kernel's own cases."""

    def accept(tokens: Any, parents: Any, p: Any, picks: Any, budget: Any, *, law: str, q: Any = None, coins: Any = None,
               eos: Any = None, ended: Any = None, slots: Any = None, out: Any = None, block_i: int = 0) -> Any:  # fmt: skip
        tokens, parents = tokens.long(), parents.long()
        slots = torch.arange(len(tokens)) if slots is None else slots.long()
        found = walk(tokens, parents, choices(p, picks)) if law == "naive" else rule(tokens, parents, p, q, coins, picks, law)
        sequences = new_sequences(len(budget), 1, () if eos is None else tuple(eos.tolist()), (), "cpu")
        sequences.budget, sequences.ended = budget.long(), ended
        emitted, path = found
        run = cut(torch.arange(len(tokens)), emitted, path, sequences, slots).run
        for to, x in zip(out, run, strict=True):
            to[slots >= 0] = x[slots >= 0].to(to.dtype)
        return out

    return SimpleNamespace(accept_sampled=accept)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: "-".join(map(str, c[:5])))
def test_every_decision_is_the_oracles(case: tuple[Any, ...]) -> None:
    """Laws on a grid, noise at its edges, twins, excluded tokens, padding, ends and budgets; no row is excused."""
    assert cases.judge(shim(), cases.drawn_case(case)) == (True, 0)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.integers(0, 10**6), st.sampled_from(LAWS), st.sampled_from(SHAPES), st.integers(1, 9), st.integers(2, 9),
    st.floats(0.05, 3.0),
)  # fmt: skip
def test_decisions_on_softmax_laws_are_those_of_exact_arithmetic(
    seed: int, law: str, shape: str, nodes: int, vocabulary: int, spread: float
) -> None:
    """p and q as the engine has them, in fp32, not summing to one: the oracle judges them divided by their sums."""
    rng = np.random.default_rng(seed)
    parents = parents_of(shape, nodes, seed)
    tokens = rng.integers(0, vocabulary, nodes)
    q, p = (torch.softmax(torch.from_numpy(rng.normal(size=(nodes, vocabulary)) * spread), -1).float() for _ in "qp")
    coins, picks = (uniforms(seed, torch.tensor(0), torch.tensor(9), torch.arange(nodes), stream) for stream in (COIN, PICK))
    tree = DraftTree(tuple(tokens.tolist()), tuple(parents.tolist()))
    p_rows, q_rows = ([normalised(row) for row in cases.exact(x)] for x in (p, q))
    dice = UniformDice(*([Fraction(float(x)) for x in u] for u in (coins, picks)))
    given_q = q[None] if law in ("iid", "without_replacement") else None
    arguments = (torch.from_numpy(tokens)[None], torch.from_numpy(parents)[None], p[None])
    wanted = sampled(tree, law, p_rows, q_rows, dice)
    if law == "naive":
        emitted, path = walk(*arguments[:2], choices(arguments[2], picks[None]))
    else:
        emitted, path = judge(*arguments, given_q, coins[None], picks[None], law)
    count = len(wanted.path)
    assert path[0, :count].tolist() == list(wanted.path)
    assert emitted[0, :count].tolist() == list(wanted.tokens)
    assert emitted[0, count:].tolist() == path[0, count:].tolist() == [-1] * (nodes - count)


FAULTS: dict[str, tuple[str, str, Any]] = {
    "u = p accepts": ("point_mass", "RULES", lambda m: m.RULES | {"point_mass": m.RULES["point_mass"]._replace(
        verdict=lambda left, token, coin, here: m.certain(left, token, coin * (1 - 2.0**-30), here))}),
    "the residual is not taken": ("iid", "RULES", lambda m: m.RULES | {"iid": m.RULES["iid"]._replace(
        rejected=lambda left, token, rows: left)}),
    "q keeps the drawn tokens": ("without_replacement", "RULES", lambda m: m.RULES | {
        "without_replacement": m.RULES["without_replacement"]._replace(rejected=m.less_q)}),
    "a certain child leaves p as it was": ("point_mass", "RULES", lambda m: m.RULES | {
        "point_mass": m.RULES["point_mass"]._replace(rejected=lambda left, token, rows: left)}),
    "a pick takes the noise of another place": ("naive", "pick", lambda m: lambda w, total, u: m.pick(
        w, total, 1 - 2.0**-24 - u)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_decisions_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, name, make = FAULTS[fault]
    wrong = make(SimpleNamespace(**vars(multi_step)))
    monkeypatch.setattr(multi_step, name, wrong)
    monkeypatch.setattr("ssmspec_fast.accept.sampled.pick", vars(multi_step)["pick"])
    found = [cases.judge(shim(), cases.drawn_case(case))[0] for case in cases.CASES if case[0] == law]
    assert not all(found)


# --- the rules over windows of sequences -------------------------------------------------------------------------------


def sequences_of(
    requests: list[int], lengths: list[int], budget: int = 99, stop: tuple[tuple[int, ...], ...] = ()
) -> Sequences:
    sequences = new_sequences(len(requests), 40, (), stop, "cpu")
    for slot, (request, length) in enumerate(zip(requests, lengths, strict=True)):
        sequences.add(slot, [1] * length, budget, request)
    return sequences


def proposal_of(seed: int, rows: int, nodes: int, vocabulary: int, law: str, chain: bool = False) -> Proposal:
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(0, vocabulary, (rows, nodes)))
    parents = torch.from_numpy(np.stack([parents_of("random", nodes, seed + b) for b in range(rows)]))
    q = torch.softmax(torch.from_numpy(rng.normal(size=(rows, nodes, vocabulary))), -1).float()
    return Proposal(
        Window(tokens, torch.arange(rows), None, None if chain else parents), None if law == "point_mass" else q, law
    )


def alike(rule: Any, law: str) -> bool:
    """Whether six rows are decided as each is by itself."""
    rows, nodes, vocabulary = 6, 7, 5
    given = proposal_of(1, rows, nodes, vocabulary, law, chain=rule is Rejection)
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(rows, nodes, vocabulary))).float()
    requests, lengths = [4, 9, 2, 7, 0, 5], [3, 8, 1, 20, 6, 6]
    whole = rule(seed=11)(given, logits, sequences_of(requests, lengths), OPERATIONS).run
    assert len(set(whole.advanced.tolist())) > 1
    same = []
    for b in range(rows):
        window = given.window
        parents = None if window.parents is None else window.parents[b : b + 1]
        q = None if given.q is None else given.q[b : b + 1]
        one = Proposal(Window(window.tokens[b : b + 1], torch.tensor([0]), None, parents), q, given.law)
        alone = rule(seed=11)(one, logits[b : b + 1], sequences_of([requests[b]], [lengths[b]]), OPERATIONS).run
        same += [torch.equal(x[0], y[b]) for x, y in zip(alone, whole, strict=True)]
    return all(same)


@pytest.mark.parametrize(
    ("rule", "law"),
    [(Rejection, "iid"), (Rejection, "without_replacement"), (Naive, "iid")]
    + [(MultiStep, law) for law in ("iid", "without_replacement", "point_mass")],
)
def test_a_row_is_decided_alike_alone_and_in_any_batch(rule: Any, law: str) -> None:
    assert alike(rule, law)


@pytest.mark.parametrize("rule", [Naive, MultiStep])
def test_planted_noise_by_row_is_caught(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_row(self: Any, window: Window, sequences: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(len(window.slots))[:, None]
        return rows, sequences.length[window.slots][:, None]

    monkeypatch.setattr(rule, "named", by_row)
    assert not alike(rule, "iid")


def test_rows_of_one_sequence_share_their_picks() -> None:
    """Naive: two equal rows decide alike, so that the longest of several is a prefix of what each would go on to say."""
    tokens = torch.tensor([[1, 2, 3], [1, 2, 4], [1, 0, 3], [1, 0, 3]])
    window = Window(tokens, torch.tensor([0, 0, 1, 1]), drafts=2)
    p = torch.full((4, 3, 5), 0.2)
    rule = Naive(seed=3)
    picks = rule.picks(window, sequences_of([5, 6], [4, 4]), OPERATIONS)
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[1], picks[2])
    assert torch.equal(choices(p, picks)[0], choices(p, picks)[1])


def test_picks_are_named_by_position_so_that_depth_and_length_exchange() -> None:
    window = Window(torch.tensor([[1, 2, 3]]), torch.tensor([0]))
    early, late = (Naive(seed=3).picks(window, sequences_of([5], [length]), OPERATIONS)[0] for length in (4, 5))
    assert torch.equal(early[1:], late[:-1])


def test_a_row_whose_logits_are_no_numbers_fails_and_harms_no_other() -> None:
    given = proposal_of(5, 3, 4, 5, "iid")
    logits = torch.from_numpy(np.random.default_rng(6).normal(size=(3, 4, 5))).float()
    for rule in (MultiStep, Naive):
        wanted = rule()(given, logits, sequences_of([0, 1, 2], [2, 2, 2]), OPERATIONS).run
        bad = logits.clone()
        bad[1, 0, 2] = float("nan")
        found = rule()(given, bad, sequences_of([0, 1, 2], [2, 2, 2]), OPERATIONS).run
        assert int(found.advanced[1]) == 0
        assert bool(found.ended[1])
        assert all(torch.equal(x[[0, 2]], y[[0, 2]]) for x, y in zip(found, wanted, strict=True))


def test_what_a_rule_cannot_judge_is_refused_by_name() -> None:
    logits = torch.zeros(2, 3, 5)
    chain, tree = (proposal_of(1, 2, 3, 5, "iid", chain=chain) for chain in (True, False))
    sequences = sequences_of([0, 1], [1, 1])
    several = Proposal(chain.window._replace(drafts=2), chain.q, "iid")
    for rule, came, error, words in (
        (Rejection(), Proposal(chain.window), ParameterError, "needs iid or without_replacement, and q with it"),
        (Rejection(), Proposal(chain.window, None, "iid"), ParameterError, "needs q"),
        (MultiStep(), Proposal(tree.window, None, "without_replacement"), ParameterError, "needs q"),
        (MultiStep(), Proposal(tree.window, tree.q, "point_mass"), ParameterError, "takes no q"),
        (MultiStep(), Proposal(tree.window, tree.q, "beam"), ParameterError, "law 'beam'"),
        (Rejection(), tree, Unsupported, "accepts chains only"),
        (MultiStep(), several, Unsupported, "the best of several is biased"),
    ):
        with pytest.raises(error, match=words):
            rule(came, logits, sequences, OPERATIONS)
    with pytest.raises(ParameterError, match="seed is -1"):
        MultiStep(seed=-1)


def test_a_pick_falls_on_no_token_without_weight() -> None:
    weights = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]], dtype=torch.float64).expand(4, -1)
    u = torch.tensor([0.0, 0.5 - 2**-25, 0.5, 1 - 2**-24], dtype=torch.float64)
    assert pick(weights, torch.ones(4, dtype=torch.float64), u).tolist() == [1, 1, 3, 3]
    assert pick(weights, torch.full((4,), 1.1, dtype=torch.float64), u).tolist() == [
        1,
        3,
        3,
        3,
    ]  # none passes 1.1 (1 - 2^-24)


def test_a_seed_beyond_32_bits_is_another_seed() -> None:
    assert noise.MASK == 2**32 - 1
    a, b = (uniforms(s, torch.tensor(0), torch.tensor(0), 0, PICK) for s in (1, 1 + 2**32))
    assert float(a) != float(b)
