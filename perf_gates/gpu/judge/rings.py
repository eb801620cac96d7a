"""Buffered decoding at the shapes of models: the steps and comparisons that SSD and the delta rule share."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.backtrack.replay_buffer import ReplayBuffer
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.records import concat, each
from ssmspec_ref.shapes import Array

from .call import Call, finite, launcher, within

Tokens = tuple[Any, dict[str, Array]]
"""A window as arguments for the oracle, and the errors of its fields."""


@dataclass
class Beside:
    """One sampled row: its checkpoint, with its error, and the tokens held since."""

    layer: Any
    S: Approx
    held: Tokens | None = None
    count: int = field(default=0)

    def read(self, tokens: Tokens) -> Approx:
        """The outputs of a window after the held tokens."""
        window, errors = tokens if self.held is None else _behind(self.held, tokens)
        y, _ = self.layer.scan(self.S.value, window, {**errors, "S": self.S.error}, order="output_only")
        return y[:, self.count :]

    def flush(self) -> Approx:
        """The checkpoint after the held tokens."""
        if self.held is not None:
            window, errors = self.held
            _, self.S = self.layer.scan(self.S.value, window, {**errors, "S": self.S.error}, order="output_only")
        self.held, self.count = None, 0
        return self.S

    def take(self, tokens: Tokens, count: int) -> None:
        if count:
            cut = each(lambda a: a[:, :count], tokens[0]), {name: e[:, :count] for name, e in tokens[1].items()}
            self.held, self.count = cut if self.held is None else _behind(self.held, cut), self.count + count


def _behind(held: Tokens, tokens: Tokens) -> Tokens:
    return concat(held[0], tokens[0]), {name: np.concatenate([e, tokens[1][name]], axis=1) for name, e in held[1].items()}


def row(tokens: Tokens, i: int) -> Tokens:
    return each(lambda a: a[i : i + 1], tokens[0]), {name: e[i : i + 1] for name, e in tokens[1].items()}


def besides(layer: Any) -> list[Beside]:
    return [Beside(layer, eb.exact(S[None], layer.contract())) for S in layer.state()]


def buffered(call: Call, family: Any, sizes: Any, b: int, t: int, capacity: int, **how: Any) -> float:
    """Consecutive windows, through flushes, each with a random number of accepted tokens; then a flush of all rows by
    hand."""
    layer = family(call, sizes, b, **how)
    ring, judged, used = layer.ring(capacity), besides(layer), 0.0
    for _ in range(3 + -(-3 * capacity // (2 * t))):
        tokens, out = layer.window(t), layer.blank(t)
        took, held = call.rng.integers(0, t + 1, b), np.array([one.count for one in judged])
        due = (held > 0) & ReplayBuffer(capacity, t).due(held)
        owned = {"out": slice(0, layer.live), "S": layer.own}
        with call.keeping(owned, out=out, origin=ring.origin, held=ring.held, **layer.same(**tokens)):
            launcher(f"{layer.name}_buffered")(layer.S, ring, **tokens, **layer.given, out=out)
        finite("y", out, layer.live)
        window, states = layer.sampled(tokens), layer.state()
        for i, one in enumerate(judged):
            used = max(used, within("y", layer.outputs(out)[i : i + 1], one.read(row(window, i))))
            if due[i]:
                used = max(used, within("S", states[i : i + 1], one.flush()))
            one.take(row(window, i), int(took[layer.rows[i]]))
        commit = {"capacity": capacity, "window": t, "slots": layer.slots}
        launcher("cursors", "commit_window")(ring.origin, ring.held, call.ints(took), **commit)
        assert ring.held[layer.at].tolist() == [one.count for one in judged], "the cursors count another number of tokens"
    layer.flush(ring)
    found = layer.state()
    return max(used, *(within("S", found[i : i + 1], one.flush()) for i, one in enumerate(judged) if one.count), 0.0)


def steps(call: Call, family: Any, sizes: Any, b: int, capacity: int, output_only: bool, **how: Any) -> float:
    """Single tokens through more than one flush."""
    layer = family(call, sizes, b, **how)
    ring, judged, used = layer.ring(capacity), besides(layer), 0.0
    for _ in range(capacity + 3):
        tokens, out = layer.window(1), layer.blank(1)
        owned = {"out": slice(0, layer.live), "S": layer.own}
        with call.keeping(owned, out=out, origin=ring.origin, held=ring.held, **layer.same(**tokens)):
            kernel = launcher(f"{layer.name}_buffered_step")
            kernel(layer.S, ring, **tokens, **layer.given, out=out, output_only=output_only)
        finite("y", out, layer.live)
        window, found, states = layer.sampled(tokens), layer.outputs(out), layer.state()
        for i, one in enumerate(judged):
            used = max(used, within("y", found[i : i + 1], one.read(row(window, i))))
            one.take(row(window, i), 1)
            if one.count == capacity:
                used = max(used, within("S", states[i : i + 1], one.flush()))
        launcher("cursors", "commit_step")(ring.origin, ring.held, capacity=capacity, rows=b, slots=layer.slots)
    return used
