"""Settings of a request: its tokens are the same alone and in any batch, whatever the others ask for."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.emitted_windows import StreamingEngine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.engine.scheduler import Scheduler, Served
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.tree import Tree
from ssmspec_ref.errors import BudgetError, ParameterError

from .models import VOCABULARY, drawn, prompts
from .runs import BITWISE, emitted, engine, served

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
SLOTS, CACHE = 3, 40
GIVEN = prompts(3, (3, 5, 2, 4))
TREE = (-1, 0, 0, 1, 2)


def drafted(choose: str) -> ModelDrafter:
    trees = choose != "iid"
    shape = TREE if trees else (-1, 0, 1)
    return ModelDrafter(drawn("mamba"), shape, BITWISE, choose=choose, trees=trees, slots=SLOTS, cache=CACHE + 8)


KINDS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "plain": lambda: (None, None, Naive(seed=5)),
    "lookup": lambda: (PromptLookup(2), ActivationReplay(), Naive(Sampling(temperature=0.0), 5)),
    "draws": lambda: (drafted("iid"), ActivationReplay(), MultiStep(Sampling(temperature=0.8), 5)),
    "draws of a tree": lambda: (drafted("without_replacement"), Tree(), MultiStep(seed=5)),
    "best of a tree": lambda: (drafted("top"), Tree(), MultiStep(seed=5)),
    "greedy": lambda: (NGram(2), ActivationReplay(), Greedy()),
}
TOKENS = st.integers(0, VOCABULARY - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 1.7)),
    top_k=st.sampled_from((0, 1, 5, 40)),
    top_p=st.sampled_from((0.2, 0.9, 1.0)),
    repetition=st.sampled_from((1.0, 1.3)),
    presence=st.sampled_from((0.0, 0.7)),
    frequency=st.sampled_from((0.0, 0.4)),
    min_tokens=st.sampled_from((0, 3)),
)
ASKED = st.builds(
    Settings,
    budget=st.integers(0, 8),
    eos=st.lists(TOKENS, max_size=12).map(tuple),
    stop=st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    sampling=st.none() | SAMPLINGS,
    seed=st.none() | st.integers(0, 2**64 - 1),
)
GREEDY = st.builds(Settings, st.integers(0, 8), st.lists(TOKENS, max_size=12).map(tuple))
BATCH = {"greedy": GREEDY}
ENGINES: dict[tuple[str, bool], StreamingEngine] = {}


def engine_of(kind: str, recorded: bool = False) -> StreamingEngine:
    if (kind, recorded) not in ENGINES:
        drafter, method, rule = KINDS[kind]()
        recorder = TapeRecorder() if recorded else None
        made: dict[str, Any] = {"operations": BITWISE, "slots": SLOTS, "cache": CACHE, "graphs": recorder}
        ENGINES[kind, recorded] = StreamingEngine(drawn("bamba"), drafter or Nothing(), method, rule, **made)
    return ENGINES[kind, recorded]


def differs(kind: str, recorded: bool, asked: list[Settings]) -> bool:
    """Whether a request of a batch differs from the same request alone."""
    engine, keys = engine_of(kind, recorded), list(range(len(asked)))
    together = engine.generate(GIVEN[: len(asked)], asked, keys)
    alone = [engine_of(kind).generate([GIVEN[n]], one, [n])[0] for n, one in enumerate(asked)]
    return [(r.tokens, r.finish) for r in together] != [(r.tokens, r.finish) for r in alone]


@pytest.mark.parametrize(("kind", "recorded"), [*((kind, False) for kind in KINDS), ("lookup", True), ("draws", True)])
def test_a_request_alone_is_the_request_in_any_batch(kind: str, recorded: bool) -> None:
    @settings(max_examples=4 if recorded or "tree" in kind else 12, deadline=None)
    @given(st.lists(BATCH.get(kind, ASKED), min_size=2, max_size=4))
    def holds(asked: list[Settings]) -> None:
        assert not differs(kind, recorded, asked)

    holds()


MIXED = [
    Settings(8, (), (), Sampling(temperature=0.0)),
    Settings(8, (1, 2), (), Sampling(1.5, top_k=9, repetition=1.5), seed=3),
    Settings(8, (), ((4, 5),), Sampling(0.7, top_p=0.6), seed=2**63 + 1),
]


def first_row(name: str) -> Callable[[Any, Any], Any]:
    """A method of `Sequences` that reads slot 0 for every row."""
    old = getattr(Sequences, name)
    return lambda self, at, *more: old(self, torch.zeros_like(at), *more)


@pytest.mark.parametrize("plant", ["seeds", "sampling", "eos", "stop"])
def test_settings_of_slot_0_taken_for_all_are_caught(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*MIXED]
    said = engine_of("lookup").generate(GIVEN[:3], asked, [0, 1, 2])
    if plant == "eos":
        asked[1] = Settings(8, (said[1].tokens[3],), (), asked[1].sampling, 3)
    if plant == "stop":
        asked[1] = Settings(8, (), (said[1].tokens[2:4],), asked[1].sampling, 3)
        asked[0] = Settings(8, (), ((60, 60, 60),), asked[0].sampling)
    assert not differs("lookup", False, asked)
    right = engine_of("lookup").generate(GIVEN[:3], asked, [0, 1, 2])
    if plant == "seeds":
        monkeypatch.setattr(Sequences, "seeds", first_row("seeds"))
    else:
        ask = Sequences.ask

        def spread(self: Sequences, running: Any) -> None:
            ask(self, running)
            held = getattr(self, plant)
            held.copy_(held[:1].expand_as(held).clone())
            self.own.copy_(self.own[:1].expand_as(self.own).clone() if plant == "sampling" else self.own)

        monkeypatch.setattr(Sequences, "ask", spread)
    assert engine_of("lookup").generate(GIVEN[:3], asked, [0, 1, 2]) != right


def test_a_seed_of_its_own_names_a_request_without_its_number() -> None:
    """As its place among the prompts does not: two requests alike say the same, and another seed says another thing."""
    engine, hot = engine_of("plain"), Sampling(3.0)
    own = [Settings(8, (), (), hot, 7), Settings(8, (), (), hot, 7), Settings(8, (), (), hot, 8)]
    a, b, c = (r.tokens for r in engine.generate([GIVEN[0]] * 3, own))
    assert a == b != c
    a, b = (r.tokens for r in engine.generate([GIVEN[0]] * 2, own[0], keys=[1, 2]))
    assert a != b


def test_the_temperature_0_says_what_greedy_decoding_says() -> None:
    wanted = emitted(engine("bamba"), GIVEN, 8)
    for kind in ("plain", "lookup", "draws", "draws of a tree", "best of a tree"):
        assert emitted(engine_of(kind), GIVEN, Settings(8, sampling=Sampling(0.0))) == wanted


@pytest.mark.parametrize(
    ("given_", "error", "said"),
    [
        ({"budget": 2.5}, ParameterError, "budget is 2.5; it must be a whole number"),
        ({"budget": True}, ParameterError, "budget is True"),
        ({"budget": -1}, BudgetError, "-1"),
        ({"eos": (32.9,)}, ParameterError, "a token of eos is 32.9"),
        ({"eos": 3}, ParameterError, "eos is 3"),
        ({"stop": "\n\n"}, ParameterError, "stop is the text"),
        ({"stop": ("\n",)}, ParameterError, "stop is"),
        ({"stop": ((),)}, ParameterError, "sequence is empty"),
        ({"seed": 2**64}, ParameterError, "must be 0 to 2"),
        ({"seed": "a"}, ParameterError, "seed is 'a'"),
    ],
)
def test_nonsense_is_refused_by_name(given_: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Settings(**{"budget": 3} | given_)


def test_what_the_engine_cannot_serve_is_refused_before_any_work() -> None:
    engine = engine_of("greedy")
    refused: list[tuple[Any, Any, str]] = [
        ([[1.5]], Settings(1), "a token of prompt 0 is 1.5"),
        (["ab"], Settings(1), "prompt 0 is 'ab'"),
        ([[1]], Settings(1, (VOCABULARY,)), "eos holds token 61"),
        ([[1]], Settings(1, sampling=Sampling(0.5)), "accepts greedily"),
        ([[1]], [Settings(1)] * 2, "there are 1 prompts and 2 settings"),
    ]
    for given_, asked, said in refused:
        with pytest.raises(ParameterError, match=said):
            engine.generate(given_, asked)
    assert engine.generate([[1]], Settings(1, sampling=Sampling(0.0)))[0].finish == "length"


class Blaming(PromptLookup):
    """Fails in a step whose batch holds the token 60 as the first of a prompt."""

    def propose(self, sequences: Sequences, slots: Any) -> Any:
        if any(int(sequences.tokens[slot, 0]) == 60 for slot in slots if slot >= 0):
            raise KeyError("planted")
        return super().propose(sequences, slots)


def test_a_step_that_fails_ends_the_request_whose_fault_it_is_and_no_other() -> None:
    made: dict[str, Any] = {"operations": BITWISE, "slots": SLOTS, "cache": CACHE}
    engine = StreamingEngine(drawn("bamba"), Blaming(2), ActivationReplay(), Naive(Sampling(1.2), 5), **made)
    scheduler, shown = Scheduler(engine, Settings(8)), dict[int, list[int]]()
    show = [lambda seen: shown.setdefault(seen.request, []).extend(seen.tokens)] * 5

    def angry(seen: Any) -> None:
        raise ValueError("of the caller")

    show[3] = angry
    for number, prompt in enumerate([*GIVEN[:2], GIVEN[2], GIVEN[3]]):
        scheduler.submit(prompt, show=show[number], key=number)
        if number == 1:
            scheduler.turn()
    bad = scheduler.submit([60, 1])
    found = served(scheduler)
    scheduler.close()
    assert (found[bad].ending, found[bad].why) == ("failed", "KeyError: 'planted'")
    assert (found[3].ending, found[3].why) == ("failed", "ValueError: of the caller")
    plain = StreamingEngine(drawn("bamba"), PromptLookup(2), ActivationReplay(), Naive(Sampling(1.2), 5), **made)
    wanted = [plain.generate([GIVEN[n]], Settings(8), [n])[0].tokens for n in range(3)]
    assert [found[n].tokens for n in range(3)] == wanted
    assert [tuple(shown[n]) for n in range(3)] == wanted


def test_the_engine_keeps_no_callback_of_a_call() -> None:
    engine, first = engine_of("lookup"), list[int]()
    engine.generate(GIVEN[:1], Settings(3), show=lambda seen: first.extend(seen.tokens))
    assert len(first) == 3
    engine.generate(GIVEN[:1], Settings(3))
    assert len(first) == 3

    def angry(seen: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.generate(GIVEN[:1], Settings(3), show=angry)
    assert len(engine.generate(GIVEN[:1], Settings(3))[0].tokens) == 3


def test_many_threads_submit_and_cancel_while_one_turns() -> None:
    scheduler, lock = Scheduler(engine_of("lookup"), Settings(4)), threading.Lock()
    asked: dict[int, tuple[int, int]] = {}
    gone: dict[int, Served] = {}

    def client(name: int) -> None:
        for n in range(8):
            number = scheduler.submit(GIVEN[n % 4], Settings(1 + n % 4, (), (), Sampling(1.1), name), key=n)
            with lock:
                asked[number] = name, n
            if n % 4 == 3 and (ended := scheduler.cancel(number)) is not None:
                with lock:
                    gone[number] = ended

    threads = [threading.Thread(target=client, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    found: dict[int, Served] = {}
    while any(thread.is_alive() for thread in threads) or not scheduler.idle:
        found |= {one.number: one for one in scheduler.turn()}
    scheduler.close()
    assert sorted(asked) == list(range(48))
    assert sorted([*found, *gone]) == list(range(48))
    plain: dict[tuple[int, int], tuple[int, ...]] = {}
    for number, one in found.items():
        name, n = asked[number]
        wanted = Settings(1 + n % 4, (), (), Sampling(1.1), name)
        plain[name, n] = engine_of("lookup").generate([GIVEN[n % 4]], wanted, [n])[0].tokens
        assert one.tokens == plain[name, n]
