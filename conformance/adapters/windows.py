"""The backtracking paths of the reference over a bare recurrence: their convolution hands every input on as it is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ssmspec_ref.backtrack import activation_replay, snapshots
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.contract import Capability, Limits, Subject
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.delta import DeltaWindow
from ssmspec_ref.mixer import DeltaGates, DeltaMixer, Mixer, MixerInputs, MixerState, SSDGates, SSDMixer
from ssmspec_ref.shapes import Array, Lengths, Parents, Path
from ssmspec_ref.ssd import SSDWindow

from .backtracking import AT_ONCE, SEQUENTIAL, Backtracking

RING = ReplayBuffer(capacity=35, window=17)
"""Windows of up to 17 tokens."""


class Bare:
    """A path over a recurrence: the mixer is made when the first window says what its sizes are."""

    def __init__(self, path: Any, S: Array, params: Any) -> None:
        self.path, self.S, self.params = path, S, params
        self.inner: Backtracking | None = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        inputs = packed(window)
        if self.inner is None:
            channels = inputs.pre.shape[2]
            M = np.zeros((len(self.S), channels, 2))
            self.inner = Backtracking(self.path, mixer(window, self.params, channels), MixerState(M, self.S))
        return self.inner.verify(inputs, parents)

    def commit(self, advanced: Lengths, path: Path) -> None:
        assert self.inner is not None
        self.inner.commit(advanced, path)

    def state(self) -> Array:
        return self.S if self.inner is None else self.inner.state()[1]


class Stepping(Bare):
    """Single tokens through a ring, by one of its routes."""

    def __init__(self, route: str, S: Array, params: Any) -> None:
        super().__init__(RING, S, params)
        self.route = route
        self.kept: Any = None

    def verify(self, window: Any, parents: Parents | None = None) -> Array:
        inputs = packed(window)
        if self.kept is None:
            channels = inputs.pre.shape[2]
            self.mixer = mixer(window, self.params, channels)
            self.kept = RING.start(MixerState(np.zeros((len(self.S), channels, 2)), self.S))
        y, self.kept = getattr(RING, self.route)(self.kept, inputs, self.mixer)
        return y

    def commit(self, advanced: Lengths, path: Path) -> None:
        """Every token is accepted when it is decoded."""

    def state(self) -> Array:
        return RING.restore(RING.flush(self.kept, self.mixer), self.mixer).S


def packed(window: SSDWindow | DeltaWindow) -> MixerInputs:
    """What goes through the convolution, side by side, and the gates."""
    if isinstance(window, SSDWindow):
        parts, gates = (window.x, window.B, window.C), SSDGates(window.dt, window.z)
        return MixerInputs(_beside(parts), gates)
    return MixerInputs(_beside((window.q, window.k, window.v)), DeltaGates(window.g, window.beta))


def _beside(parts: tuple[Array, ...]) -> Array:
    return np.concatenate([a.reshape(*a.shape[:2], -1) for a in parts], axis=2)


def mixer(window: Any, params: Any, channels: int) -> Mixer:
    """A mixer whose convolution has the filter (0, 1)."""
    conv = ConvParams(np.stack([np.zeros(channels), np.ones(channels)], axis=1), None, False)
    if isinstance(window, SSDWindow):
        return SSDMixer(conv, params, window.x.shape[3], window.B.shape[3], window.B.shape[2])
    return DeltaMixer(conv, params, window.k.shape[2], window.v.shape[2], window.k.shape[3], window.v.shape[3])


def subjects() -> tuple[Subject, ...]:
    """Snapshots, activation replay and the ring, for SSD and for the delta rule."""
    short = Limits(sizes={"t": (1, RING.window)}, reason="its rings are made for windows of 17 tokens")
    made: list[tuple[str, str, Callable[..., Any], Any, Limits]] = [
        ("snapshots", "verify_snapshots", partial(Bare, snapshots), SEQUENTIAL, Limits()),
        ("activation replay", "verify_replay", partial(Bare, activation_replay), AT_ONCE, Limits()),
        ("replay buffer", "buffered_verify", partial(Bare, RING), AT_ONCE, short),
        ("buffered step, output only", "buffered_step", partial(Stepping, "step_output_only"), AT_ONCE, Limits()),
        ("buffered step, state", "buffered_step", partial(Stepping, "step_state_and_output"), AT_ONCE, Limits()),
    ]
    return tuple(
        Subject(
            f"{name} of {rule}",
            {f"{rule}.{operation}": Capability(run, contract, limits)},
            absent={"": "another part of the reference"},
        )
        for rule in ("ssd", "delta")
        for name, operation, run, contract, limits in made
    )
