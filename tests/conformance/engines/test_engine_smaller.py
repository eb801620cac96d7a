"""A schedule is reduced to what its break needs; the count of accepted drafts allows tokens that are read again."""

import numpy as np
import pytest

from conformance.engines.laws import fewest
from conformance.engines.schedules import Ask, Schedule, candidates, in_full, in_turn, reduced


def rounds(*prompts: tuple[tuple[int, ...], ...]) -> Schedule:
    return tuple(
        tuple(Ask(ids, len(ids), temperature=0.8, stop_at=1, after=n) for n, ids in enumerate(asks)) for asks in prompts
    )


DRAWN = rounds(((9, 9, 5, 9), (3,)), ((4, 4),), ((8, 7, 6), (7, 2), (1, 1)), ((2,),))


def breaks(schedule: Schedule) -> bool:
    """A later request begins with 7, behind one that holds 5."""
    prompts = [ask.own for asks in schedule for ask in asks]
    return any(ids[0] == 7 and any(5 in before for before in prompts[:n]) for n, ids in enumerate(prompts))


def test_what_a_break_does_not_need_is_left_out() -> None:
    found = reduced(DRAWN, breaks, lambda: True)
    assert [[ask.own for ask in asks] for asks in found] == [[(5,)], [(7,)]]
    assert all((ask.most, ask.stop_at, ask.temperature, ask.after) == (1, None, 0.0, 0) for (ask,) in found)


def test_without_time_nothing_is_left_out() -> None:
    assert reduced(DRAWN, breaks, lambda: False) == DRAWN


def test_every_candidate_is_smaller_and_none_is_empty() -> None:
    for candidate in candidates(DRAWN):
        assert candidate != DRAWN
        assert all(asks and all(ask.own for ask in asks) for asks in candidate)
    assert not list(candidates(((Ask((1,), 1, most=1),),)))


def test_requests_get_their_whole_prompts_and_run_in_turn() -> None:
    forked: Schedule = ((Ask((1, 2), 3),), (Ask((5,), 1, of=0, kept=2, cancel=2, after=3),))
    found = in_turn(in_full(forked, [(1, 2, 1), (1, 2, 5)]))
    assert [ask.own for (ask,) in found] == [(1, 2, 1), (1, 2, 5)]
    assert all((ask.of, ask.cancel, ask.after) == (None, None, 0) for (ask,) in found)


@pytest.mark.parametrize(
    ("right", "drafts", "rereads", "least"),
    [
        ([1, 1, 1, 1, 1], 3, True, 3),  # a window of three, then a token of the target
        ([1, 1, 1, 1, 1, 1, 1, 1, 1], 3, True, 6),
        ([1, 0, 0, 0], 3, True, 0),
        ([1, 1, 0, 1, 1], 3, True, 2),  # a draft, a rejected one, two more
        ([1, 1, 0, 1], 3, True, 1),  # what is read again gives a token: the last one has no draft
        ([1, 1, 0, 1], 3, False, 2),
        ([1], 3, True, 0),
    ],
)
def test_the_fewest_accepted_drafts(right: list[int], drafts: int, rereads: bool, least: int) -> None:
    assert fewest(np.array(right, bool), drafts, rereads) == least
