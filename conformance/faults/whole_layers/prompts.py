"""Layers that take a prompt, a single token or a padded row for something else."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers import layer
from ssmspec_ref.layers.layer import Mamba2Layer
from ssmspec_ref.shapes import Array

from ..fault import planted
from ..recurrences.other_rules import LONG, over_the_wrong_axis
from ..windows import Right, forward, normed, records


class FiveAreAWindow(Right):
    """A prompt of exactly five tokens is verified as a root and four drafts, and writes no state. Bug class CLASSIFY."""

    window = 5

    def forward(self, u: Array, live: Any = None) -> Array:
        held = self.held
        out = super().forward(u, live)
        if u.shape[1] == self.window:
            self.held = held
        return out


class EightAreAWindow(FiveAreAWindow):
    """A prompt of exactly eight tokens is verified as a root and seven drafts, and writes no state."""

    window = 8


class PadsTheTail(Right):
    """A single token after a prompt is padded with two placeholders, and the state after them is kept. Bug class CLASSIFY."""

    def forward(self, u: Array, live: Any = None) -> Array:
        if u.shape[1] > 1 or not self.past:
            return super().forward(u, live)
        return super().forward(np.concatenate([u, np.zeros_like(u), np.zeros_like(u)], axis=1))[:, :1]


class WholeCallStays(Right):
    """Undoing exactly the tokens of the last call does nothing. ggml-org/llama.cpp#26695."""

    def rollback(self, tokens: int) -> None:
        if tokens != self.past[-1][0].shape[1]:
            super().rollback(tokens)


class SumsOverTargets(Right):
    """States are passed between 64-token chunks of a prompt with a sum over the wrong axis (destination instead of source).
    huggingface/transformers#47513."""

    def forward(self, u: Array, live: Any = None) -> Array:
        begun, out = self.held, super().forward(u, live)
        if u.shape[1] == 1 or not isinstance(self.record, Mamba2Layer):
            return out
        cuts = [slice(t, t + LONG) for t in range(0, u.shape[1], LONG)]
        real = np.ones(u.shape[:2], dtype=bool) if live is None else live
        zero, one, states, left, windows = np.zeros_like(begun.S), np.ones_like(begun.S), [begun.S], [], [begun.M]
        for cut in cuts:
            of_none, of_one = (
                layer.scan(replace(begun, M=windows[-1], S=S), u[:, cut], self.record, real[:, cut])[1] for S in (zero, one)
            )
            states.append(of_none.S)
            left.append(of_one.S - of_none.S)
            windows.append(of_none.M)
        *before, S_next = over_the_wrong_axis(states, left)
        self.held = replace(self.held, S=S_next)
        begins = (replace(begun, M=M, S=S) for M, S in zip(windows[:-1], before, strict=True))
        parts = (layer.scan(state, u[:, cut], self.record, real[:, cut])[0] for state, cut in zip(begins, cuts, strict=True))
        return np.concatenate(list(parts), axis=1)


FAULTS = planted(
    (FiveAreAWindow, "layer.step", "CLASSIFY"),
    (EightAreAWindow, "layer.step", "CLASSIFY"),
    (PadsTheTail, "layer.step", "CLASSIFY"),
    (
        records(
            "NormsTheWhole",
            "The gated norm takes its mean over all groups. huggingface/transformers#35943.",
            normed(groups=1),
        ),
        "layer.prefill",
        "GROUP-MAP",
    ),
    (
        forward(
            "OneRowIsNotMasked",
            "The mask of a batch of one row is not applied. huggingface/transformers#46773.",
            live=lambda live: None if len(live) == 1 else live,
        ),
        "layer.left_pad",
        "PAD-LEAK",
    ),
    (
        forward(
            "MaskIsNotRead",
            "The mask of the padding does not reach the layer. state-spaces/mamba#66.",
            live=None,
        ),
        "layer.left_pad",
        "PAD-LEAK",
    ),
    (WholeCallStays, "layer.rollback", "ROLLBACK"),
    (
        forward(
            "ForgetsTheWindow",
            "Several tokens at once start with an empty window of the convolution. huggingface/transformers#45513.",
            M=lambda M, tokens: np.zeros_like(M) if tokens > 1 else M,
        ),
        "layer.continue",
        "INIT-DROP",
    ),
    (SumsOverTargets, "layer.prefill", "CHUNK"),
)
