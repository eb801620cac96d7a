"""Actions drawn from what a ledger allows: the rules of the state machine, and of schedules.

Every function takes `draw` and a ledger (or session), and returns the arguments of the action with its name, or None
if it is not possible.
Draws shrink towards one sequence, one row without drafts, no padding, everything accepted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from ..sessions.ledger import Ledger, longest, nodes
from .acceptances import acceptance_patterns
from .token_trees import token_trees

Draw = Callable[[st.SearchStrategy[Any]], Any]
Arguments = dict[str, Any]


def decoder(draw: Draw, ledger: Ledger, allowed: Callable[[int], bool]) -> int | None:
    """The number of a decoder."""
    found = [d for d in range(len(ledger.rooms)) if allowed(d)]
    return draw(st.sampled_from(found)) if found else None


def sequence(draw: Draw, ledger: Ledger, allowed: Callable[[int, int], bool] = lambda d, s: True) -> Any:
    """A decoder and the slot of a sequence in it that waits for no verdict."""
    busy = set() if ledger.pending is None else {(ledger.pending[0], int(s)) for s in ledger.pending[1].slots}
    found = [(d, s) for d, room in enumerate(ledger.rooms) for s in sorted(room) if (d, s) not in busy and allowed(d, s)]
    return draw(st.sampled_from(found)) if found else None


def token(ledger: Ledger) -> st.SearchStrategy[int]:
    return st.integers(0, ledger.vocabulary - 1)


def prefill(draw: Draw, ledger: Ledger) -> Arguments | None:
    """Prompts of one to five tokens for any free slots of a decoder."""
    d = decoder(draw, ledger, lambda d: bool(ledger.free(d)))
    if d is None:
        return None
    slots = draw(st.lists(st.sampled_from(ledger.free(d)), min_size=1, max_size=2, unique=True))
    prompt = st.lists(token(ledger), min_size=1, max_size=5)
    return {"d": d, "prompts": [draw(prompt) for _ in slots], "slots": slots}


def batch(draw: Draw, ledger: Ledger, d: int, width: int) -> tuple[list[int], int]:
    """Slots in any order, with padding, and the most tokens that their windows may have."""
    fitting = [s for s, tokens in ledger.rooms[d].items() if len(tokens) < ledger.cache]
    slots = draw(st.lists(st.sampled_from(sorted(fitting)), min_size=1, unique=True))
    room = min(width, *(ledger.cache - len(ledger.rooms[d][s]) for s in slots))
    for _ in range(draw(st.integers(0, 2))):
        slots.insert(draw(st.integers(0, len(slots))), -1)
    return slots, room


def fits(ledger: Ledger, d: int) -> bool:
    return any(len(tokens) < ledger.cache for tokens in ledger.rooms[d].values())


def verify_chain(draw: Draw, ledger: Ledger) -> Arguments | None:
    """Windows of unequal length, also without drafts, and several rows of a sequence if the decoding supports them."""
    d = decoder(draw, ledger, lambda d: ledger.decodings[d].chains and fits(ledger, d))
    if d is None:
        return None
    slots, most = batch(draw, ledger, d, longest(ledger.decodings[d], ledger.window))
    drafts = ledger.decodings[d].drafts
    longest_row = most if draw(st.booleans()) else draw(st.integers(1, most))
    rows = [slot for slot in slots for _ in range(drafts)]
    short = draw(st.booleans())
    lengths = [draw(st.integers(1, longest_row)) if short else longest_row for _ in rows]
    drafted = st.lists(token(ledger), min_size=longest_row - 1, max_size=longest_row - 1)
    tokens = [[ledger.rooms[d][slot][-1] if slot >= 0 else 0, *draw(drafted)] for slot in rows]
    whole = all(length == longest_row for length in lengths)
    return {"d": d, "tokens": tokens, "slots": rows, "lengths": None if whole else lengths, "drafts": drafts}


def verify_tree(draw: Draw, ledger: Ledger) -> Arguments | None:
    """A different tree for every row."""
    d = decoder(draw, ledger, lambda d: ledger.decodings[d].trees and fits(ledger, d))
    if d is None:
        return None
    slots, most = batch(draw, ledger, d, longest(ledger.decodings[d], ledger.window))
    width = most if draw(st.booleans()) else draw(st.integers(1, most))
    roots = [ledger.rooms[d][slot][-1] if slot >= 0 else 0 for slot in slots]
    trees = [draw(token_trees(ledger.vocabulary, width, width, root)) for root in roots]
    return {
        "d": d,
        "tokens": [list(tree.tokens) for tree in trees],
        "slots": slots,
        "parents": [list(tree.parents) for tree in trees],
    }


def commit(draw: Draw, ledger: Ledger) -> Arguments | None:
    """Any path of each row, whole or in part, and any next root; the state may be read or not."""
    if ledger.pending is None:
        return None
    _, window = ledger.pending
    m = window.drafts
    paths, kept, rows, roots = list[list[int]](), list[int](), list[int](), list[int]()
    for n in range(len(window.slots) // m):
        row = n * m + (draw(st.integers(0, m - 1)) if m > 1 else 0)
        if window.slots[row] < 0:
            paths, kept, rows, roots = [*paths, []], [*kept, 0], [*rows, n * m], [*roots, 0]
            continue
        ways = nodes(window, row)
        path, count = draw(acceptance_patterns(ways))
        paths, kept, rows = [*paths, list(path)], [*kept, count], [*rows, row]
        roots.append(draw(token(ledger)))
    return {"paths": paths, "kept": kept, "rows": rows, "roots": roots, "look": draw(st.booleans())}


def fork(draw: Draw, ledger: Ledger) -> Arguments | None:
    found = sequence(draw, ledger, lambda d, s: bool(ledger.free(d)))
    return None if found is None else {"d": found[0], "slot": found[1], "to": draw(st.sampled_from(ledger.free(found[0])))}


def release(draw: Draw, ledger: Ledger) -> Arguments | None:
    found = sequence(draw, ledger)
    return None if found is None else {"d": found[0], "slot": found[1]}


preempt = release


def flush(draw: Draw, ledger: Ledger) -> Arguments | None:
    d = decoder(draw, ledger, lambda d: bool(ledger.rooms[d]))
    if d is None:
        return None
    return {"d": d, "slots": draw(st.lists(st.sampled_from(sorted(ledger.rooms[d])), min_size=1, unique=True))}


def resume(draw: Draw, ledger: Ledger) -> Arguments | None:
    d = decoder(draw, ledger, lambda d: bool(ledger.free(d)))
    if d is None or not ledger.parked:
        return None
    return {
        "number": draw(st.integers(0, len(ledger.parked) - 1)),
        "d": d,
        "slot": draw(st.sampled_from(ledger.free(d))),
    }


def hand_over(draw: Draw, ledger: Ledger) -> Arguments | None:
    found = sequence(draw, ledger)
    other = decoder(draw, ledger, lambda d: found is not None and d != found[0] and bool(ledger.free(d)))
    if found is None or other is None:
        return None
    return {"d": found[0], "slot": found[1], "other": other, "to": draw(st.sampled_from(ledger.free(other)))}


def plain(draw: Draw, ledger: Ledger) -> Arguments | None:
    def judged(d: int, s: int) -> bool:
        return ledger.has_plain(d) and len(ledger.rooms[d][s]) < ledger.cache

    found = sequence(draw, ledger, judged)
    return None if found is None else {"d": found[0], "slot": found[1]}


class Action(NamedTuple):
    """How to draw an action, its name in the session, its weight, and where it is possible."""

    draw: Callable[[Draw, Ledger], Arguments | None]
    call: str
    weight: int
    offered: Callable[[Ledger], bool]


def running(ledger: Ledger) -> bool:
    return any(ledger.rooms)


def takes(ledger: Ledger, what: str) -> bool:
    return any(getattr(d, what) and room for d, room in zip(ledger.decodings, ledger.rooms, strict=True))


ACTIONS: dict[str, Action] = {
    "verify_chain": Action(verify_chain, "verify", 6, lambda s: takes(s, "chains")),
    "verify_tree": Action(verify_tree, "verify", 6, lambda s: takes(s, "trees")),
    "prefill": Action(prefill, "prefill", 2, lambda s: any(s.free(d) for d in range(len(s.rooms)))),
    "release": Action(release, "release", 2, running),
    "fork": Action(fork, "fork", 2, running),
    "preempt": Action(preempt, "preempt", 1, running),
    "resume": Action(resume, "resume", 2, lambda s: bool(s.parked)),
    "hand_over": Action(hand_over, "hand_over", 2, lambda s: running(s) and len(s.rooms) > 1),
    "flush": Action(flush, "flush", 1, running),
    "plain": Action(plain, "plain", 1, lambda s: running(s) and any(s.has_plain(d) for d in range(len(s.rooms)))),
    "commit": Action(commit, "commit", 0, lambda s: s.pending is not None),
}


def offered(ledger: Ledger) -> list[str]:
    """The possible actions between two windows, repeated by their weights."""
    return [name for name, act in ACTIONS.items() for _ in range(act.weight) if act.offered(ledger)]
