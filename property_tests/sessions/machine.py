"""The state machine over an adapter's decoders: sequences join, decode windows of every kind, leave, move and return.

The model is plain decoding of the committed tokens (`session`); Hypothesis draws the model, the decodings, the sizes and
every action (`actions`), and shrinks a failure to the fewest actions.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ssmspec_ref.contract import Adapter, Decoding

from ..drawing.actions import ACTIONS, offered
from ..drawing.specs import Sizes, specs
from .ledger import longest
from .session import Session
from .totals import Totals


class DecoderMachine(RuleBasedStateMachine):
    """Subclass it with an adapter: `machine`."""

    adapter: ClassVar[Adapter]
    named: ClassVar[str]
    device: ClassVar[str] = "cpu"
    sizes: ClassVar[Sizes] = Sizes()
    groups: ClassVar[Sequence[tuple[Decoding, ...]]] = ()
    """Decodings of one example come from one group; the groups share the examples evenly."""
    always: ClassVar[Decoding | None] = None
    """A decoding that is part of every example."""
    totals: ClassVar[Totals]
    failed: ClassVar[Callable[[Session], None]] = staticmethod(lambda session: None)

    session: Session | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        draw = data.draw
        group = draw(st.sampled_from(self.groups))
        speculative = [d for d in group if longest(d, 2) > 1] or list(group)
        chosen = [self.always or draw(st.sampled_from(speculative))]
        if draw(st.booleans()):
            chosen.append(draw(st.sampled_from(list(group))))
        spec = draw(specs(self.sizes, *(d.limits for d in chosen)))
        self.session = Session(
            self.adapter,
            [d.name for d in chosen],
            spec.words(),
            slots=draw(st.integers(2, self.sizes.slots)),
            window=draw(st.integers(3, self.sizes.window)),
            cache=self.sizes.cache,
        )
        self.session.name = self.named
        type(self).totals.begin(self.session)
        self.act("prefill", data)

    def act(self, name: str, data: st.DataObject) -> None:
        assert self.session is not None
        drawn = ACTIONS[name].draw(data.draw, self.session)
        if drawn is None:
            return
        try:
            getattr(self.session, ACTIONS[name].call)(**drawn)
        except (Exception, SystemExit):
            type(self).failed(self.session)
            raise

    def between(self) -> bool:
        return self.session is not None and self.session.pending is not None

    @precondition(lambda self: self.session is not None and self.session.pending is None)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Any action between two windows; after a window usually its verdict."""
        assert self.session is not None
        self.act(data.draw(st.sampled_from(offered(self.session))), data)
        if self.between() and data.draw(st.integers(0, 3)) < 3:
            self.act("commit", data)

    @precondition(between)
    @rule(data=st.data())
    def verdict(self, data: st.DataObject) -> None:
        self.act("commit", data)

    @precondition(between)
    @rule(data=st.data())
    def copy_between(self, data: st.DataObject) -> None:
        """Forks another sequence between a window and its verdict."""
        self.act("fork", data)

    def teardown(self) -> None:
        if self.session is None:
            return
        if self.session.utilisation < float("inf"):
            hypothesis.target(self.session.utilisation, label="utilisation of the bound")
        type(self).totals.end(self.session)


def machine(
    adapter: Adapter,
    named: str,
    sizes: Sizes | None = None,
    groups: Sequence[tuple[Decoding, ...]] = (),
    always: Decoding | None = None,
) -> type[DecoderMachine]:
    """The machine of an adapter; `groups` share the examples evenly (none: all decodings form one group)."""
    given: dict[str, Any] = {
        "adapter": adapter,
        "named": named,
        "sizes": sizes or Sizes(),
        "groups": tuple(groups) or (adapter.decodings,),
        "always": always,
        "totals": Totals(),
    }
    return type("Machine", (DecoderMachine,), given)
