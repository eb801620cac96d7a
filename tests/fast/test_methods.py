"""Every method emits, bit for bit, what plain decoding emits, and leaves the states that plain decoding leaves."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.state import Cache, Pools, tensors
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref.errors import EmptyWindow, LengthError, RingOverflow, SlotError, Unsupported

from .drafters import CHAINS, NODES, SEVERAL, Skilled, skilled
from .models import ONE_OF_EACH, drawn, prompts
from .rollbacks import FAULTS
from .runs import BITWISE, begun, emitted, engine, step, unused

LENGTHS, BUDGET = (1, 6, 3, 11), 12


@cache
def model_of(name: str) -> Model:
    return drawn(name)


@cache
def answers(name: str, seed: int, lengths: tuple[int, ...] = LENGTHS, budget: int = BUDGET) -> list[tuple[int, ...]]:
    """What plain decoding emits."""
    return emitted(engine(model_of(name)), prompts(seed, lengths), budget)


def spoken(model: Model, method: Method, drafter: Skilled, given: list[list[int]], **settings: Any) -> list[tuple[int, ...]]:
    return emitted(engine(model, drafter, method), given, Settings(BUDGET, **settings))


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_speculative_greedy_output_is_bit_identical_to_plain(name: str, method: str) -> None:
    model, given = model_of(name), prompts(1, LENGTHS)
    wanted = answers(name, 1, LENGTHS)
    drafter = skilled(wanted, method)
    assert spoken(model, CHAINS[method](), drafter, given) == wanted
    assert drafter.seen == {"none", "some", "all"}


@pytest.mark.parametrize("method", CHAINS)
def test_weights_in_bfloat16_change_nothing_of_that(method: str) -> None:
    model, given = drawn("bamba", torch.bfloat16), prompts(7, (3, 8))
    wanted = emitted(engine(model), given, BUDGET)
    assert spoken(model, CHAINS[method](), skilled(wanted, method), given) == wanted


@hypothesis.settings(deadline=None, derandomize=True, max_examples=15)
@hypothesis.given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    nodes=st.integers(1, 7),
    skill=st.floats(0.0, 1.0),
    method=st.sampled_from(sorted(CHAINS)),
    name=st.sampled_from(["mamba2", "bamba", "qwen3_5"]),
)
def test_any_windows_of_any_skill_emit_plain_tokens(
    seed: int, lengths: list[int], nodes: int, skill: float, method: str, name: str
) -> None:
    model, given = model_of(name), prompts(seed, tuple(lengths))
    wanted = answers(name, seed, tuple(lengths), 9)
    made = ReplayBuffer() if method == "replay buffer of two windows" else CHAINS[method]()
    drafter = skilled(wanted, method, skill, nodes, seed=seed)
    assert emitted(engine(model, drafter, made, slots=2), given, 9) == wanted


@pytest.mark.parametrize("drafts", [2, 4])
@pytest.mark.parametrize("method", SEVERAL)
@pytest.mark.parametrize("name", ["mamba", "bamba", "qwen3_5", "kimi_linear", "lfm2"])
def test_several_drafts_share_one_state(name: str, method: str, drafts: int) -> None:
    model, given = model_of(name), prompts(2, LENGTHS)
    wanted = answers(name, 2, LENGTHS)
    drafter = Skilled(wanted, NODES, skill=0.5, drafts=drafts)
    assert spoken(model, SEVERAL[method](drafts), drafter, given) == wanted
    assert drafter.seen == {"none", "some", "all"}


@pytest.mark.parametrize("method", CHAINS)
def test_an_end_inside_a_window_cuts_it(method: str) -> None:
    model, given, wanted = model_of("bamba"), prompts(3, LENGTHS), answers("bamba", 3)
    ends: dict[str, Any] = {"eos": (wanted[1][5],), "stop": (wanted[3][2:4],)}
    came = spoken(model, CHAINS[method](), skilled(wanted, method, 0.95), given, **ends)
    assert came == emitted(engine(model), given, Settings(BUDGET, **ends))
    assert sum(len(tokens) for tokens in came) < BUDGET * len(given)


def go_on(decoder: Decoder, sequences: Sequences, rows: torch.Tensor, drafter: Skilled, count: int) -> None:
    """Some windows of these rows."""
    for _ in range(count):
        proposal = drafter.propose(sequences, rows)
        drafter.observe(sequences, proposal, step(decoder, sequences, proposal))


def windows(
    model: Model, method: Method, drafter: Skilled, given: list[list[int]], count: int, settle: bool = True
) -> tuple[Decoder, Sequences]:
    """Some windows of a batch in slots out of order, with a padding row, and what the decoder holds then."""
    slots = [len(given) + 1 - i for i in range(len(given))]
    decoder, sequences = begun(model, method, given, slots, slots=len(given) + 2, window=NODES)
    go_on(decoder, sequences, torch.tensor([*slots[:2], -1, *slots[2:]]), drafter, count)
    if settle:
        with torch.no_grad():
            method.settle(decoder.pools, torch.tensor(slots), model, sequences, BITWISE)
    return decoder, sequences


def settled_as_plain(model: Model, method: Method, decoder: Decoder, sequences: Sequences, number: int, wanted: Any) -> int:
    """Whether request number n of `windows` has the tokens, and bit for bit the tensors, of plain decoding; its tokens."""
    slot = decoder.slots - 1 - number
    tokens = sequences.tokens[slot, : int(sequences.length[slot])].tolist()
    come = tokens[int(sequences.prompt[slot]) :]
    assert come == list(wanted[number][: len(come)])
    plain, _ = begun(model, Plain(), [tokens], [0], slots=1)
    pair = held(decoder.pools, method, slot, len(tokens) - 1), held(plain.pools, Plain(), 0, len(tokens) - 1)
    assert all(torch.equal(a, b) for a, b in zip(*pair, strict=True))
    assert int(decoder.pools.length[slot]) == len(tokens) - 1
    return len(come)


def held(pools: Pools, method: Method, slot: int, length: int) -> list[torch.Tensor]:
    """All that a slot owns, caches as far as they are committed."""
    place = int(method.places(pools, torch.tensor([slot]))[0])
    found = []
    for state in pools.layers:
        if isinstance(state, Cache):
            found += [state.K[slot, :length], state.V[slot, :length]]
        else:
            found += [state.M[slot], state.S[place]]
    return found


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("name", ["falcon_h1", "qwen3_5"])
def test_settled_states_are_those_of_plain_decoding(name: str, method: str) -> None:
    """After any number of windows: convolution, state, keys and values, bit for bit."""
    model, given = model_of(name), prompts(4, LENGTHS)
    wanted = answers(name, 4, LENGTHS, 40)
    for count in (1, 4):
        made = CHAINS[method]()
        run = windows(model, made, skilled(wanted, method), given, count)
        for number in range(len(given)):
            settled_as_plain(model, made, *run, number, wanted)


@pytest.mark.parametrize("method", CHAINS)
def test_slots_outside_the_batch_stay_as_they_are(method: str) -> None:
    made, wanted = CHAINS[method](), answers("bamba", 5, (4, 7), 40)
    decoder, _ = windows(model_of("bamba"), made, skilled(wanted, method), prompts(5, (4, 7)), 3)
    for slot in (0, 1):  # never named
        assert not any(x.any() for x in held(decoder.pools, made, slot, 64))


def as_plain(sequences: Sequences, slots: Iterable[int], wanted: Any, least: int) -> None:
    """Each slot has emitted what plain decoding says of its request, and at least so many tokens."""
    for slot in slots:
        came = sequences.output(slot)
        assert came == wanted[int(sequences.request[slot])][: len(came)]
        assert len(came) >= least


@pytest.mark.parametrize("other", ["snapshots", "joint", "replay buffer", "tree"])
@pytest.mark.parametrize("method", ["joint", "activation replay", "tree"])
def test_a_lagging_row_is_forked_and_handed_on_to_another_method(method: str, other: str) -> None:
    """Three windows under one method, then each sequence twice under another: all go on as plain decoding does."""
    model, wanted = model_of("bamba"), answers("bamba", 4, LENGTHS, 40)
    drafter = skilled(wanted, method)
    decoder, sequences = windows(model, CHAINS[method](), drafter, prompts(4, LENGTHS), 3, settle=False)
    heir = Decoder(model, CHAINS[other](), BITWISE, slots=6, cache=64, window=NODES)
    with torch.no_grad():
        for slot in (2, 3):
            heir.restore(slot, decoder.snapshot(slot, sequences))
        heir.fork(3, 0, sequences)
        go_on(heir, sequences, torch.tensor([2, 0, -1, 3]), skilled(wanted, other, seed=1), 3)
        go_on(decoder, sequences, torch.tensor([4, 5]), drafter, 2)
    as_plain(sequences, (0, 2, 3, 4, 5), wanted, 5)


def test_what_a_slot_owns_between_windows_is_counted() -> None:
    """Elements beside the caches of attention: one state and the method's own, per slot and layer."""
    model = model_of("mamba2")
    state, entry = 6 * 8 * 5, 6 * 8 + 6 + 2 * 5  # h p n; x, dt, B of a token
    for made, places, kept, entries in (
        (Plain(), 1, 0, 0),
        (Snapshots(), 1 + NODES, 0, 0),
        (Snapshots(3), 1 + 3 * NODES, 0, 0),
        (Joint(), 1, 0, 0),
        (ActivationReplay(), 1, 0, 0),
        (Tree(), 1, 0, 0),
        (ReplayBuffer(9), 1, 9 * entry, 7),
    ):
        window = 1 if isinstance(made, Plain) and type(made) is Plain else NODES
        pools = Decoder(model, made, BITWISE, slots=7, cache=8, window=window).pools
        for layer in range(3):
            assert pools.recurrent(layer).S.numel() == 7 * places * state
        rings = [*tensors(getattr(pools.kept, "records", {})), *tensors(getattr(pools.kept, "launched", {}))]
        assert sum(x.numel() for x in rings) == entries * 3 * kept
        assert sum(x.numel() for x in vars(pools.kept).values() if isinstance(x, torch.Tensor)) <= 2 * 7


@pytest.mark.parametrize("method", [name for name in CHAINS if name != "replay buffer of two windows"])
def test_one_method_serves_two_decoders(method: str) -> None:
    """What a method needs to remember lies in the pools, so that windows of two lengths do not disturb each other."""
    model, made, wanted = model_of("bamba"), CHAINS[method](), answers("bamba", 1)
    first = engine(model, skilled(wanted, method), made)
    engine(model, skilled(wanted, method, nodes=NODES + 3), made, slots=2)
    assert emitted(first, prompts(1, LENGTHS), BUDGET) == wanted


def test_what_a_method_cannot_do_is_refused_with_the_reason() -> None:
    wanted = answers("mamba2", 6, (4,))
    chain, tree, several = (skilled(wanted, of, drafts=n) for of, n in (("", 1), ("tree", 1), ("", 2)))
    for made, drafter, error, words in (
        (Snapshots(), tree, Unsupported, "use the method tree"),
        (Joint(), tree, Unsupported, "use the method tree"),
        (ActivationReplay(), tree, Unsupported, "use the method tree"),
        (Tree(), chain, Unsupported, "use the method activation replay"),
        (ReplayBuffer(), several, Unsupported, "one chain for each sequence"),
        (Plain(), chain, Unsupported, "plain decoding takes windows of 1"),
        (ReplayBuffer(7), chain, RingOverflow, "the ring holds 7 tokens for windows of 4"),
    ):
        with pytest.raises(error, match=words):
            spoken(model_of("mamba2"), made, drafter, prompts(6, (4,)))


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_methods_are_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, owner, name, wrong = FAULTS[fault]
    model, wanted = model_of("bamba"), answers("bamba", 1)
    monkeypatch.setattr(owner, name, wrong)
    assert spoken(model, CHAINS[method](), skilled(wanted, method), prompts(1, LENGTHS)) != wanted


@pytest.mark.parametrize("method", ["snapshots", "joint", "activation replay", "replay buffer", "tree"])
def test_a_rejected_draft_without_numbers_changes_nothing(method: str) -> None:
    """A token that plain decoding never says has NaN for an embedding: it is drafted, and the request goes on as plain."""
    given, wanted, model = prompts(1, LENGTHS), answers("bamba", 1), drawn("bamba")
    spare = unused(given, wanted)
    model.embedding[spare] = float("nan")
    drafter = skilled(wanted, method)
    drafter.perhaps = lambda token: token if drafter.rng.random() < 0.7 else spare  # type: ignore[method-assign]
    assert spoken(model, CHAINS[method](), drafter, given) == wanted
    assert drafter.seen == {"none", "some", "all"}


@pytest.mark.parametrize("method", ["snapshots", "joint", "tree"])
def test_a_run_stops_before_a_token_without_numbers_and_fails_at_the_next(method: str) -> None:
    """Plain decoding says it and fails behind it; so does a window in which it is accepted, whatever comes before."""
    given, wanted, model = prompts(1, (6,)), answers("bamba", 1, (6,)), drawn("bamba")
    spare = wanted[0][6]
    if spare in (*given[0], *wanted[0][:6]):
        raise AssertionError("choose a token that is said late for the first time")
    model.embedding[spare] = float("nan")
    for made in (engine(model), engine(model, skilled(wanted, method, 1.0), CHAINS[method]())):
        (came,) = made.generate(given, Settings(BUDGET))
        assert (came.tokens, came.finish) == (wanted[0][:7], "failed")


@pytest.mark.parametrize("method", ["snapshots", "joint", "activation replay", "replay buffer of two windows", "tree"])
def test_budget_and_cache_are_met_exactly_inside_a_window(method: str) -> None:
    """The shortest cache that is not refused, prompts of one token, and slots that are used again."""
    given, wanted = prompts(9, (1, 5, 1)), answers("bamba", 9, (1, 5, 1))
    for budget in (1, 2, 6):
        room = {"slots": 1, "cache": 5 + budget + NODES - 1}
        made = engine(model_of("bamba"), skilled(wanted, method, 1.0), CHAINS[method](), **room)
        assert emitted(made, given, budget) == [tokens[:budget] for tokens in wanted]


@pytest.mark.parametrize("method", ["joint", "activation replay"])
def test_a_sequence_is_not_taken_between_its_window_and_the_verdict(method: str) -> None:
    """There replay has moved its state, and joint attainment its root: a copy would be neither before nor after."""
    wanted = answers("mamba2", 4, (3, 6), 20)
    drafter = skilled(wanted, method)
    decoder, sequences = windows(model_of("mamba2"), CHAINS[method](), drafter, prompts(4, (3, 6)), 1, settle=False)
    rows = torch.tensor([3])
    with torch.no_grad():
        proposal = drafter.propose(sequences, rows)
        decoder.fork(3, 0, sequences)  # before the window is fed, it may be
        feed = decoder.feed(proposal.window, sequences)
        logits = decoder.verify(feed)
        decoder.fork(2, 1, sequences)  # another one may be, too
        with pytest.raises(SlotError, match="slot 3 has a window that is verified but not committed"):
            decoder.fork(3, 1, sequences)
        verdict = Greedy()(proposal, logits, sequences, BITWISE)
        decoder.commit(feed, verdict)
        sequences.commit(verdict)
        go_on(decoder, sequences, torch.tensor([1, 0, 3, 2]), drafter, 3)
    as_plain(sequences, range(4), wanted, 3)


def test_two_streams_do_not_share_the_slots_of_an_engine() -> None:
    made, given = engine(model_of("mamba2"), slots=1), prompts(1, (3, 4))
    first = made.stream(given, Settings(3))
    next(first)
    with pytest.raises(SlotError, match="another stream of this engine"):
        made.generate(given, Settings(3))
    first.close()
    assert len(made.generate(given, Settings(3))) == 2


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("tree", [False, True])
def test_attention_reads_what_is_no_number_where_it_sees_it_and_nowhere_else(tree: bool, bitwise: bool) -> None:
    """Node 1 of a window has none: node 0 is before it, node 2 behind it in a chain and beside it in a tree."""
    rng = torch.Generator().manual_seed(0)
    q, k, v, K, V = (torch.randn(1, t, h, 8, generator=rng) for t, h in ((3, 4), (3, 2), (3, 2), (16, 2), (16, 2)))
    length, slots = torch.tensor([5]), torch.tensor([0])
    sees = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool) if tree else None
    how: dict[str, Any] = {"ancestors": sees, "scale": 0.4, "append": False, "slots": slots}
    operations = TorchOperations(bitwise)
    wanted = operations.attention(q, k, v, K, V, length, **how)
    for kind in (float("nan"), float("inf")):
        keys, values = k.clone(), v.clone()
        keys[0, 1] = values[0, 1] = kind
        for given in (k, keys):
            came = operations.attention(q, given, values, K, V, length, **how)
            assert came[0].isnan().flatten(1).any(1).tolist() == [False, True, not tree]
            assert torch.equal(came[0, 0], wanted[0, 0])


def test_a_prompt_is_refused_before_it_touches_another_sequence() -> None:
    decoder = Decoder(model_of("mamba2"), Snapshots(), BITWISE, slots=2, cache=8, window=NODES)
    for given, slots, error in (
        ([[1, 2], [3]], [0, 0], SlotError),
        ([[1, 2]], [-1], SlotError),
        ([[1, 2]], [2], SlotError),
        ([[]], [0], EmptyWindow),
        ([[1, 2]], [0, 1], LengthError),
        ([[1] * 9], [0], LengthError),
    ):
        with pytest.raises(error):
            decoder.prefill(given, slots)
    assert not any(x.any() for x in tensors(decoder.pools.layers))
    with pytest.raises(SlotError, match="slot -1 was named"):
        decoder.fork(0, -1, new_sequences(2, 8, (), (), "cpu"))
