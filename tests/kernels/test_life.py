"""The engine over its kernels as a server of states: begun, fed, forked, exported and taken by another server's slots."""

from functools import partial
from typing import Any, NamedTuple

import pytest

from conformance.judge.verdict import judge
from conformance.suite import find
from ssmspec_fast.adapters.life import METHODS, Server
from ssmspec_fast.engine.state import SequenceState
from ssmspec_fast.operations.triton_ops import TritonOperations
from ssmspec_fast.operations.triton_recurrences import Delta
from ssmspec_ref.contract import Capability, NumericContract, Verdict

from . import device

PLACE = device.DEVICE if device.COMPILED else "cpu"
CASE = "life.states/b2,t2,j9,{}/script={},block=none,{}/gentle/s0"
SIZES = {"mamba2": "g1,h2,p3,n4,w4", "mamba1": "d4,n4,r2,w3", "shortconv": "d3,w3", "delta": "g1,h2,k4,v3,w3"}
SIZES |= {"kda": "g2,h2,k4,v4,w3"}


class Formed(NamedTuple):
    """The parameters of the delta rule with gates that are formed already: the kernels then form none."""

    l2_norm: bool
    scale: float | None
    eps: float


class FormedGates(Delta):
    """The launchers of the delta rule with the suite's gates, by head or by key channel, as they take them where A is not
    given."""

    def walk(self, S: Any, inputs: Any, params: Any, *rest: Any) -> Any:
        return super().walk(S, inputs, formed(params), *rest)

    def snapshots(self, S: Any, inputs: Any, params: Any, *rest: Any, **named: Any) -> Any:
        return super().snapshots(S, inputs, formed(params), *rest, **named)

    def buffered(self, S: Any, ring: Any, inputs: Any, params: Any, **named: Any) -> Any:
        return super().buffered(S, ring, inputs, formed(params), **named)


def formed(params: Any) -> Formed:
    return Formed(params.l2_norm, params.scale, params.eps)


def operations() -> TritonOperations:
    made = TritonOperations()
    made.recurrences |= {"delta": FormedGates(bitwise=False)}
    return made


def judged(build: Any, method: str, script: str, kind: str = "mamba2") -> Verdict:
    activation = "conv_bias=off," if kind in ("delta", "kda") else ""
    specification, case = find(CASE.format(SIZES[kind], script, activation + f"kind={kind}"))
    run = partial(build, METHODS[method], operations(), PLACE)
    return judge(specification, Capability(run, NumericContract()), case).verdict


@pytest.mark.parametrize(("method", "script"), [("plain", "mixed"), ("replay buffer", "move"), ("replay buffer", "fork")])
def test_states_live_as_they_should_over_the_kernels(method: str, script: str) -> None:
    assert judged(Server, method, script) is Verdict.PASS


@pytest.mark.parametrize("kind", [kind for kind in SIZES if kind != "mamba2"])
@pytest.mark.parametrize("method", METHODS)
def test_states_of_other_layers_live_as_they_should_over_the_kernels(method: str, kind: str) -> None:
    assert judged(Server, method, "mixed", kind) is Verdict.PASS


class TakesHalf(Server):
    """A state that is taken lacks its last head."""

    def write(self, slot: int, held: SequenceState) -> None:
        ((M, S),) = held.layers
        S = S.clone()
        S[-1] = 0
        super().write(slot, SequenceState(((M, S),), held.length))


@pytest.mark.parametrize("kind", ["mamba2", "mamba1", "delta", "kda"])
def test_a_state_without_its_last_head_fails(kind: str) -> None:
    assert judged(TakesHalf, "plain", "fork", kind) is Verdict.FAIL
