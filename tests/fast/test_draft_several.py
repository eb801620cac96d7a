"""Requests that name their drafter and their number of drafts: each drafts as it would alone, whatever the others ask."""

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.suite.graph.tape import TapeRecorder
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.ngram import NGram, PromptLookup
from ssmspec_fast.draft.several import Several
from ssmspec_fast.draft.shapes import chain
from ssmspec_fast.engine.emitted_windows import EmittedWindow, StreamingEngine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.build import Parts
from ssmspec_ref.errors import ParameterError, Unsupported

from .models import drawn, prompts
from .runs import BITWISE

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
SLOTS, CACHE, DRAFTS = 3, 40, 3
GIVEN = [ids * 2 for ids in prompts(3, (3, 5, 2, 4))]
NAMES = ("model", "lookup")


def model(drafts: int) -> ModelDrafter:
    return ModelDrafter(drawn("bamba"), chain(drafts), BITWISE, slots=SLOTS, cache=CACHE + 8)


def engine(drafter: Drafter, recorded: bool = False) -> StreamingEngine:
    made: Any = {"operations": BITWISE, "slots": SLOTS, "cache": CACHE, "graphs": TapeRecorder() if recorded else None}
    rule = Naive(Sampling(temperature=0.0), 5)
    return StreamingEngine(drawn("bamba"), drafter, Plain() if drafter.nodes == 1 else ActivationReplay(), rule, **made)


@lru_cache
def several(recorded: bool = False) -> StreamingEngine:
    return engine(Several({"model": model(DRAFTS), "lookup": PromptLookup(2)}), recorded)


ASKED = st.builds(
    Settings,
    budget=st.integers(1, 9),
    sampling=st.none() | st.just(Sampling(temperature=1.0)),
    seed=st.none() | st.integers(0, 9),
    drafts=st.none() | st.integers(0, DRAFTS),
    drafter=st.none() | st.sampled_from(NAMES),
)


def windows(made: StreamingEngine, asked: list[Settings], first: int = 0) -> list[list[tuple[tuple[int, ...], int]]]:
    """The tokens and the number of drafts of each window, by request."""
    seen: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in asked]

    def show(window: EmittedWindow) -> None:
        seen[window.request].append((window.tokens, window.drafted))

    many = range(first, first + len(asked))
    made.generate([GIVEN[n] for n in many], asked, list(many), show)
    return seen


@pytest.mark.parametrize("recorded", [False, True])
def test_a_request_drafts_in_any_batch_as_alone_and_no_more_than_it_says(recorded: bool) -> None:
    @settings(max_examples=4 if recorded else 8, deadline=None)
    @given(st.lists(ASKED, min_size=2, max_size=4))
    def holds(asked: list[Settings]) -> None:
        together = windows(several(recorded), asked)
        assert together == [windows(several(), [one], n)[0] for n, one in enumerate(asked)]
        for one, seen in zip(asked, together, strict=True):
            most = min(DRAFTS if one.drafts is None else one.drafts, 2 if one.drafter == "lookup" else DRAFTS)
            assert all(drafted <= most for _, drafted in seen)

    holds()


@pytest.mark.parametrize("drafts", [0, 1, 2, 3])
def test_a_request_drafts_as_an_engine_of_its_drafter_alone(drafts: int) -> None:
    """Beside requests of another drafter, and in a slot that such a request had before."""
    asked = [Settings(9, drafts=2, drafter="lookup"), Settings(9, drafts=drafts, drafter="model"), Settings(9), Settings(9)]
    found = windows(several(), asked)
    if drafts:
        alone = windows(engine(model(drafts)), [Settings(9)], 1)[0]
        assert found[1] == alone
        assert {drafted for _, drafted in alone} == {drafts}
    else:
        assert [drafted for _, drafted in found[1]] == [0] * 9
    assert found[3] == windows(engine(model(DRAFTS)), [Settings(9)], 3)[0]


def test_a_state_that_another_drafters_requests_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is not begun with its own request goes on from the request that had the slot before."""
    asked = [Settings(9, drafter="model"), Settings(9, drafter="lookup"), Settings(9, drafter="lookup"), Settings(9)]
    right = windows(several(), asked)
    monkeypatch.setattr(ModelDrafter, "start", lambda self, sequences, slots: None)
    assert windows(several(), asked) != right


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Settings(3, drafts=4), "windows hold 3"),
        (Settings(3, drafter="ngram"), "name one of model, lookup"),
    ],
)
def test_what_does_not_exist_is_refused(given: Settings, why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        several().generate([[1]], given)


def test_an_engine_of_one_drafter_refuses_requests_that_choose() -> None:
    with pytest.raises(ParameterError, match="draft alike"):
        engine(PromptLookup(2)).generate([[1]], Settings(3, drafts=1))
    with pytest.raises(ParameterError, match="drafts is -1"):
        Settings(3, drafts=-1)


@pytest.mark.parametrize("other", [NGram(2, 2), NGram(2, 2, trees=True)])
def test_a_drafter_of_rows_or_trees_is_refused(other: Drafter) -> None:
    with pytest.raises(Unsupported, match="requests cannot choose the drafter other"):
        Several({"lookup": PromptLookup(2), "other": other})
    with pytest.raises(ParameterError, match="no drafter"):
        Several({})


def test_two_checkpoints_as_drafters_are_refused() -> None:
    folder = SHIPPED / "mamba2"
    with pytest.raises(Unsupported, match="2 of the drafters are checkpoints"):
        Parts(folder, {"a": f"{folder}-drafter", "b": f"{folder}-drafter"})
