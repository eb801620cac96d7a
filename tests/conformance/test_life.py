"""The life of a state: right servers pass, planted faults fail, and scripts have what they claim."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.ranks import WAYS as ASKED
from conformance.adapters.reference_parts.ranks import Ranks
from conformance.adapters.reference_parts.states import States
from conformance.cases import Case
from conformance.faults.by_hand.shared_memory import BlocksOfACall
from conformance.faults.rollback import lives, ranks
from conformance.judge.verdict import judge
from conformance.suite import find, of_operation
from conformance.suite.life.ranks import channels, cut, joined, of_servers
from conformance.suite.life.script import WAYS, Model, Step
from conformance.suite.life.states import BLOCK, hit, same
from ssmspec_ref.contract import FLOAT64, Capability, Verdict
from ssmspec_ref.layers import mixer

from .judging import judged, passes

SPECIFICATION = next(s for s in of_operation("life.states") if s.fixed["kind"] == "mamba2")
BESIDE = ("fork", "mixed")
"""Scripts that feed a sequence and its fork in one server."""
TINY = "life.states/b3,t4,j40,g1,h1,p2,n2,w2/script={},kind=mamba2/gentle/s0"


def tiny(way: str) -> Case:
    sizes = {"j": 12, "g": 1, "h": 1, "p": 2, "n": 2, "w": 2}
    return SPECIFICATION.case(sizes, {"script": way}, "gentle", 0)


def steps_of(way: str, block: str = "four") -> tuple[Step, ...]:
    case = SPECIFICATION.case({"j": 40, "h": 1, "g": 1}, {"script": way, "block": block}, "gentle", 0)
    steps: tuple[Step, ...] = SPECIFICATION.draw(case, FLOAT64)[3]
    return steps


def begun(way: str, block: str = "four") -> list[tuple[int, int]]:
    """How long each prompt of a script is, and how much of it a server has saved."""
    steps = [step for step in steps_of(way, block) if step.do == "begin"]
    return [(len(step.tokens), step.found) for step in steps if step.tokens is not None]


def tiny_of(way: str) -> str:
    return TINY.format(way) if way != "prefix" else TINY.replace("script={},", "")


blocks = pytest.mark.parametrize("block", ["four", "seven"])


@pytest.mark.parametrize("way", WAYS)
def test_a_script_has_all_that_its_way_names(way: str) -> None:
    assert set(Counter(step.do for step in steps_of(way))) == set(WAYS[way])


def test_prompts_find_prefixes_and_miss_them_and_some_end_at_a_boundary() -> None:
    prompts = begun("prefix")
    assert {bool(found) for _, found in prompts} == {True, False}
    assert any(length % 4 == 0 for length, _ in prompts)


@blocks
@pytest.mark.parametrize("way", WAYS)
def test_a_script_ends_with_hits_of_what_a_copy_has_saved(way: str, block: str) -> None:
    """Two prompts that find all but their last token, and one that finds nothing, for each copy."""
    lengths = begun(way, block)[: -1 if way in BESIDE else None][-6 if way == "mixed" else -3 :]
    for first, second, after in zip(*[iter(lengths)] * 3, strict=True):
        assert first == second == (first[1] + 1, 3 * BLOCK[block])
        assert after == (2 * BLOCK[block] + 2, 0)


@blocks
@pytest.mark.parametrize(("way", "place"), [("fork", -5), ("move", -4), ("mixed", -8)])
def test_a_prompt_continues_the_origin_after_it_and_its_copies_were_fed(way: str, place: int, block: str) -> None:
    assert begun(way, block)[place] == (3 * BLOCK[block] + 1, 3 * BLOCK[block])


@blocks
@pytest.mark.parametrize("way", BESIDE)
def test_a_last_prompt_has_the_tokens_of_two_sequences_in_the_order_they_were_fed(way: str, block: str) -> None:
    assert begun(way, block)[-1] == (5 * BLOCK[block] + 4, 3 * BLOCK[block])


def test_a_prefix_is_found_if_it_is_saved_on_this_server_and_leaves_a_token() -> None:
    model = Model(2)
    model.begin(0, 0, (1, 2, 3, 4, 5))
    assert model.covered(0, (1, 2, 3, 4, 5)) == 4
    assert model.covered(0, (1, 2, 3, 4)) == 2
    assert model.covered(0, (1, 2, 9)) == 2
    assert model.covered(0, (9, 2, 3, 4)) == model.covered(1, (1, 2, 3, 4, 5)) == 0
    model.evict(0)
    assert model.covered(0, (1, 2, 3, 4, 5)) == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [States, lives.Written], ids=lambda build: build.__name__)
def test_servers_that_copy_and_servers_that_write_in_place_pass(build: Any, way: str) -> None:
    passes(judged(build, tiny_of(way)))


@pytest.mark.parametrize("fault", lives.FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_fails_in_a_long_script(fault: Any) -> None:
    capability = fault.capability
    tiny = (find(tiny_of(way))[1] for way in WAYS)
    cases = chain(tiny, filter(SPECIFICATION.common, SPECIFICATION.tabled()))
    assert any(judge(SPECIFICATION, capability, case).verdict is Verdict.FAIL for case in cases)


SPLIT = [case for case in SPECIFICATION.cases("standard", ASKED) if case.options.get("ranks", "one") != "one"]


@pytest.mark.parametrize("case", SPLIT, ids=SPECIFICATION.identify)
def test_a_server_of_several_ranks_that_cuts_each_part_passes(case: Any) -> None:
    passes(judge(SPECIFICATION, Capability(Ranks, FLOAT64, ASKED), case))


@pytest.mark.parametrize("fault", ranks.FAULTS, ids=lambda fault: fault.name)
def test_a_wrong_cut_fails_between_ranks_only(fault: Any) -> None:
    capability = replace(fault.capability, limits=ASKED)
    assert any(judge(SPECIFICATION, capability, case).kind == "bound" for case in SPLIT)
    alone = SPECIFICATION.case({"j": 30}, {"script": "move"}, "gentle", 0)
    passes(judge(SPECIFICATION, capability, alone))


def test_ranks_are_tested_only_where_limits_ask_for_them() -> None:
    cases = SPECIFICATION.cases("standard", Capability(States, FLOAT64).limits)
    assert {case.options.get("ranks", "one") for case in cases} == {"one"}


@pytest.mark.parametrize("way", ["move", "mixed"])
def test_states_go_both_ways_between_servers_of_different_ranks(way: str) -> None:
    case = SPECIFICATION.case({"j": 40}, {"script": way, "ranks": "one_and_few"}, "gentle", 0)
    *_, steps, numbers = SPECIFICATION.draw(case, FLOAT64)
    origins = {step.to: step.server for step in steps if step.do == "export"}
    assert numbers == (1, 2)
    assert {(origins[step.to], step.server) for step in steps if step.do == "take"} == {(0, 1), (1, 0)}


def test_each_rank_has_a_piece_of_each_part_and_several_have_the_same_group() -> None:
    parts = (4, 2), (2, 3), (2, 3)  # x of 4 heads, B and C of 2 groups: channels 0..7, 8..13, 14..19
    assert channels(parts, 2).tolist() == [[0, 1, 2, 3, 8, 9, 10, 14, 15, 16], [4, 5, 6, 7, 11, 12, 13, 17, 18, 19]]
    assert channels(parts, 4)[1].tolist() == [2, 3, 8, 9, 10, 14, 15, 16]
    assert channels(parts, 4)[2].tolist() == [4, 5, 11, 12, 13, 17, 18, 19]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_states_that_are_cut_and_joined_are_the_same(number: int) -> None:
    parts, rng = ((4, 2), (2, 3), (2, 3)), np.random.default_rng(0)
    whole = rng.standard_normal((1, 20, 3)), rng.standard_normal((1, 4, 2, 3))
    assert same(whole, joined(cut(whole, parts, number), parts)) == [1.0]


def test_numbers_of_ranks_are_those_that_heads_and_groups_allow() -> None:
    assert of_servers("one_and_few", ((6, 2), (3, 5), (3, 5)), 6) == (1, 3)
    assert of_servers("few_and_heads", ((8, 2), (2, 5), (2, 5)), 8) == (2, 8)
    assert of_servers("one", ((8, 2), (2, 5), (2, 5)), 8) == ()


def test_bits_are_compared_with_their_signs() -> None:
    zero = (np.zeros(3), np.zeros(2))
    assert same(zero, (np.zeros(3), np.zeros(2))) == [1.0]
    assert same(zero, (np.zeros(3), -np.zeros(2))) == [0.0]
    assert same(zero, (np.zeros(3, dtype=np.float32), np.zeros(2))) == [0.0]


class Aligned(States):
    """Saves at the last boundary that a call passes, as vLLM's mode `align` does."""

    def feed(self, slot: int, tokens: Any, inputs: Any) -> Any:
        before = dict(self.saved)
        y = super().feed(slot, tokens, inputs)
        passed = [key for key in self.saved if key not in before]
        self.saved = before | {key: self.saved[key] for key in passed[-1:]}
        return y


class LeastRecentlyUsed(States):
    """Holds three states; the one that was not used for the longest time is dropped, as in SGLang's radix cache."""

    def save(self, seen: Any, state: Any) -> None:
        self.saved.pop(seen, None)
        super().save(seen, state)
        while len(self.saved) > 3:
            self.saved.pop(next(iter(self.saved)))

    def begin(self, slot: int, tokens: Any) -> int:
        found = super().begin(slot, tokens)
        if found:
            seen = tuple(map(int, tokens[:found]))
            self.saved[seen] = self.saved.pop(seen)
        return found


class Snapshots(States):
    """Saves at every second boundary, and leaves a whole block of a prompt to feed, as TensorRT-LLM's snapshots do."""

    def save(self, seen: Any, state: Any) -> None:
        if len(seen) % (2 * self.block) == 0:
            super().save(seen, state)

    def begin(self, slot: int, tokens: Any) -> int:
        return super().begin(slot, tokens[: max(len(tokens) - self.block, 0) + 1])


class BlocksOfEachCall(BlocksOfACall):
    """Saves at every few tokens of a call, not of the sequence, and finds what happens to end at a boundary of it."""

    def begin(self, slot: int, tokens: Any) -> int:
        prompt = tuple(map(int, tokens))
        found = max((n for n in range(0, len(prompt), self.block or len(prompt)) if prompt[:n] in self.saved), default=0)
        self.running[slot] = prompt[:found], self.saved[prompt[:found]] if found else mixer.new_state(self.layer, 1)
        return found


class FindsNothing(States):
    """Saves states and never uses one."""

    def begin(self, slot: int, tokens: Any) -> int:
        self.running[slot] = (), mixer.new_state(self.layer, 1)
        return 0


class OneTokenLess(States):
    """Says that it found one token less than its state has read."""

    def begin(self, slot: int, tokens: Any) -> int:
        return max(super().begin(slot, tokens) - 1, 0)


class LosesTheWindowOfAShortHit(Aligned):
    """Finds what `Aligned` finds, without the window of the convolution."""

    def begin(self, slot: int, tokens: Any) -> int:
        found = super().begin(slot, tokens)
        seen, state = self.running[slot]
        self.running[slot] = seen, replace(state, M=0.0 * state.M)
        return found


SHORT = [tiny(way) for way in WAYS]
SERVERS = [Aligned, LeastRecentlyUsed, Snapshots, BlocksOfEachCall, FindsNothing]


@pytest.mark.parametrize("build", SERVERS, ids=lambda build: build.__name__)
def test_a_server_that_finds_fewer_tokens_is_fed_the_others_and_passes(build: Any) -> None:
    capability = Capability(build, FLOAT64)
    wrong = {SPECIFICATION.identify(case): told for case in SHORT if (told := judge(SPECIFICATION, capability, case).message)}
    assert wrong == {}


@pytest.mark.parametrize("build", [Aligned, LeastRecentlyUsed, Snapshots])
def test_such_servers_find_some_prefixes_and_miss_others(build: Any) -> None:
    case = SPECIFICATION.case({"j": 40}, {"script": "prefix"}, "gentle", 0)
    arguments = SPECIFICATION.draw(case, FLOAT64)
    came = SPECIFICATION.run(Capability(build, FLOAT64), arguments)
    most = np.array([step.found for step in arguments[3] if step.do == "begin"])
    assert 0 < came.used.sum() < most.sum()
    assert np.all(came.used <= most)


@pytest.mark.parametrize("build", [OneTokenLess, LosesTheWindowOfAShortHit], ids=lambda build: build.__name__)
def test_a_short_hit_with_a_wrong_state_fails(build: Any) -> None:
    capability = Capability(build, FLOAT64)
    assert {judge(SPECIFICATION, capability, case).kind for case in SHORT} >= {"bound"}


@pytest.mark.parametrize("found", [-1.0, 0.5, float("nan"), 8.0, 1e300])
def test_a_number_of_found_tokens_that_cannot_be_is_wrong(found: float) -> None:
    first = next(step for step in steps_of("prefix") if step.do == "begin" and step.found == 4)
    assert hit(first, found) == 4 != found
    assert [hit(first, n) for n in (0.0, 3.0, 4.0)] == [0, 3, 4]
