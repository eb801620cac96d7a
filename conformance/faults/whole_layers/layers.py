"""Stateful layers over the oracle: a right one, and some that handle their cache wrongly."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.layers.layer import RecurrentLayer
from ssmspec_ref.layers.mixer import MixerState
from ssmspec_ref.shapes import Array

LAYER = ("layer.prefill", "layer.step", "layer.continue", "layer.left_pad", "layer.right_pad", "layer.rollback")


class Right:
    """The oracle's layer with a cache; rollback by the states before each call, and the tokens of a call that is undone in
    part once more."""

    def __init__(self, record: RecurrentLayer, rows: int) -> None:
        self.record, self.held = record, mixer.new_state(record.mixer, rows)
        self.past: list[tuple[Array, Any, MixerState]] = []

    def forward(self, u: Array, live: Any = None) -> Array:
        self.past.append((u, live, self.held))
        out, self.held = layer.scan(self.held, u, self.record, live)
        return out

    def state(self) -> tuple[Array, Array]:
        return self.held.M.copy(), self.held.S.copy()

    def rollback(self, tokens: int) -> None:
        while tokens > 0:
            u, live, self.held = self.past.pop()
            kept = max(u.shape[1] - tokens, 0)
            tokens -= u.shape[1]
            if kept:
                Right.forward(self, u[:, :kept], None if live is None else live[:, :kept])


class ForgetsState(Right):
    """Several tokens at once start from a zero state. huggingface/transformers#45513."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if u.shape[1] > 1:
            self.held = replace(self.held, S=np.zeros_like(self.held.S))
        return super().forward(u, live)


class PadsDecay(Right):
    """Padding is set to zero before the layer, but still decays the state. huggingface/transformers#48256."""

    def forward(self, u: Array, live: Any = None) -> Array:
        return super().forward(u if live is None else np.where(live[:, :, None], u, 0.0))


class KeepsRecurrentState(Right):
    """Rollback restores the window of the convolution only. huggingface/transformers#49036."""

    def rollback(self, tokens: int) -> None:
        kept = self.held.S
        super().rollback(tokens)
        self.held = replace(self.held, S=kept)


class ClampsPrefill(Right):
    """dt has a lower limit in prefill but not in decoding. huggingface/transformers#48989."""

    def forward(self, u: Array, live: Any = None) -> Array:
        record, given = self.record, self.record
        if isinstance(record, layer.Mamba2Layer) and u.shape[1] > 1:
            params = replace(record.mixer.params, dt_limit=(0.05, float("inf")))
            self.record = replace(record, mixer=replace(record.mixer, params=params))
        out = super().forward(u, live)
        self.record = given
        return out


class LiesAboutWeights(Right):
    """Uses another projection than the one given, and reports it."""

    def __init__(self, record: Any, rows: int) -> None:
        changed = replace(record.out_proj, weight=record.out_proj.weight * 1.01)
        super().__init__(replace(record, out_proj=changed), rows)
        self.used = self.record


class UndoesWholeCalls(Right):
    """Rollback returns to the beginning of a call, though only some of its tokens were rejected."""

    def rollback(self, tokens: int) -> None:
        while tokens > 0:
            u, _, self.held = self.past.pop()
            tokens -= u.shape[1]


class UndoesOneCall(Right):
    """Only the last call can be undone."""

    def rollback(self, tokens: int) -> None:
        super().rollback(min(tokens, self.past[-1][0].shape[1]))


class MasksLastPads(Right):
    """Only the last w - 1 tokens of left padding are masked."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if live is not None:
            first = np.argmax(live, axis=1)[:, None]
            live = live | (np.arange(u.shape[1]) < first - (self.record.mixer.conv.width - 1))
        return super().forward(u, live)


class MasksTheFirstCall(Right):
    """The mask of padding is read in the first call only; a padded prompt comes in two."""

    def forward(self, u: Array, live: Any = None) -> Array:
        return super().forward(u, None if self.past else live)


class AssumesEps(Right):
    """The norm adds 1e-5; the layer's value is ignored."""

    def __init__(self, record: Any, rows: int) -> None:
        norm = getattr(record, "norm", None)
        super().__init__(record if norm is None else replace(record, norm=replace(norm, eps=1e-5)), rows)


class LosesStateAt64(Right):
    """The second chunk of a prompt longer than 64 tokens starts from a zero state."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if u.shape[1] <= 64:
            return super().forward(u, live)
        head = super().forward(u[:, :64], None if live is None else live[:, :64])
        self.held = replace(self.held, S=np.zeros_like(self.held.S))
        return np.concatenate([head, super().forward(u[:, 64:], None if live is None else live[:, 64:])], axis=1)


WRONG: dict[Callable[..., Any], tuple[str, ...]] = {
    ForgetsState: ("layer.continue",),
    PadsDecay: ("layer.left_pad", "layer.right_pad"),
    KeepsRecurrentState: ("layer.rollback",),
    ClampsPrefill: ("layer.prefill", "layer.step"),
    LiesAboutWeights: ("layer.prefill",),
}
"""The operations that must fail, each."""


REACH: dict[Callable[..., Any], str] = {
    UndoesWholeCalls: "layer.rollback",
    UndoesOneCall: "layer.rollback",
    MasksLastPads: "layer.left_pad",
    MasksTheFirstCall: "layer.right_pad",
    AssumesEps: "layer.prefill",
    LosesStateAt64: "layer.prefill",
}
"""Faults that only part of a call, several calls, much padding, another eps or a long prompt show."""


def subject(build: Any) -> Subject:
    return Subject(build.__name__, {name: Capability(build, FLOAT64) for name in LAYER}, absent={"": "a layer"})


def adapter() -> Adapter:
    return Adapter("faulty layers", "1", tuple(map(subject, (*WRONG, *REACH))))
