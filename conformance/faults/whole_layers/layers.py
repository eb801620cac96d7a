"""Stateful layers over the oracle that handle their cache wrongly."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers import layer
from ssmspec_ref.shapes import Array

from ..fault import Row, planted
from ..windows import Right, forward, normed, records

LAYER = ("layer.prefill", "layer.step", "layer.continue", "layer.left_pad", "layer.right_pad", "layer.rollback")


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


class LosesStateAt64(Right):
    """The second chunk of a prompt longer than 64 tokens starts from a zero state."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if u.shape[1] <= 64:
            return super().forward(u, live)
        head = super().forward(u[:, :64], None if live is None else live[:, :64])
        self.held = replace(self.held, S=np.zeros_like(self.held.S))
        return np.concatenate([head, super().forward(u[:, 64:], None if live is None else live[:, 64:])], axis=1)


PadsDecay = forward(
    "PadsDecay",
    "Padding is set to zero before the layer, but still decays the state. huggingface/transformers#48256.",
    u=lambda u, live: u if live is None else np.where(live[:, :, None], u, 0.0),
    live=None,
)


def rows(*table: tuple[Any, str, str]) -> tuple[Row, ...]:
    """Faults of layers, each of which has all operations."""
    return tuple((build, tuple(dict.fromkeys((operation, *LAYER))), bug_class) for build, operation, bug_class in table)


WRONG = planted(
    *rows(
        (
            forward(
                "ForgetsState",
                "Several tokens at once start from a zero state. huggingface/transformers#45513.",
                S=lambda S, tokens: np.zeros_like(S) if tokens > 1 else S,
            ),
            "layer.continue",
            "INIT-DROP",
        ),
        (PadsDecay, "layer.left_pad", "PAD-LEAK"),
        (PadsDecay, "layer.right_pad", "PAD-LEAK"),
        (KeepsRecurrentState, "layer.rollback", "ROLLBACK"),
        (ClampsPrefill, "layer.prefill", "VARIANT"),
        (ClampsPrefill, "layer.step", "VARIANT"),
        (LiesAboutWeights, "layer.prefill", "CONDUCT"),
    )
)
REACH = planted(
    *rows(
        (UndoesWholeCalls, "layer.rollback", "ROLLBACK"),
        (UndoesOneCall, "layer.rollback", "ROLLBACK"),
        (
            forward(
                "MasksLastPads",
                "Only the last w - 1 tokens of left padding are masked.",
                live=lambda live, tokens, width: live | (np.arange(tokens) < np.argmax(live, axis=1)[:, None] - (width - 1)),
            ),
            "layer.left_pad",
            "PAD-LEAK",
        ),
        (
            forward(
                "MasksTheFirstCall",
                "The mask of padding is read in the first call only; a padded prompt comes in two.",
                live=lambda live, past: None if past else live,
            ),
            "layer.right_pad",
            "PAD-LEAK",
        ),
        (
            records("AssumesEps", "The norm adds 1e-5; the layer's value is ignored.", normed(eps=1e-5)),
            "layer.prefill",
            "NUMERIC",
        ),
        (LosesStateAt64, "layer.prefill", "CHUNK"),
    )
)
"""Faults that only part of a call, several calls, much padding, another eps or a long prompt show."""
FAULTS = (*WRONG, *REACH)
