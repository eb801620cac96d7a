"""Prompts that are read in pieces between steps: the bits of whole ones, and those who run go on meanwhile."""

from collections.abc import Iterator
from math import lcm
from typing import Any

import pytest
import torch

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import PromptLookup
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.draft.several import Several
from ssmspec_fast.draft.shapes import chain
from ssmspec_fast.engine import prefill, reading
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.reading import Begun, Reading
from ssmspec_fast.engine.requests import Request, Settings
from ssmspec_fast.engine.scheduler import Scheduler
from ssmspec_fast.engine.sequences import new_sequences
from ssmspec_fast.engine.state import tensors
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.checkpoint import load
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations import torch_attention
from ssmspec_kernels.shared.tuning import H200
from ssmspec_ref.errors import ParameterError

from .drafters import CHAINS
from .models import NAMES, drawn, prompts
from .runs import BITWISE, emitted, engine, served
from .shipped import SHIPPED

REAL, GRAIN = reading.GRAIN, 8
"""In these tests pieces are short; in bitwise mode their ends do not matter."""
LENGTHS = (2 * GRAIN + 9, 1, 17, GRAIN + 1, GRAIN)
CACHE, SETTINGS = 2 * GRAIN + 48, Settings(5)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, as_on_a_gpu: None) -> None:
    monkeypatch.setattr(reading, "GRAIN", GRAIN)


def request(prompt: list[int], number: int = 0) -> Request:
    return Request(number, 0, prompt, SETTINGS)


def left(decoder: Decoder, given: list[list[int]], slots: list[int]) -> list[torch.Tensor]:
    """What the states of these slots hold, and the logits of their first windows."""
    sequences = new_sequences(decoder.slots, decoder.cache + 1, (), (), "cpu")
    for slot, prompt in zip(slots, given, strict=True):
        sequences.add(slot, prompt, 4, 0)
    held = [x.clone() for x in tensors(decoder.pools.layers)]
    feed = decoder.feed(Nothing().propose(sequences, torch.tensor(slots)).window, sequences)
    return [*held, decoder.pools.length.clone(), decoder.verify(feed)]


def pieces_of(given: list[list[int]], slots: list[int], most: int) -> Iterator[list[prefill.Piece]]:
    begun = Reading(most)
    begun.begun = {slot: Begun(request(prompt)) for slot, prompt in zip(slots, given, strict=True)}
    while pieces := begun.pieces():
        yield pieces
        begun.read(pieces)


def differs(model: Model, given: list[list[int]], slots: list[int], most: int, cache: int = CACHE) -> bool:
    """Whether states or logits of prompts in pieces have other bits than those of whole prompts."""
    found = []
    for whole in (True, False):
        decoder = Decoder(model, Plain(), BITWISE, slots=len(given), cache=cache)
        decoder.prefill(prompts(8, (30, 40)), [0, 1])  # what was there before
        if whole:
            decoder.prefill(given, slots)
        else:
            for pieces in pieces_of(given, slots, most):
                decoder.read_pieces(pieces)
        found.append(left(decoder, given, slots))
    return not all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def short_differs(name: str, most: int = GRAIN) -> bool:
    with torch.no_grad():
        return differs(drawn(name), prompts(7, LENGTHS), [3, 0, 4, 1, 2], most)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_in_pieces_leaves_the_bits_of_a_whole_one(name: str) -> None:
    assert not short_differs(name)
    assert not short_differs(name, 3 * GRAIN)


def test_of_a_checkpoint_that_ships_in_the_pieces_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GRAIN", REAL)
    given = [prompts(7, (2 * REAL + 9,))[0], [5]]
    with torch.no_grad():
        assert not differs(load(SHIPPED / "bpe-drafter", torch.float32), given, [0, 1], REAL, 3 * REAL)


@pytest.mark.parametrize("fault", ["fresh", "positions"])
def test_a_planted_piece_that_forgets_what_came_before_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefill.packed

    def packed(pieces: Any, device: Any) -> prefill.Run:
        run = real(pieces, device)
        if not any(one.start for one in pieces):
            return run
        return run._replace(**{fault: torch.ones_like(run.fresh) if fault == "fresh" else run.positions % GRAIN})

    monkeypatch.setattr(prefill, "packed", packed)
    assert short_differs("llama" if fault == "positions" else "mamba2")


def test_pieces_end_where_chunks_and_tiles_end_or_with_their_prompt() -> None:
    rules, named = (
        ("causal_attention", "delta_chunk_scan", "ssd_chunk_scan"),
        ("chunk", "rounded_chunk", "block_t", "block_l"),
    )
    sizes = [H200[rule][name] for rule in rules for name in named if name in H200[rule]]
    assert len(sizes) >= 5
    assert lcm(*sizes, torch_attention.QUERIES) == REAL
    given = prompts(7, LENGTHS)
    ends = dict.fromkeys(range(5), 0)
    for pieces in pieces_of(given, [0, 1, 2, 3, 4], 2 * GRAIN):
        assert sum(len(one.tokens) for one in pieces) <= 2 * GRAIN
        for slot, start, tokens in pieces:
            assert start == ends[slot]
            ends[slot] = start + len(tokens)
            assert ends[slot] % GRAIN == 0 or ends[slot] == len(given[slot]) - 1
    assert [*ends.values()] == [n - 1 for n in LENGTHS]


def test_a_short_prompt_is_read_at_once_beside_long_ones() -> None:
    begun, given = Reading(4 * GRAIN), prompts(7, (40 * GRAIN, 40 * GRAIN, 40 * GRAIN))
    begun.begun = {slot: Begun(request(prompt)) for slot, prompt in enumerate(given)}
    begun.read(begun.pieces())
    begun.begun[7] = Begun(request([1] * GRAIN))
    assert 7 in begun.read(begun.pieces())
    counts = dict.fromkeys(range(3), 0)
    for _ in range(30):
        pieces = begun.pieces()
        begun.read(pieces)
        for one in pieces:
            counts[one.slot] += len(one.tokens)
    assert max(counts.values()) - min(counts.values()) <= 4 * GRAIN


@pytest.mark.parametrize("most", [0, 1, REAL + 1, prefill.CHUNK + REAL, -REAL])
def test_other_pieces_are_refused(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GRAIN", REAL)
    with pytest.raises(ParameterError, match=f"pieces of prompts have {most} tokens; give a multiple of 64, at most 4096"):
        Reading(most)


def copy(slots: int) -> ModelDrafter:
    return ModelDrafter(drawn("bamba"), chain(3), BITWISE, slots=slots, cache=CACHE + 8)


DRAFTERS: dict[str, Any] = {
    "none": lambda slots: None,
    "lookup": lambda slots: PromptLookup(3),
    "model": copy,
    "several": lambda slots: Several({"model": copy(slots), "lookup": PromptLookup(2)}),
}


def made(drafter: Drafter | None, piece: int | None = GRAIN, recorded: bool = False, method: Any = None) -> Engine:
    method = method or (Plain() if drafter is None else ActivationReplay())
    return engine("bamba", drafter, method, cache=CACHE, piece=piece, graphs=TapeRecorder() if recorded else None)


def results(of: Engine) -> list[tuple[Any, Any]]:
    return [(one.tokens, one.statistics) for one in of.generate(prompts(9, LENGTHS), SETTINGS)]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_get_the_tokens_of_whole_prompts(name: str, recorded: bool) -> None:
    assert results(made(DRAFTERS[name](3), GRAIN, recorded)) == results(made(DRAFTERS[name](3), None))


@pytest.mark.parametrize("name", sorted({*CHAINS} - {"tree"}))
def test_under_every_method_too(name: str) -> None:
    given, found = prompts(9, LENGTHS), made(PromptLookup(3), GRAIN, False, CHAINS[name]())
    assert emitted(found, given, SETTINGS) == emitted(made(None, None), given, SETTINGS)


class Times:
    """A clock in which a token that is read takes a second, and a step too."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def stepped(self, rows: int) -> None:
        self.time += 1.0

    def sleep_until(self, moment: float) -> None: ...


def test_who_runs_waits_for_a_long_prompt_as_long_as_for_its_own_steps_and_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = Times(), Decoder.read_pieces

    def read(self: Decoder, pieces: Any) -> None:
        clock.time += sum(len(one.tokens) for one in pieces)
        real(self, pieces)

    monkeypatch.setattr(Decoder, "read_pieces", read)
    given = prompts(9, (2, 2 * GRAIN + 1))
    scheduler = Scheduler(made(None), Settings(3 * GRAIN // 2), clock=clock)
    first = scheduler.submit(given[0])
    scheduler.turn()
    second = scheduler.submit(given[1], Settings(2))
    found = served(scheduler)
    steps = 3 * GRAIN // 2
    assert found[first].finish <= 2 * steps + GRAIN + 1
    assert found[second].first <= 4 * GRAIN + 4
    monkeypatch.setattr(Scheduler, "owed", property(lambda self: 0.0, lambda self, value: None), raising=False)
    clock.time, scheduler = 0.0, Scheduler(made(None), Settings(GRAIN // 2), clock=clock)
    first = scheduler.submit(given[0])
    scheduler.turn()
    scheduler.submit(given[1], Settings(2))
    assert served(scheduler)[first].finish > 2 * (GRAIN // 2) + GRAIN + 1  # a planted scheduler that owes nothing


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_request_that_is_cancelled_while_it_is_read_leaves_its_slot_to_others(name: str) -> None:
    given = prompts(9, LENGTHS)
    wanted = emitted(made(DRAFTERS[name](3), None), given, SETTINGS)
    scheduler = Scheduler(made(DRAFTERS[name](3)), SETTINGS)
    gone = scheduler.submit(prompts(5, (2 * GRAIN + 5,))[0])
    scheduler.turn()
    ended = scheduler.cancel(gone)
    assert ended is not None
    assert (ended.ending, ended.tokens) == ("cancelled", ())
    numbers = [scheduler.submit(prompt) for prompt in given]
    found = served(scheduler)
    assert [found[number].tokens for number in numbers] == wanted


def test_a_prompt_that_cannot_be_read_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given, real = prompts(9, LENGTHS), Decoder.read_pieces
    wanted = emitted(made(None, None), given, SETTINGS)

    def read(self: Decoder, pieces: Any) -> None:
        if any(len(one.tokens) and one.tokens[0] == given[0][GRAIN] and one.start for one in pieces):
            raise ValueError("planted")
        real(self, pieces)

    monkeypatch.setattr(Decoder, "read_pieces", read)
    scheduler = Scheduler(made(None), SETTINGS)
    for prompt in given:
        scheduler.submit(prompt)
    found = served(scheduler)
    assert (found[0].ending, found[0].why) == ("failed", "ValueError: planted")
    assert [found[n].tokens for n in range(1, 5)] == wanted[1:]


def test_of_several_clients_the_one_with_the_fewest_in_slots_is_next() -> None:
    scheduler = Scheduler(made(None, None), SETTINGS)
    given = prompts(3, (3,) * 10)
    for n in range(8):
        scheduler.submit(given[n], client="many")
    late = [scheduler.submit(given[8], client="a"), scheduler.submit(given[9], client="b")]
    scheduler.turn()
    assert sorted(scheduler.joined) == [0, *late]
    assert (scheduler.waits("many"), scheduler.waits("a")) == (7, 0)
    assert len(served(scheduler)) == 10


def test_clients_take_turns_and_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, prompt = Scheduler(made(None, None), SETTINGS), prompts(3, (3,))[0]
    for client in ("many", "many", "many", "a", "b"):
        scheduler.submit(prompt, client=client)
    taken = list[str]()
    for _ in range(9):
        taken += [one.client for one in scheduler.fairest(1)]
        scheduler.submit(prompt, client=taken[-1])
    assert all({*taken[n : n + 3]} == {"many", "a", "b"} for n in range(7))
    monkeypatch.setattr("ssmspec_fast.engine.scheduler.CLIENTS", 5)
    for n in range(20):
        scheduler.submit(prompt, client=str(n))
    scheduler.fairest(len(scheduler.waiting))
    assert len(scheduler.last) == 5
