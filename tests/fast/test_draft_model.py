"""Model drafters: every proposal, at every window of a running batch, is what the oracle drafts from the row's own tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.noise import DRAW, uniforms
from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.bandit import BanditDrafter
from ssmspec_fast.draft.beam import BeamDrafter
from ssmspec_fast.draft.model import ChainsDrafter, ModelDrafter, largest
from ssmspec_fast.draft.rows import Rows
from ssmspec_fast.draft.shapes import TREE_A, Shape, branches, chain
from ssmspec_fast.draft.wrapper import Wrapper
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal
from ssmspec_fast.errors import MemoryRefused, TokenizerMismatch
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.accept import UniformDice, draws, processors
from ssmspec_ref.draft import bandit as oracle_bandit
from ssmspec_ref.draft import batch_tree, beam_tree, static_tree
from ssmspec_ref.draft.token_tree import TokenTree
from ssmspec_ref.errors import LengthError, NotTopological, ParameterError, RingOverflow

from .draft_models import Histories, float64, histories, perturbed
from .models import drawn, prompts
from .runs import BITWISE, begun, emitted, engine, step
from .test_steps import Waiting

LENGTHS, BUDGET = (1, 5, 3), 9


class Recorded(Wrapper):
    """A drafter that writes down what it proposed, and after which tokens."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.windows: list[tuple[list[int], int, Proposal, int]] = []
        self.advanced: set[int] = set()

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Any) -> None:
        self.advanced |= {int(n) for n in verdict.run.advanced if n > 0}
        super().observe(sequences, proposal, verdict)

    def propose(self, sequences: Sequences, slots: torch.Tensor) -> Proposal:
        proposal = super().propose(sequences, slots)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                tokens = sequences.tokens[slot, : int(sequences.length[slot])].tolist()
                self.windows.append((tokens, int(sequences.request[slot]), proposal, row))
        return proposal


def play(target: str, drafter: Any, method: Any, rule: Any = None, budget: int = BUDGET, slots: int = 2) -> None:
    made = engine(perturbed(float64(target), 0.03), drafter, method, rule, slots=slots, operations=TorchOperations())
    made.generate(prompts(1, LENGTHS), Settings(budget))


def run(drafter: Any, rule: Any = None, target: str = "bamba", slots: int = 2) -> Recorded:
    """Three prompts through two slots; the target is near the drafter."""
    recorded = Recorded(drafter)
    method = Tree() if drafter.trees else ActivationReplay()
    play(target, recorded, method, rule, slots=slots)
    assert len(recorded.windows) >= 6
    return recorded


def row_of(proposal: Proposal, row: int) -> tuple[list[int], list[int], np.ndarray | None]:
    window = proposal.window
    q = None if proposal.q is None else proposal.q[row].numpy()
    return window.tokens[row].tolist(), window.tree()[row].tolist(), q


def same(recorded: Recorded, draft: Any) -> bool:
    """Whether every window is what `draft` makes of its history."""
    for tokens, _, proposal, row in recorded.windows:
        tree: TokenTree = draft([tuple(tokens[:-1])], tokens[-1])
        came, parents, _ = row_of(proposal, row)
        if came != tree.tokens.tolist() or parents != tree.parents.tolist():
            return False
    return True


ROOM: dict[str, Any] = {"slots": 2, "cache": 40}


def static(parents: tuple[int, ...]) -> tuple[Any, Any]:
    """A drafter of a tree, and what the oracle drafts from a model of histories, a state and a root."""
    return (
        lambda model: ModelDrafter(model, parents, **ROOM),
        lambda *given: static_tree.draft_tree(*given, parents)[0],
    )


SHAPES: dict[str, tuple[str, tuple[Any, Any]]] = {
    "chain": ("bamba", static(chain(3))),
    "chain, grouped": ("mamba_in_llama", static(chain(3))),
    "tree A": ("bamba", static(TREE_A)),
    "tree out of order": ("bamba", static((-1, 0, 0, 2, 2, 1, 3))),
    "batch tree": ("bamba", (static(branches((3, 2, 1)))[0], lambda *given: batch_tree.batch_tree(*given, (3, 2, 1))[0])),
    **{name: (of, (lambda model: BeamDrafter(model, 3, 3, **ROOM), lambda *given: beam_tree.beam_tree(*given, 3, 3)))
       for name, of in (("beam tree", "bamba"), ("beam tree, grouped", "mamba_in_llama"))},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_is_the_oracles_at_every_window(shape: str) -> None:
    name, (make, wanted) = SHAPES[shape]
    recorded = run(make(float64(name)), target=name)
    assert same(recorded, lambda state, root: wanted(histories(name), state, root))
    assert recorded.advanced >= {1, 4} if "chain" in shape else len(recorded.advanced) > 1


@pytest.mark.parametrize("choose", ["top", "iid"])
def test_several_chains_are_the_paths_of_their_tree(choose: str) -> None:
    """One after the other the chains that the oracle's tree holds (top), or that its draws are (iid)."""
    room: dict[str, Any] = {"choose": choose, "sampling": Sampling(0.2), "seed": 5, "slots": 2, "cache": 40}
    drafter, parents = ChainsDrafter(float64("bamba"), 3, 2, **room), branches((2, 1, 1))
    rows: list[tuple[list[int], int, list[list[int]]]] = []

    class Watching(Recorded):
        def propose(self, sequences: Sequences, slots: torch.Tensor) -> Proposal:
            proposal = super().propose(sequences, slots)
            assert proposal.window.slots.tolist() == [slot for slot in slots.tolist() for _ in range(2)]
            for history, request, came, row in self.windows[len(rows) :]:
                rows.append((history, request, came.window.tokens[2 * row : 2 * row + 2].tolist()))
            return proposal

    recorded = Watching(drafter)
    recorded.drafts = 2
    rule = Naive(Sampling(0.2), seed=2) if choose == "iid" else None
    play("bamba", recorded, ActivationReplay(2), rule)
    assert len(recorded.advanced) > 1
    model = histories("bamba")
    for history, request, found in rows:
        if choose == "top":
            tree = static_tree.draft_tree(model, [tuple(history[:-1])], history[-1], parents)[0].tokens.tolist()
        else:
            u = uniforms(5, torch.tensor(request), torch.tensor(len(history)), torch.arange(7), DRAW).double().tolist()
            dice, tree = UniformDice(u, u), [history[-1]]
            for node in range(1, 7):
                path = [node] if node < 3 else [node - 2, node] if node < 5 else [node - 4, node - 2, node]
                logits = np.log(model.law([*history, *(tree[i] for i in path[:-1])]))
                tree.append(dice.pick(processors.process(logits, [], [], processors.Sampling(0.2)), node))
        assert found == [[tree[0], tree[1], tree[3], tree[5]], [tree[0], tree[2], tree[4], tree[6]]]


def drawn_alike(recorded: Recorded, choose: str, seed: int, sampling: processors.Sampling, model: Histories) -> bool:
    """Every node a draw from the oracle's law after its path, by the noise of its name; q is that law in fp32."""
    for history, request, proposal, row in recorded.windows:
        tokens, parents, q = row_of(proposal, row)
        assert q is not None
        name = torch.tensor(request), torch.tensor(len(history)), torch.arange(len(tokens))
        u = uniforms(seed, *name, DRAW).double().tolist()
        dice = UniformDice(u, u)
        paths = {0: history}
        for i in range(1, len(tokens)):
            paths[i] = [*paths[parents[i]], tokens[i]]
        for node in sorted(set(parents[1:])):
            below = [i for i in range(1, len(tokens)) if parents[i] == node]
            logits = np.log(model.law(paths[node]))
            law = processors.process(logits, [], [], sampling)
            if np.max(np.abs(q[node] - law)) > 2**-23:
                return False
            rounded = (q[node].astype(np.float64) / q[node].astype(np.float64).sum()).tolist()
            draw = draws.iid if choose == "iid" else draws.without_replacement
            if [tokens[i] for i in below] != draw(rounded, len(below), dice, below[0]):
                return False
    return True


@pytest.mark.parametrize(
    ("choose", "parents"), [("iid", chain(3)), ("iid", (-1, 0, 0, 1, 1)), ("without_replacement", (-1, 0, 0, 0, 1, 1))]
)
def test_draws_are_the_oracles_on_the_same_noise(choose: str, parents: tuple[int, ...]) -> None:
    """Temperature and top-k on the drafter's side too."""
    options: dict[str, Any] = {"temperature": 0.8, "top_k": 9}
    drafter = ModelDrafter(float64("bamba"), parents, choose=choose, sampling=Sampling(**options), seed=5, slots=2, cache=32)
    recorded = run(drafter, MultiStep(Sampling(**options), seed=6))
    assert drawn_alike(recorded, choose, 5, processors.Sampling(**options), histories("bamba"))
    assert len(recorded.advanced) > 1


def test_the_bandit_plays_the_arms_that_the_oracle_plays_one_round_late() -> None:
    """Rewards are the mean over the rows of a window, known one round after it."""
    several, draft, verify = (chain(1), TREE_A, branches((2, 2))), 0.15, (1.0, 1.4, 1.1)
    drafter = BanditDrafter(float64("bamba"), several, exploration=0.4, draft=draft, verify=verify, slots=2, cache=40)
    arms: list[int] = []
    emitted: list[list[int]] = []

    class Watching(Recorded):
        def observe(self, sequences: Sequences, proposal: Proposal, verdict: Any) -> None:
            arms.append(drafter.arm)
            emitted.append([int(n) for n in verdict.run.advanced if n > 0])
            super().observe(sequences, proposal, verdict)

    recorded = Watching(drafter)
    play("bamba", recorded, Tree(), budget=20)
    known = oracle_bandit.Bandit.fresh(3)
    for i, arm in enumerate(arms):
        assert arm == known.choose(0.4)
        if i:
            last = arms[i - 1]
            steps = len(Shape(several[last]).levels)
            rewards = [oracle_bandit.measured_reward(n, verify[last], steps, draft) for n in emitted[i - 1]]
            known = known.update(last, float(np.mean(rewards)))
    assert set(arms) == {0, 1, 2}
    for tokens, _, proposal, row in recorded.windows:
        parents = row_of(proposal, row)[1]
        tree = static_tree.draft_tree(histories("bamba"), [tuple(tokens[:-1])], tokens[-1], parents)[0]
        assert row_of(proposal, row)[0] == tree.tokens.tolist()


STATES: dict[str, tuple[tuple[int, ...], str, Any]] = {
    "a state that keeps what was rejected": (chain(3), "beside", lambda self, slots, rows: slots[:, None].expand(-1, rows)),
    "rows that continue another node": (
        branches((2, 2, 1)), "copy", lambda self, source, to, copy=Rows.copy: copy(self, source.flip(1), to)
    ),
    "rows of old states": (chain(2), "copy", lambda self, source, to: None),
}  # fmt: skip


@pytest.mark.parametrize("fault", STATES)
def test_planted_faults_of_states_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parents, name, wrong = STATES[fault]
    monkeypatch.setattr(Rows, name, wrong)
    make, wanted = static(parents)
    assert not same(run(make(float64("bamba"))), lambda state, root: wanted(histories("bamba"), state, root))


def test_a_row_is_drafted_alike_alone_and_in_any_batch() -> None:
    model, found = drawn("bamba"), []
    for slots in (1, 3):
        recorded = Recorded(ModelDrafter(model, (-1, 0, 0, 1), BITWISE, choose="without_replacement", slots=slots, cache=32))
        made = engine(perturbed(model, 0.03), recorded, Tree(), MultiStep(seed=3), slots=slots)
        tokens = emitted(made, prompts(1, LENGTHS), BUDGET)
        windows = {(r, len(h)): row_of(p, row) for h, r, p, row in recorded.windows}
        found.append((tokens, {key: (t, q.tobytes()) for key, (t, _, q) in windows.items() if q is not None}))
    assert found[0] == found[1]


def test_wrong_drafters_are_refused_by_name() -> None:
    model = float64("bamba")
    for make, error, words in (
        (lambda: ModelDrafter(model, (-1, 2, 0)), NotTopological, "earlier node"),
        (lambda: ModelDrafter(model, (-1,)), ParameterError, "only its root"),
        (lambda: chain(0), ParameterError, "at least 1"),
        (lambda: branches((2, 0)), ParameterError, "at least one child"),
        (lambda: ModelDrafter(model, branches((62,))), ParameterError, "only 61 tokens"),
        (lambda: ModelDrafter(model, chain(1), choose="beam"), ParameterError, "choose is 'beam'"),
        (lambda: ModelDrafter(model, TREE_A, trees=False), ParameterError, "give a chain"),
        (lambda: ModelDrafter(model, chain(1), slots=0), ParameterError, "at least 1 of each"),
        (lambda: ModelDrafter(model, chain(1), memory=10), MemoryRefused, "bytes"),
        (lambda: ChainsDrafter(model, 3, 0), ParameterError, "at least 1 of each"),
        (lambda: ChainsDrafter(model, 3, 2, choose="without_replacement"), ParameterError, "top or iid"),
        (lambda: BeamDrafter(model, 0, 1), ParameterError, "at least 1 of each"),
        (lambda: BeamDrafter(model, 62, 1), ParameterError, "vocabulary has 61"),
        (lambda: BanditDrafter(model, []), ParameterError, "at least one tree"),
        (lambda: BanditDrafter(model, [chain(1)], exploration=-1.0), ParameterError, "exploration is -1.0"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            make()
    for parents, room, method, slots, error, words in (
        (chain(2), {"slots": 1, "cache": 32}, ActivationReplay(), 2, ParameterError, "build it with slots=2"),
        (chain(3), {}, ReplayBuffer(7), 8, RingOverflow, "the ring holds 7 tokens for windows of 4"),
        (chain(2), {"slots": 1, "cache": 4}, ActivationReplay(), 1, LengthError, "the drafter holds 4"),
    ):
        with pytest.raises(error, match=words):
            emitted(engine(model, ModelDrafter(model, parents, **room), method, slots=slots), [[1, 2, 3]], 9)


def test_a_target_with_another_number_of_tokens_is_refused_before_any_work() -> None:
    from .test_accept_laws import target

    with pytest.raises(TokenizerMismatch, match="the drafter has 4 tokens, the target 61"):
        engine(float64("bamba"), ModelDrafter(target(torch.float64), chain(2)), ActivationReplay())


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=5, top_p=0.9, repetition=1.1, min_tokens=2)])
@pytest.mark.parametrize("choose", ["top", "without_replacement", "beam"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_step_of_drafts_and_their_judgement_waits_for_nothing(choose: str, sampling: Sampling) -> None:
    """From the proposal to the verdict, penalties included."""
    model, room = drawn("bamba"), {"slots": 3, "cache": 40}
    if choose == "beam":
        drafter: ModelDrafter = BeamDrafter(model, 2, 3, sampling=sampling, **room)  # type: ignore[arg-type]
    else:
        drafter = ModelDrafter(model, branches((2, 2, 1)), choose=choose, sampling=sampling, **room)  # type: ignore[arg-type]
    held: dict[str, Any] = {"cache": 24, "window": drafter.nodes, "operations": TorchOperations(), "ends": ((3,), ((4, 5),))}
    decoder, sequences = begun(model, Tree(), prompts(1, (4, 2)), [2, 0], **held)
    with torch.no_grad():
        drafter.start(sequences, torch.tensor([2, 0]))
        for rule in (MultiStep(sampling), Naive(sampling)):
            with Waiting() as waiting:
                proposal = drafter.propose(sequences, torch.tensor([2, -1, 0]))
                step(decoder, sequences, proposal, rule, fits=True)  # counted, as an engine does
            assert waiting.found == []


@pytest.mark.parametrize("vocabulary", [61, 4096, 4099, 50288, 50432])
def test_the_largest_in_two_steps_is_the_largest_and_the_lowest_of_equals(vocabulary: int) -> None:
    law = torch.randint(50, (3, 2, vocabulary), generator=torch.Generator().manual_seed(vocabulary)).float()
    for _ in range(3):
        best = law.argmax(-1, keepdim=True)
        assert torch.equal(largest(law), best)
        law.scatter_(-1, best, float("-inf"))
