"""Relations between runs of one decoder, one function each: windows, rollback, slots, trees, schedules, greedy runs.

A law takes a `Case` (a decoding of any adapter with a model and tokens), runs it in two ways that must give the
same result, and raises `Broken` if they do not. `DECODER_LAWS` lists the laws with the faults that each one finds
(`conformance.faults.decoding.sequences`, `.drafts`, `.meanwhile`). The numbers are those of the relations in docs/fuzzing.md.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ssmspec_ref.contract import Adapter, Decoding

from ..drawing.walks import Case, case_of
from ..sessions.ledger import longest
from .greedy import any_drafts, greedy_is_plain

TREE, RENUMBERED = [-1, 0, 0, 1], [-1, 0, 0, 2]
"""A root with two children; the first child (or the second, in the other numbering) has one child."""


def windows_split(case: Case) -> None:
    """1. A window that is accepted whole equals two windows, of which the second begins where the first ended."""
    one, two = (case.walk([1, 2]) for _ in range(2))
    a, b, c = case.tokens(3)
    one.accept(0, [a, b], 2, c)
    two.accept(0, [a], 1, b)
    two.accept(0, [], 0, c)
    for walk in (one, two):
        walk.accept(0, [], 0, 0)
    case.agree(one, two)


def later_drafts(case: Case) -> None:
    """2. The logits of a draft do not depend on later drafts; bit for bit if tokens enter one by one."""
    drafts, other = case.tokens(3), case.tokens(3, 1)
    one, two = case.walk([1, 2]), case.walk([1, 2])
    one.draft({0: drafts})
    two.draft({0: [drafts[0], *other[1:]]})
    case.agree_exactly(one, two) if case.decoding.contract.order == "sequential" else case.agree(one, two)


def rollback(case: Case) -> None:
    """3. After a window that is accepted in part, everything is as if the rejected drafts had never existed."""
    drafts, root = case.tokens(3), case.tokens(1, 1)[0]
    for count in range(3):
        one, two = case.walk([1, 2, 0]), case.walk([1, 2, 0])
        one.accept(0, drafts, count, root)
        two.steps(0, [*drafts[:count], root])
        for walk in (one, two):
            walk.accept(0, drafts[:1], 1, 1)
            walk.steps(0, [2])
        case.agree(one, two)


def none_accepted(case: Case) -> None:
    """4. If no draft is accepted, the drafts do not matter: bit for bit if tokens enter one by one."""
    walks = [case.walk([1, 2]) for _ in range(3)]
    for walk, drafts in zip(walks, (case.tokens(3), case.tokens(3, 1), []), strict=True):
        walk.accept(0, drafts, 0, 1)
        walk.accept(0, [2], 0, 0)
    if case.decoding.contract.order == "sequential":
        case.agree_exactly(*walks[:2])
    case.agree(*walks)


def all_accepted(case: Case) -> None:
    """5. Windows that are all accepted whole equal plain decoding."""
    one, two = case.walk([1, 2]), case.walk([1, 2])
    for which in range(3):
        *drafts, root = case.tokens(4, which)
        one.accept(0, drafts, 3, root)
        two.steps(0, [*drafts, root])
    case.agree(one, two)


def cut(case: Case) -> None:
    """5. A run cut by a stop equals a run of the tokens that are left."""
    *drafts, root = case.tokens(4)
    one, two, three = (case.walk([1, 2]) for _ in range(3))
    for walk, by in ((one, 1), (three, 3)):
        walk.draft({0: drafts})
        walk.settle({0: [0, 1, 2, 3]}, root, by)
        walk.accept(0, [], 0, 1)
    two.steps(0, [*drafts[:2], root, 1])
    case.agree(one, two)
    two = case.walk([1, 2])
    two.steps(0, [root, 1])
    case.agree(three, two)


def repeated(case: Case) -> None:
    """6. Repeating a run gives the same bits, and reading a state changes nothing: without a read, with one, with two."""
    walks = [case.walk([1, 2]) for _ in range(3)]
    for reads, walk in enumerate(walks):
        for which in range(3):
            walk.accept(0, case.tokens(3, which), 1 + which % 2, 2, look=reads > 0)
            if reads > 1:
                walk.look(0, 0)
    for walk in walks[1:]:
        case.agree_exactly(walks[0], walk)


def ragged(case: Case) -> None:
    """7. A row shorter than its window, and padding before and after it, do not affect other rows."""
    long, short = case.tokens(3), case.tokens(1, 1)
    one, two = case.walk([1, 2], [0, 1]), case.walk([1, 2], [0, 1])
    one.draft({-1: [], 1: short, -2: [0], 0: long, -3: []})
    one.settle({1: [0, 1], 0: [0]}, 2)
    two.draft({1: short})
    two.settle({1: [0, 1]}, 2)
    two.draft({0: long})
    two.settle({0: [0]}, 2)
    for walk in (one, two):
        for slot in (0, 1):
            walk.accept(slot, [], 0, 1)
    case.agree(one, two)


def company(case: Case) -> None:
    """8. A sequence decodes alone as it does with others, in any order of rows, whatever each of them accepts."""
    prompts, drafts = ([1, 2], [0, 1, 2], [2], [3, 1]), [case.tokens(2, which) for which in range(4)]
    one, two = (case.walk(*prompts, slots=range(4)) for _ in range(2))
    for order in ((3, 0, 1, 2), (2, 3, 0, 1)):
        one.draft({slot: drafts[slot] for slot in order})
        one.settle({slot: list(range(slot % 3 + 1)) for slot in order}, 1)
        for slot in range(4):
            two.accept(slot, drafts[slot], slot % 3, 1)
    case.agree(one, two)


def padding_alone(case: Case) -> None:
    """7. A window of padding only changes nothing."""
    one, two = case.walk([1, 2], [3]), case.walk([1, 2], [3])
    drafts = case.tokens(2)
    for which in range(2):
        two.draft({-1: drafts})
        two.settle({}, 0)
        for walk in (one, two):
            walk.accept(0, case.tokens(2, which), 1, 1)
            walk.accept(1, drafts, which, 2)
    case.agree(one, two)


def padding_without_drafts(case: Case) -> None:
    """7. After slot 0 accepted a whole window, a step without drafts of another sequence next to padding equals
    that step alone: padding reads nothing of slot 0, in particular not the tokens that slot 0 feeds again."""
    (*drafts, root), more = case.tokens(4), case.tokens(2, 1)
    one, two = (case.walk([1, 2], [0, 1]) for _ in range(2))
    for walk in (one, two):
        walk.accept(0, drafts, 3, root, look=False)
    for token in more:
        one.draft({-1: [], 1: [], -2: []})
        one.settle({1: [0]}, token, look=False)
    two.steps(1, more)
    for walk in (one, two):
        for slot in (1, 0):
            walk.accept(slot, [], 0, 1)
    case.agree(one, two)


def meanwhile(case: Case) -> None:
    """8. Operations on other sequences between a window and its verdict affect neither the window nor them."""
    *drafts, root = case.tokens(3)
    walks = [case.walk([1, 2], [3, 0]) for _ in range(3)]
    one, two, three = walks
    for walk in walks:
        walk.accept(1, drafts, 1, 2)
        walk.draft({0: drafts})
        if walk is two:
            walk.fork(0, 1, 2)
        if walk is three:
            walk.preempt(0, 1)
        walk.settle({0: [0, 1, 2]}, root)
    three.resume(0, 0, 3)
    for walk, other in ((one, 1), (two, 2), (three, 3)):
        walk.accept(0, [1], 1, 2)
        walk.accept(other, drafts, 2, 1)
    case.agree(*walks)


def slots_renamed(case: Case) -> None:
    """9. It does not matter which slots sequences have, nor who used them before; other slots keep their bits."""
    drafts, prompts = case.tokens(2), ([1, 2], [3], [0, 4])
    one, two = case.walk(*prompts, slots=(0, 1, 2)), case.walk(*prompts, slots=(3, 1, 2))
    two.accept(1, drafts, 1, 3)
    two.release(0, 1)
    two.hand_over_within(2, 0)
    two.prefill(0, [[3]], [1])
    for walk, names in ((one, (0, 1, 2)), (two, (3, 1, 0))):
        for order in ((0, 1), (1, 2), (2, 0)):
            walk.draft({-1: [], **{names[i]: drafts for i in order}})
            walk.settle({names[i]: list(range(1 + (order[0] + i) % 3)) for i in order}, 2)
    case.agree(one, two)


def siblings_permuted(case: Case) -> None:
    """10. A tree with its siblings renumbered has the same logits at the same nodes, and commits the same along the same
    path."""
    a, b, c = 0, 1, case.tokens(1)[0]
    one, two = case.walk([1, 2]), case.walk([1, 2])
    one.draft({0: [a, b, c]}, {0: TREE})
    one.settle({0: [0, 1, 3]}, 2)
    two.draft({0: [b, a, c]}, {0: RENUMBERED})
    two.settle({0: [0, 2, 3]}, 2)
    for walk in (one, two):
        walk.accept(0, [], 0, 1)
    case.agree(one, two)


def chain_as_tree(case: Case) -> None:
    """11. A chain is the tree with one path."""
    *drafts, root = case.tokens(4)
    one, two = case.walk([1, 2]), case.walk([1, 2])
    one.draft({0: drafts})
    two.draft({0: drafts}, {0: [-1, 0, 1, 2]})
    for walk in (one, two):
        walk.settle({0: [0, 1, 2]}, root)
        walk.accept(0, [], 0, 1)
    case.agree(one, two)


def path_as_chain(case: Case) -> None:
    """11, 12. A tree has the logits of the chains of its paths at its nodes, and commits a path as its chain."""
    words = [0, 1, case.tokens(1)[0]]
    for path in ([0, 1], [0, 2], [0, 2, 3]):
        one, two = case.walk([1, 2]), case.walk([1, 2])
        one.draft({0: words}, {0: RENUMBERED})
        one.settle({0: path}, 2)
        two.steps(0, [*(words[node - 1] for node in path[1:]), 2])
        for walk in (one, two):
            walk.accept(0, [], 0, 1)
        case.agree(one, two)


def twins(case: Case) -> None:
    """12. Siblings with the same token have the same logits, and it does not matter which of them is accepted."""
    a, b = case.tokens(2)
    one, two = case.walk([1, 2]), case.walk([1, 2])
    for walk, path in ((one, [0, 1]), (two, [0, 2])):
        walk.draft({0: [a, a, b]}, {0: [-1, 0, 0, 0]})
        walk.settle({0: path}, 2)
        walk.accept(0, [b], 1, 1)
    case.agree(one, two)


def prompt_in_parts(case: Case) -> None:
    """16. A prompt equals its first part, with the rest as windows."""
    first, (*drafts, root) = case.tokens(4), case.tokens(4, 1)
    one, two = case.walk([*first, *drafts, root]), case.walk(first)
    two.accept(0, drafts, 3, root)
    for walk in (one, two):
        walk.accept(0, [1], 1, 2)
    case.agree(one, two)


def flushed(case: Case) -> None:
    """16. It does not matter when the buffer is flushed."""
    one, two = case.walk([1, 2], [3]), case.walk([1, 2], [3])
    for which in range(4):
        for walk in (one, two):
            walk.accept(0, case.tokens(2, which), which % 3, 1)
            walk.accept(1, case.tokens(2, which), 1, 2)
        if which != 2:
            two.flush(0, [0, 1])
    case.agree(one, two)


def preempted(case: Case) -> None:
    """20. A sequence that is taken out and continues in another slot continues as if it had stayed."""
    one, two = case.walk([1, 2]), case.walk([1, 2])
    for which in range(3):
        one.accept(0, case.tokens(2, which), which % 2 + 1, 1)
        two.accept(which, case.tokens(2, which), which % 2 + 1, 1)
        two.preempt(0, which)
        two.prefill(0, [[0, 3]], [which])
        two.resume(0, 0, which + 1)
    case.agree(one, two)


def forked(case: Case) -> None:
    """20. A copy and its source continue independently, each as if it were alone."""
    one, two, three = (case.walk([1, 2]) for _ in range(3))
    drafts, other = case.tokens(2), case.tokens(2, 1)
    for walk in (one, two, three):
        walk.accept(0, drafts, 1, 1)
    two.fork(0, 0, 2)
    two.accept(0, drafts, 2, 3)
    two.accept(2, other, 1, 4)
    one.accept(0, drafts, 2, 3)
    three.accept(0, other, 1, 4)
    for walk, slots in ((one, (0,)), (two, (0, 2)), (three, (0,))):
        for slot in slots:
            walk.accept(slot, [], 0, 2)
    case.agree(one, two, three)


@dataclass(frozen=True)
class DecoderLaw:
    """`needs` is the kind of windows it needs: chains or trees of several tokens; `kills` are the faults it finds."""

    holds: Callable[[Case], None]
    needs: tuple[str, ...]
    kills: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.holds.__name__

    def takes(self, decoding: Decoding) -> bool:
        return longest(decoding, 4) == 4 and all(getattr(decoding, need) for need in self.needs)

    def over(self, adapter: Adapter, seed: int) -> Iterator[Case]:
        """A case for every decoding of an adapter to which the law applies."""
        return (case_of(adapter, decoding, seed) for decoding in adapter.decodings if self.takes(decoding))


ANY, TREES, BOTH = (), ("trees",), ("chains", "trees")
DECODER_LAWS = (
    DecoderLaw(windows_split, ANY, ("LosesLastToken", "StepReadsTheOldColumn", "RingOfOneWindow")),
    DecoderLaw(later_drafts, ANY, ("LooksAhead", "ChainsAtOnce")),
    DecoderLaw(rollback, ANY, ("KeepsConvWindow", "KeepsTheFirstDraft", "RingOfOneWindow")),
    DecoderLaw(none_accepted, ANY, ("KeepsConvWindow", "KeepsTheFirstDraft")),
    DecoderLaw(all_accepted, ANY, ("LosesLastToken", "StepReadsTheOldColumn", "RingOfOneWindow")),
    DecoderLaw(cut, ANY, ("IgnoresTheCut", "CutsBeforeTheRoot")),
    DecoderLaw(repeated, ANY, ("SettlesWhenRead", "CountsItsWindows")),
    DecoderLaw(ragged, ANY, ("RaggedAsUniform", "PaddingShiftsTheRows", "RowForSlot")),
    DecoderLaw(company, ANY, ("OneCursor", "RowForSlot", "StaleOrder", "ThreeRowsAtMost")),
    DecoderLaw(padding_alone, ANY, ("PaddingAloneIsSlotZero",)),
    DecoderLaw(meanwhile, ANY, ("ForkSpoilsTheWindow", "ReleaseSpoilsTheWindow")),
    DecoderLaw(slots_renamed, ANY, ("RowForSlot", "ReusesTheState", "PaddingTakesTheLastSlot", "PaddingShiftsTheRows")),
    DecoderLaw(siblings_permuted, TREES, ("PathAsPrefix",)),
    DecoderLaw(chain_as_tree, BOTH, ("ChainsAtOnce", "KeepsConvWindow")),
    DecoderLaw(path_as_chain, TREES, ("PathAsPrefix", "LastChild")),
    DecoderLaw(twins, TREES, ("LooksAhead",)),
    DecoderLaw(prompt_in_parts, ANY, ("LosesLastToken", "RingOfOneWindow")),
    DecoderLaw(flushed, ANY, ("FlushLosesTheLast", "FlushesTheFirst", "RingOfOneWindow")),
    DecoderLaw(preempted, ANY, ("PreemptForgetsTheLast", "RingOfOneWindow")),
    DecoderLaw(forked, ANY, ("ForkAliases", "PreemptForgetsTheLast")),
    DecoderLaw(greedy_is_plain, ANY, ("TrustsDrafts", "ChainsAtOnce")),
    DecoderLaw(any_drafts, ANY, ("TrustsDrafts", "ChainsAtOnce")),
    DecoderLaw(padding_without_drafts, ANY, ("PaddingLagsAsSlotZero",)),
)
"""The catalogue."""
