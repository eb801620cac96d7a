"""The backtracking paths of the reference over a bare recurrence, with a convolution that passes inputs through unchanged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import Capability, Limits, Subject
from ssmspec_ref.layers.mixer import Mixer, MixerInputs, MixerState
from ssmspec_ref.layers.recurrences import RECURRENCES as KINDS
from ssmspec_ref.shapes import Array, Lengths, Parents, Path

from ...suite.recurrences import RECURRENCES
from .backtracking import AT_ONCE, SEQUENTIAL, Backtracking

RING = ReplayBuffer(capacity=35, window=17)
"""Windows of up to 17 tokens."""


class Bare:
    """A path over a recurrence; the mixer is created at the first window, from its sizes."""

    def __init__(self, path: Any, S: Array, params: Any) -> None:
        self.path, self.S, self.params = path, S, params
        self.inner: Backtracking | None = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        mixer, inputs = alone(window, self.params)
        if self.inner is None:
            M = np.zeros((len(self.S), inputs.pre.shape[2], 2))
            self.inner = Backtracking(self.path, mixer, MixerState(M, self.S))
        return self.inner.verify(inputs, parents)

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        self.inner.commit(advanced, path)

    def state(self) -> Array:
        return self.S if self.inner is None else self.inner.state()[1]


class Stepping(Bare):
    """Single tokens through a ring, by one of its two routes."""

    def __init__(self, route: str, S: Array, params: Any) -> None:
        super().__init__(RING, S, params)
        self.route = route
        self.kept: Any = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        self.mixer, inputs = alone(window, self.params)
        if self.kept is None:
            self.kept = RING.start(MixerState(np.zeros((len(self.S), inputs.pre.shape[2], 2)), self.S))
        y, self.kept = getattr(RING, self.route)(self.kept, inputs, self.mixer)
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        """A token is accepted as soon as it is decoded."""

    def state(self) -> Array:
        return RING.restore(RING.flush(self.kept, self.mixer), self.mixer).S


def alone(window: Any, params: Any) -> tuple[Mixer, MixerInputs]:
    """A mixer whose convolution is the identity, and its inputs."""
    made = RECURRENCES[KINDS.owner("window", window).name].alone
    assert made is not None
    return made(window, params)


def subjects() -> tuple[Subject, ...]:
    """Snapshots, activation replay and the ring, for each recurrence that is tested over several windows."""
    again = {"verify": ("once", "twice")}
    short = Limits(again, {"t": (1, RING.window)}, reason="its rings are made for windows of 17 tokens")
    made: list[tuple[str, str, Callable[..., Any], Any, Limits]] = [
        ("snapshots", "verify_snapshots", partial(Bare, snapshots), SEQUENTIAL, Limits(again)),
        ("activation replay", "verify_replay", partial(Bare, activation_replay), AT_ONCE, Limits(again)),
        ("replay buffer", "buffered_verify", partial(Bare, RING), AT_ONCE, short),
        ("buffered step, output only", "buffered_step", partial(Stepping, "step_output_only"), AT_ONCE, Limits()),
        ("buffered step, state", "buffered_step", partial(Stepping, "step_state_and_output"), AT_ONCE, Limits()),
    ]
    return tuple(
        Subject(
            f"{name} of {rule.name}",
            {f"{rule.name}.{operation}": Capability(run, contract, limits)},
            absent={"": "another part of the reference"},
        )
        for rule in RECURRENCES.values()
        if rule.alone
        for name, operation, run, contract, limits in made
    )
