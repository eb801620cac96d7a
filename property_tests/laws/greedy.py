"""Greedy decoding of one sequence by a decoder, and the laws that drafts do not change its output."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..drawing.walks import Case, Walk
from .relations import Broken

TOKENS, VOCABULARY = 12, 61
"""A vocabulary so large that the most likely token depends on the state: with five, a lost token changes one choice in
fifty."""


class Run(NamedTuple):
    """The tokens after the prompt, and the margin of each over the next most likely one."""

    said: list[int]
    margins: list[float]


def greedy(case: Case, walk: Walk, drafter: Callable[[int], list[int]]) -> Run:
    """`drafter` returns drafts after a number of tokens; a draft is accepted while it is the most likely token."""
    run = Run([], [])
    while len(run.said) < TOKENS:
        drafts, before, took = drafter(len(run.said))[: case.width - 1], walk.rooms[0][0], list[int]()
        walk.draft({0: drafts})
        while True:
            best, margin = walk.best((*before, *took))
            run.said.append(best)
            run.margins.append(margin)
            if len(took) == len(drafts) or drafts[len(took)] != best:
                break
            took.append(best)
        walk.settle({0: list(range(len(took) + 1))}, run.said[-1])
    return run


def says_as_plain(case: Case, drafter: Callable[[Run, int], list[int]]) -> None:
    """Token for token; if bits are not promised, except for a choice that the bounds of both sides leave open."""
    case = replace(case, spec=replace(case.spec, vocabulary=VOCABULARY))
    prompt = [1, *case.tokens(2)]
    plain = greedy(case, case.walk(prompt), lambda at: [])
    walk = case.walk(prompt)
    other = greedy(case, walk, lambda at: drafter(plain, at))
    for at in range(TOKENS):
        if plain.said[at] == other.said[at]:
            continue
        said = ("logits", (*prompt, *other.said[:at]))
        if plain.margins[at] > (0.0 if case.decoding.bits else 4 * float(case.bound(walk, said)[0].max())):
            words = f"{plain.said[at]}, {plain.margins[at]:.3g} above the next"
            raise Broken(f"{case.decoding.name}: token {at} is {other.said[at]}; without drafts it is {words}")
        return


def greedy_is_plain(case: Case) -> None:
    """20. Greedy decoding with drafts that are all right, or all but the third or the second, has the output of decoding
    without drafts."""
    for wrong in (TOKENS, 3, 2):

        def drafter(plain: Run, at: int, wrong: int = wrong) -> list[int]:
            return [(token + (i % wrong == wrong - 1)) % VOCABULARY for i, token in enumerate(plain.said[at : at + 3])]

        says_as_plain(case, drafter)


def any_drafts(case: Case) -> None:
    """21. Random drafts do not change the output of greedy decoding."""
    says_as_plain(case, lambda plain, at: [13 * t % VOCABULARY for t in case.tokens(3, at)])
