"""The engine as a server of states (`adapters.life`): right as it is, and planted faults of its slots fail."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from conformance.judge.verdict import judge
from conformance.suite import find
from ssmspec_fast.adapters.engine import operations_of
from ssmspec_fast.adapters.life import METHODS, Server
from ssmspec_fast.engine.state import SequenceState
from ssmspec_ref.contract import Capability, NumericContract, Verdict

CASE = "life.states/b3,t4,j{},{}/script={},block=none,kind={}/gentle/s0"
SIZES = {"mamba2": "g1,h2,p3,n4,w4", "delta": "g2,h2,k4,v3,w3", "shortconv": "d3,w3"}


def judged(build: Callable[..., Any], method: str, script: str, kind: str = "mamba2", steps: int = 16) -> Verdict:
    specification, case = find(CASE.format(steps, SIZES[kind], script, kind))
    run = partial(build, METHODS[method], operations_of(bitwise=True), "cpu")
    return judge(specification, Capability(run, NumericContract()), case).verdict


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_states_live_as_they_should(method: str, kind: str) -> None:
    assert judged(Server, method, "mixed", kind) is Verdict.PASS


class BeginsInADirtySlot(Server):
    """A prompt starts from what its slot holds."""

    def begin(self, slot: int, tokens: Any) -> int:
        if self.decoder is None:
            return super().begin(slot, tokens)
        self.running.add(slot)
        self.sequences.add(slot, [0], 100, slot)
        return 0

    def poison(self) -> None:
        """Finite states stay in free slots."""


class ForkLosesTheWindow(Server):
    """A fork has the recurrent state, and a window of the convolution of zeros."""

    def fork(self, slot: int, to: int) -> None:
        ((M, S),) = self.export(slot).layers
        self.take(to, SequenceState(((torch.zeros_like(M), S),), 0))


class ExportsWithoutTheRing(Server):
    """What is exported is the checkpoint, without the tokens of the ring."""

    def export(self, slot: int) -> SequenceState:
        if self.decoder is None:
            return super().export(slot)
        state = self.decoder.pools.recurrent(0)
        place = int(self.decoder.method.places(self.decoder.pools, torch.tensor([slot])))
        return SequenceState(((state.M[slot].clone(), state.S[place].clone()),), 0)


class TakesIntoTheNextSlot(Server):
    """A state that is taken is written to the slot after its own."""

    def write(self, slot: int, held: SequenceState) -> None:
        super().write(slot, held)
        super().write((slot + 1) % 3, held)


@pytest.mark.parametrize(
    ("build", "method", "script"),
    [
        (BeginsInADirtySlot, "plain", "prefix"),
        (ForkLosesTheWindow, "plain", "fork"),
        (ForkLosesTheWindow, "replay buffer", "fork"),
        (ExportsWithoutTheRing, "replay buffer", "move"),
        (TakesIntoTheNextSlot, "plain", "mixed"),
    ],
)
def test_a_planted_fault_of_its_slots_fails(build: Callable[..., Any], method: str, script: str) -> None:
    assert judged(build, method, script, steps=24) is Verdict.FAIL
