"""The life of a state: right servers pass, planted faults fail, and scripts have what they claim."""

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from conformance.adapters.reference_parts.states import States
from conformance.faults.rollback import lives
from conformance.judge.verdict import judge
from conformance.suite import SPECIFICATIONS, find
from conformance.suite.life.script import WAYS, Model, Step
from conformance.suite.life.states import same
from ssmspec_ref.contract import FLOAT64, Capability, Verdict

SPECIFICATION = next(s for s in SPECIFICATIONS if s.operation == "life.states" and s.fixed["kind"] == "mamba2")
TINY = "life.states/b3,t4,j40,g1,h1,p2,n2,w2/script={},kind=mamba2/gentle/s0"


def steps_of(way: str, block: str = "four") -> tuple[Step, ...]:
    case = SPECIFICATION.case({"j": 40, "h": 1, "g": 1}, {"script": way, "block": block}, "gentle", 0)
    steps: tuple[Step, ...] = SPECIFICATION.draw(case, FLOAT64)[3]
    return steps


@pytest.mark.parametrize("way", WAYS)
def test_a_script_has_all_that_its_way_names(way: str) -> None:
    assert set(Counter(step.do for step in steps_of(way))) == set(WAYS[way])


def test_prompts_find_prefixes_and_miss_them_and_some_end_at_a_boundary() -> None:
    begun = [step for step in steps_of("prefix") if step.do == "begin"]
    assert any(step.found for step in begun)
    assert any(not step.found for step in begun)
    assert any(len(step.tokens) % 4 == 0 for step in begun if step.tokens is not None)


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
    specification, case = find(TINY.format(way) if way != "prefix" else TINY.replace("script={},", ""))
    assert judge(specification, Capability(build, FLOAT64), case).verdict is Verdict.PASS


@pytest.mark.parametrize("fault", lives.FAULTS, ids=lambda fault: fault[0].__name__)
def test_a_planted_fault_fails_in_a_long_script(fault: Any) -> None:
    capability = Capability(fault[0], FLOAT64)
    tiny = (find(TINY.format(way) if way != "prefix" else TINY.replace("script={},", ""))[1] for way in WAYS)
    cases = chain(tiny, filter(SPECIFICATION.common, SPECIFICATION.tabled()))
    assert any(judge(SPECIFICATION, capability, case).verdict is Verdict.FAIL for case in cases)


def test_bits_are_compared_with_their_signs() -> None:
    zero = (np.zeros(3), np.zeros(2))
    assert same(zero, (np.zeros(3), np.zeros(2))) == [1.0]
    assert same(zero, (np.zeros(3), -np.zeros(2))) == [0.0]
    assert same(zero, (np.zeros(3, dtype=np.float32), np.zeros(2))) == [0.0]
