"""What is emitted has the target's law: processors against the oracle, and the law of two tokens through the engine."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, ncx2

from ssmspec_fast.accept import multi_step
from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.processors import past, process
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft import Drafter
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.window import Proposal, Window
from ssmspec_fast.families import find
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref import model as reference
from ssmspec_ref.accept import processors as oracle
from ssmspec_ref.accept.draft_tree import DraftTree
from ssmspec_ref.errors import ParameterError, Unsupported

from ..trees import SHAPES, parents_of
from .drafters import Skilled
from .models import Drawn, data, drawn, prompts, to_reference

OPERATIONS = TorchOperations()
BITWISE = TorchOperations(bitwise=True)
U32 = 2.0**-24


# --- processors --------------------------------------------------------------------------------------------------------

SAMPLINGS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]), "top_k": st.integers(0, 9),
        "top_p": st.sampled_from([0.1, 0.5, 0.9, 1.0]), "repetition": st.sampled_from([0.5, 1.0, 1.3]),
        "presence": st.sampled_from([-0.4, 0.0, 0.6]), "frequency": st.sampled_from([0.0, 0.3]),
        "min_tokens": st.integers(0, 6),
    },
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=120)
@given(st.integers(0, 10**6), SAMPLINGS, st.sampled_from(SHAPES), st.integers(1, 7), st.integers(3, 11), st.integers(0, 5))
def test_the_law_after_every_node_is_the_oracles(
    seed: int, options: dict[str, Any], shape: str, nodes: int, vocabulary: int, output: int
) -> None:
    """To fp32's last place; what is masked is 0 in both. Ties: some logits are equal."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, vocabulary, 3).tolist()
    said = rng.integers(0, vocabulary, output).tolist()
    parents, tokens = parents_of(shape, nodes, seed), rng.integers(0, vocabulary, nodes)
    tokens[0] = (prompt + said)[-1]
    logits = (
        rng.integers(-4, 4, (nodes, vocabulary)) / 2 + rng.normal(size=(nodes, vocabulary)) * (rng.random() < 0.5)
    ).astype(np.float32)
    eos = (0, 2)
    tree = DraftTree(tuple(tokens.tolist()), tuple(parents.tolist()))
    wanted = oracle.process_window(
        logits.astype(np.float64), tree, prompt, said, oracle.Sampling(**options, eos=frozenset(eos))
    )
    sequences = new_sequences(2, 20, eos, (), "cpu")
    sequences.add(0, [1] * 9, 5, 0)
    sequences.add(1, prompt + said, 5, 0)
    sequences.prompt[1] = len(prompt)
    window = Window(torch.from_numpy(tokens)[None], torch.tensor([1]), None, torch.from_numpy(parents)[None])
    rule = MultiStep(Sampling(**options))
    found = rule.law(window, torch.from_numpy(logits)[None], sequences, OPERATIONS)[0].double().numpy()
    assert np.array_equal(found > 0, np.array(wanted) > 0)
    assert np.max(np.abs(found - np.array(wanted))) <= U32


def test_draft_and_target_sides_process_alike() -> None:
    """One node asked by itself, as a drafter asks it, has the row that the window has for it."""
    rng = np.random.default_rng(3)
    sampling = Sampling(0.8, top_k=5, top_p=0.9, repetition=1.2, frequency=0.3)
    sequences = new_sequences(1, 20, (), (), "cpu")
    sequences.add(0, [1, 2, 3], 5, 0)
    tokens, parents = torch.tensor([[3, 1, 1, 4]]), torch.tensor([[-1, 0, 1, 1]])
    ancestors = OPERATIONS.tree_mask(parents)[0]
    logits = torch.from_numpy(rng.normal(size=(1, 4, 9))).float()
    slots = torch.tensor([0])
    whole = process(logits, sampling, past(sequences, slots, tokens, ancestors, 9))
    one = process(logits[:, 2:3], sampling, past(sequences, slots, tokens, ancestors[:, 2:3], 9))
    assert torch.equal(whole[:, 2:3], one)
    assert not torch.equal(whole, process(logits, sampling, past(sequences, slots, tokens * 0, ancestors, 9)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("top_k", -1), ("top_p", 0.0),
     ("top_p", 1.5), ("repetition", 0.0), ("presence", float("nan")), ("frequency", float("inf")), ("min_tokens", -1)],
)  # fmt: skip
def test_settings_outside_their_domain_are_refused(option: str, value: float) -> None:
    with pytest.raises(ParameterError, match=f"{option} is"):
        Sampling(**{option: value})  # type: ignore[arg-type]


# --- the law of two tokens through the engine --------------------------------------------------------------------------

SAMPLES, ALPHA, DIVERGENCE = 2000, 1e-4, 0.045
PROMPT = [1, 3, 0]


@cache
def target(dtype: torch.dtype = torch.float32) -> Any:
    """A model of four tokens."""
    family, config = find(data("bamba")[0] | {"vocab_size": 4}, None)
    model = family.assemble(config, Drawn(dtype, 5))
    return replace(model, head=model.head * 0.25)  # no token rare


@cache
def law_of_two_tokens() -> np.ndarray:
    """By the oracle in float64: p(a) p(b | a)."""
    model = to_reference(target(torch.float64))

    def after(tokens: list[int]) -> np.ndarray:
        logits, _ = reference.scan(reference.new_state(model, 1), np.array([tokens]), model)
        return oracle.softmax(logits[0, -1], 1.0)

    first = after(PROMPT)
    return np.concatenate([first[a] * after([*PROMPT, a]) for a in range(4)])


class Drawing(Drafter):
    """Children drawn from a fixed law of their parent's token, in a fixed tree, by a generator of its own."""

    def __init__(self, parents: tuple[int, ...], law: str, trees: bool) -> None:
        self.parents, self.law, self.trees, self.nodes = parents, law, trees, len(parents)
        self.rng, self.drafts = np.random.default_rng(8), 1
        self.table = np.random.default_rng(9).dirichlet(np.ones(4) * 0.7, size=4).astype(np.float32)

    def propose(self, sequences: Sequences, slots: torch.Tensor) -> Proposal:
        n = len(slots)
        tokens = np.zeros((n, self.nodes), dtype=np.int64)
        tokens[:, 0] = sequences.roots(slots).numpy()
        q = np.zeros((n, self.nodes, 4), dtype=np.float32)
        for i in range(1, self.nodes):
            above = self.parents[i]
            q[:, above] = self.table[tokens[:, above]]
            left = q[:, above].astype(np.float64)
            if self.law == "without_replacement":
                for j in range(1, i):
                    if self.parents[j] == above:
                        left[np.arange(n), tokens[:, j]] = 0
            edges = left.cumsum(1) / left.sum(1, keepdims=True)
            tokens[:, i] = (self.rng.random(n)[:, None] >= edges[:, :-1]).sum(1)
        parents = torch.tensor(self.parents).expand(n, -1) if self.trees else None
        law = None if self.law == "point_mass" else torch.from_numpy(q)
        return Proposal(Window(torch.from_numpy(tokens), slots, None, parents), law, self.law)


def chi_square(drafter: Any, rule: Any, seen: set[int] | None = None) -> float:
    engine = Engine(
        target(), drafter, Tree() if drafter.trees else ActivationReplay(), rule, operations=OPERATIONS, slots=250, cache=16
    )
    results = engine.generate([PROMPT] * SAMPLES, Settings(2))
    counts = np.bincount([4 * result.tokens[0] + result.tokens[1] for result in results], minlength=16)
    if seen is not None:
        seen |= {result.statistics.advanced[0] for result in results}
    wanted = SAMPLES * law_of_two_tokens()
    return float(((counts - wanted) ** 2 / wanted).sum())


CRITICAL = float(chi2.ppf(1 - ALPHA, 15))
CHAIN, TREE = (-1, 0, 1), (-1, 0, 0, 1, 1)
RULES: dict[str, tuple[tuple[int, ...], str, bool, Callable[[], Any]]] = {
    "rejection": (CHAIN, "iid", False, lambda: Rejection(seed=1)),
    "multi-step, drawn independently": (TREE, "iid", True, lambda: MultiStep(seed=2)),
    "multi-step, without replacement": (TREE, "without_replacement", True, lambda: MultiStep(seed=3)),
    "multi-step, point masses": (TREE, "point_mass", True, lambda: MultiStep(seed=4)),
    "naive": (TREE, "point_mass", True, lambda: Naive(seed=5)),
}


def test_the_test_has_power() -> None:
    """2000 samples, false alarms 1 in 10^4: a law at chi-square divergence 0.045 or more is seen but for 1 in 1000."""
    assert 1 - ncx2.cdf(CRITICAL, 15, SAMPLES * DIVERGENCE) >= 0.999
    assert law_of_two_tokens().min() * SAMPLES >= 5
    assert abs(law_of_two_tokens().sum() - 1) < 1e-12


@pytest.mark.parametrize("name", RULES)
def test_two_tokens_have_the_targets_law(name: str) -> None:
    parents, law, trees, rule = RULES[name]
    seen: set[int] = set()
    assert chi_square(Drawing(parents, law, trees), rule(), seen) <= CRITICAL
    assert seen == {1, 2}


@pytest.mark.parametrize(
    ("name", "fault"),
    [("rejection", "residual"), ("multi-step, without replacement", "law"), ("multi-step, without replacement", "sorted")],
)
def test_a_planted_biased_rule_fails(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No residual after a rejection; the target's law for the draft's; children sorted by probability."""
    parents, law, trees, rule = RULES[name]
    drafter = Drawing(parents, law, trees)
    right = multi_step.judge

    def biased(tokens: Any, parents: Any, p: Any, q: Any, coins: Any, picks: Any, law: str) -> Any:
        if fault == "law":  # p for q
            return right(tokens, parents, p, p, coins, picks, law)
        first, second = (q[:, 0].gather(1, tokens[:, i : i + 1])[:, 0] for i in (1, 2))
        swapped = tokens.clone()
        swapped[:, 1], swapped[:, 2] = (torch.where(first < second, tokens[:, i], tokens[:, 3 - i]) for i in (2, 1))
        swapped[:, 3:] = 9  # their children are no longer theirs
        return right(swapped, parents, p, q, coins, picks, law)

    if fault == "residual":
        monkeypatch.setattr(multi_step, "rejected", lambda left, token, rows, l, W: left)
    else:
        monkeypatch.setattr(multi_step, "judge", biased)
    assert chi_square(drafter, rule()) > CRITICAL


# --- what a request is promised ----------------------------------------------------------------------------------------


def tokens_of(rule: Any, drafter: Any, method: Any, given: list[list[int]], slots: int, **ends: Any) -> list[tuple[int, ...]]:
    engine = Engine(drawn("mamba2"), drafter, method, rule, slots=slots, cache=48, operations=BITWISE)
    return [result.tokens for result in engine.generate(given, Settings(10, **ends))]


@pytest.mark.parametrize("tree", [False, True])
def test_naive_sampling_emits_what_plain_sampled_decoding_emits_whatever_is_drafted(tree: bool) -> None:
    given, sampling = prompts(3, (2, 7, 4)), Sampling(0.9, top_k=20, repetition=1.1)
    wanted = tokens_of(Naive(sampling, 7), None, Plain(), given, 3)
    drafter = Skilled(wanted, 4, skill=0.7, tree=tree)
    method = Tree() if tree else ActivationReplay()
    assert tokens_of(Naive(sampling, 7), drafter, method, given, 3) == wanted
    assert drafter.seen == {"none", "some", "all"}
    assert tokens_of(Naive(sampling, 8), None, Plain(), given, 3) != wanted
    assert tokens_of(Naive(sampling, 7), None, Plain(), given, 1) == wanted


def test_naive_sampling_at_temperature_zero_is_greedy() -> None:
    given = prompts(4, (2, 7))
    assert tokens_of(Naive(Sampling(0.0)), None, Plain(), given, 2) == tokens_of(None, None, Plain(), given, 2)


def test_sampled_runs_are_cut_at_ends_stops_and_budgets() -> None:
    given = prompts(5, (3, 6))
    rule = Naive(seed=9)
    whole = tokens_of(rule, None, Plain(), given, 2)
    eos, stop = whole[0][4], whole[1][2:4]
    wanted = tokens_of(rule, None, Plain(), given, 2, eos=(eos,), stop=(stop,))
    found = tokens_of(rule, Skilled(whole, 4, skill=0.9), ActivationReplay(), given, 2, eos=(eos,), stop=(stop,))
    assert found == wanted
    assert [len(x) for x in found] != [10, 10]


def test_a_rule_that_cannot_judge_the_drafter_is_refused_before_any_work() -> None:
    for drafter, rule, error in (
        (Drawing(TREE, "without_replacement", True), Rejection(), Unsupported),
        (Drawing(CHAIN, "point_mass", False), Rejection(), ParameterError),
    ):
        with pytest.raises(error):
            Engine(drawn("mamba2"), drafter, Tree() if drafter.trees else ActivationReplay(), rule)
