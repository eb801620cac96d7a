"""A stateful machine of a server's calls: prompts, forks, evictions and transfers in any order, shrunk to the fewest.

The rules write a script over the model of `conformance.suite.life.script`; when it ends, the implementation runs it and is
compared as in the suite: outputs and states within the bounds of its contract, prefixes found by number, forks and transfers
by bits.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from conformance.judge.draw import Draw
from conformance.judge.verdict import compare
from conformance.suite import find
from conformance.suite.life.script import VOCABULARY, Model, Place, Step, texts_of, with_inputs
from conformance.suite.life.states import expect, run, words
from ssmspec_ref.contract import Capability, Verdict

SLOTS, SERVERS, BLOCK = 3, 2, 3
CASE = "life.states/b3,t4,j9,g1,h2,p2,n2,w3/kind=mamba2/gentle/s0"
"""The weights and inputs; rules take the place of its script."""
TEXTS = texts_of(np.random.default_rng(0), 4 * BLOCK)


class WrongLife(AssertionError):
    """A script that an implementation does not survive, with what differs."""


def machine(capability: Capability, ranks: tuple[int, ...] = ()) -> type[RuleBasedStateMachine]:
    """The machine of one implementation of `life.states`, whose two servers have these numbers of ranks."""
    _, case = find(CASE)

    class Life(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.steps = Model(BLOCK), list[Step]()

        def running(self) -> list[Place]:
            return sorted(self.model.sequences)

        def free(self, server: int) -> list[int]:
            return self.model.free(server, SLOTS)

        @precondition(lambda self: len(self.model.sequences) < SLOTS * SERVERS)
        @rule(data=st.data(), text=st.sampled_from(range(3)), more=st.lists(st.integers(0, VOCABULARY - 1), max_size=2))
        def begin(self, data: Any, text: int, more: list[int]) -> None:
            server = data.draw(st.sampled_from([s for s in range(SERVERS) if self.free(s)]))
            shared = TEXTS[text][: data.draw(st.integers(1, len(TEXTS[text])))].tolist()
            self.steps += self.model.begin(server, data.draw(st.sampled_from(self.free(server))), (*shared, *more))

        @precondition(lambda self: self.model.sequences)
        @rule(data=st.data(), tokens=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
        def feed(self, data: Any, tokens: list[int]) -> None:
            self.steps += self.model.feed(data.draw(st.sampled_from(self.running())), tuple(tokens))

        @precondition(lambda self: any(self.free(server) for server, _ in self.model.sequences))
        @rule(data=st.data())
        def fork(self, data: Any) -> None:
            place = data.draw(st.sampled_from([p for p in self.running() if self.free(p[0])]))
            self.steps += self.model.fork(place, data.draw(st.sampled_from(self.free(place[0]))))

        @precondition(lambda self: self.model.sequences)
        @rule(data=st.data())
        def end(self, data: Any) -> None:
            self.steps += self.model.end(data.draw(st.sampled_from(self.running())))

        @rule(server=st.integers(0, SERVERS - 1))
        def evict(self, server: int) -> None:
            self.steps += self.model.evict(server)

        @precondition(lambda self: self.model.sequences)
        @rule(data=st.data())
        def export(self, data: Any) -> None:
            self.steps += self.model.export(data.draw(st.sampled_from(self.running())))

        @precondition(lambda self: self.model.exports and len(self.model.sequences) < SLOTS * SERVERS)
        @rule(data=st.data())
        def take(self, data: Any) -> None:
            server = data.draw(st.sampled_from([s for s in range(SERVERS) if self.free(s)]))
            number = data.draw(st.sampled_from(sorted(self.model.exports)))
            self.steps += self.model.take((server, data.draw(st.sampled_from(self.free(server)))), number)

        def teardown(self) -> None:
            if not self.steps:
                return
            specification, _ = find(CASE)
            layer, *_ = specification.draw(case, capability.contract)
            steps = with_inputs(self.steps, words(Draw(case, capability.contract), layer))
            given = layer, SLOTS, BLOCK, steps, ranks
            found = compare(expect(given, capability.contract, None), run(capability, given).outputs, capability.contract)
            if found.verdict is Verdict.FAIL:
                told = ", ".join(f"{step.do} {step.server}:{step.slot}" for step in self.steps)
                raise WrongLife(f"{found.message} | {told}")

    return Life
