"""Plain decoding by the reference, prefix by prefix: logits and states after it, and the allowed error of each.

    node(tokens) = a scan of the tokens from the empty state, and its running error bound      (1)

A known prefix is not computed again; new ones are computed together, as rows of a batch.

An implementation that decodes token by token is within the bound of (1) token by token, whatever it replays. One that may
process any run of tokens at once, from a state that it stored anywhere before, gets the sum of two bounds: of the whole
sequence at once and token by token. A recurrence is affine in its state, so the error of one run is carried on within the
bound of the whole sequence in that order, and what the next run adds is within the whole sequence's bound in the other. In
float64 the reference's own error is added once more; with fp32 it is 2^-29 of the bound, and 2^-24 is added.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ssmspec_ref import model as lm
from ssmspec_ref.attention import KVState
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds import model as bounds
from ssmspec_ref.model import LayerState, Model
from ssmspec_ref.shapes import Array

from ..drawing.models import Spec, build

Prefix = tuple[int, ...]
MOST = 4096
"""Most nodes that an oracle keeps."""


@dataclass(frozen=True)
class Node:
    """Plain decoding of a prefix. `layers` holds the arrays of the states, in the order of `Decoder.state`, with bounds."""

    logits: Array
    error: Array
    layers: tuple[tuple[str, Array, Array], ...]


class Oracle:
    """Plain decoding of one model under one contract."""

    def __init__(self, model: Model, contract: NumericContract) -> None:
        self.model = model
        stored = replace(contract, stored_every_token=True, order="sequential")
        self.orders = (stored,) if contract.order == "sequential" else (stored, replace(stored, order=contract.order))
        self.factor = len(self.orders) + (1.0 if contract.accumulate == "fp64" else 2.0**-24)
        begin, none = lm.new_state(model, 1), np.zeros(model.vocabulary)
        layers = [(f"{name} of layer {i}", value) for i, layer in enumerate(begin) for name, value in of_row(layer, 0)]
        self.begin = Node(none, none, tuple((name, value, np.zeros_like(value)) for name, value in layers))
        self.nodes: dict[Prefix, Node] = {(): self.begin}

    def at(self, tokens: Prefix) -> Node:
        """The node of a prefix."""
        if tokens not in self.nodes:
            self.learn([tokens])
        return self.nodes[tokens]

    def learn(self, prefixes: Iterable[Prefix]) -> None:
        """Computes the missing ones of these prefixes (1)."""
        if len(self.nodes) > MOST:
            self.nodes = {(): self.begin}
        missing = sorted(set(prefixes) - self.nodes.keys())
        if not missing:
            return
        tokens = np.zeros((len(missing), max(map(len, missing))), dtype=np.int64)
        live = np.arange(tokens.shape[1]) < np.array([[len(prefix)] for prefix in missing])
        tokens[live] = [token for prefix in missing for token in prefix]
        begin = lm.new_state(self.model, len(missing))
        logits, after = lm.scan(begin, tokens, self.model, live)
        found = bounds.scan(begin, tokens, self.model, self.orders, live)
        for b, prefix in enumerate(missing):
            t = len(prefix) - 1
            layers = tuple(
                (f"{name} of layer {i}", value, wrong[name].error[b][: len(value)])
                for i, (layer, wrong) in enumerate(zip(after, found.layers, strict=True))
                for name, value in of_row(layer, b)
            )
            self.nodes[prefix] = Node(logits[b, t], found.logits.error[b, t], layers)


def of_row(layer: LayerState, b: int) -> list[tuple[str, Any]]:
    """The arrays of one row of a state; a cache up to its length."""
    if isinstance(layer, KVState):
        held = int(layer.length[b])
        return [("K", layer.K[b, :held]), ("V", layer.V[b, :held])]
    return [("M", layer.M[b]), ("S", layer.S[b])]


@lru_cache(maxsize=32)
def oracle_of(spec: Spec, contract: NumericContract) -> Oracle:
    return Oracle(build(spec), contract)
