"""Plain decoding by the reference, prefix by prefix: logits behind it, states after it, and how far either may be off.

    node(tokens + x) = one step of plain decoding from node(tokens)      (1)

A prefix that was seen before is not computed again; those of one length are computed at once, as rows of a batch.

An implementation that decodes token by token is within the bound of (1) from node to node, whatever it replays. One that may
read any run of tokens at once, from a state that it kept anywhere before, is held to the bounds of the whole sequence at once
and token by token, added: a recurrence is affine in its state, so what one run leaves behind is carried on within the bound
of the whole sequence in that order, and what the next adds is within the whole sequence's bound in the other. In float64
the reference's own error counts once more; beside fp32 it is 2^-29 of the bound, and 2^-24 is added.
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
from ssmspec_ref.mixer import MixerState
from ssmspec_ref.model import LayerState, Model
from ssmspec_ref.shapes import Array

from .models import Spec, build

Prefix = tuple[int, ...]
MOST = 4096
"""Nodes that an oracle keeps."""


@dataclass(frozen=True)
class Node:
    """Plain decoding of a prefix, as a batch of one. `errors` names M and S, or K and V, of each layer."""

    logits: Array
    error: Array
    states: tuple[LayerState, ...]
    errors: tuple[dict[str, Array], ...]

    def layers(self) -> list[tuple[str, Array, Array]]:
        """Every array of the states with its bound, as `Decoder.state` orders them."""
        return [
            (f"{name} of layer {i}", getattr(state, name)[0], wrong[name][0])
            for i, (state, wrong) in enumerate(zip(self.states, self.errors, strict=True))
            for name in names(state)
        ]


class Oracle:
    """Plain decoding of one model under one contract."""

    def __init__(self, model: Model, contract: NumericContract) -> None:
        self.model = model
        stored = replace(contract, stored_every_token=True, order="sequential")
        self.sequential = contract.order == "sequential"
        self.orders = (stored,) if self.sequential else (stored, replace(stored, order=contract.order))
        own = 1.0 if contract.accumulate == "fp64" else 2.0**-24
        self.factor = len(self.orders) + own
        state, none = lm.new_state(model, 1), np.zeros(model.vocabulary)
        errors = tuple({name: np.zeros_like(getattr(layer, name)) for name in names(layer)} for layer in state)
        self.root = Node(none, none, state, errors)
        self.nodes: dict[Prefix, Node] = {(): self.root}

    def at(self, tokens: Prefix) -> Node:
        """The node of a prefix."""
        if tokens not in self.nodes:
            self.learn([tokens])
        return self.nodes[tokens]

    def learn(self, prefixes: Iterable[Prefix]) -> None:
        """Compute what is missing of these prefixes and of all that they begin with, length by length (1)."""
        if len(self.nodes) > MOST:
            self.nodes = {(): self.root}
        missing = {tokens[:n] for tokens in prefixes for n in range(1, len(tokens) + 1)} - self.nodes.keys()
        for length in sorted({len(tokens) for tokens in missing}):
            level = sorted(tokens for tokens in missing if len(tokens) == length)
            for tokens, node in zip(level, self.steps(level), strict=True):
                self.nodes[tokens] = node

    def steps(self, level: list[Prefix]) -> list[Node]:
        """One token more for nodes of one length."""
        above = [self.nodes[tokens[:-1]] for tokens in level]
        states, wrong = stacked(above)
        last = np.array([tokens[-1:] for tokens in level])
        logits, after = lm.scan(states, last, self.model)
        if self.sequential:
            found = bounds.scan(states, last, self.model, self.orders, inexact=wrong)
        else:
            begin, none = stacked([self.root] * len(level))
            found = bounds.scan(begin, np.array(level), self.model, self.orders, inexact=none)
        return [
            Node(
                logits[b, -1],
                found.logits.error[b, -1],
                tuple(one_row(layer, b) for layer in after),
                tuple({name: pair.error[b : b + 1] for name, pair in layer.items()} for layer in found.layers),
            )
            for b in range(len(level))
        ]


def names(layer: LayerState) -> tuple[str, str]:
    return ("K", "V") if isinstance(layer, KVState) else ("M", "S")


def one_row(layer: LayerState, b: int) -> LayerState:
    """A row as a batch; a cache as far as it is held."""
    if isinstance(layer, KVState):
        held = int(layer.length[b])
        return KVState(layer.K[b : b + 1, :held], layer.V[b : b + 1, :held], layer.length[b : b + 1])
    return MixerState(layer.M[b : b + 1], layer.S[b : b + 1])


def stacked(nodes: list[Node]) -> tuple[Any, Any]:
    """States and errors of nodes of one length, as a batch."""
    states, errors = [], []
    for layers, wrong in zip(
        zip(*(n.states for n in nodes), strict=True), zip(*(n.errors for n in nodes), strict=True), strict=True
    ):
        fields = {name: np.concatenate([getattr(layer, name) for layer in layers]) for name in names(layers[0])}
        if isinstance(layers[0], KVState):
            fields["length"] = np.concatenate([layer.length for layer in layers])
        states.append(type(layers[0])(**fields))
        errors.append({name: np.concatenate([w[name] for w in wrong]) for name in wrong[0]})
    return tuple(states), tuple(errors)


@lru_cache(maxsize=32)
def oracle_of(spec: Spec, contract: NumericContract) -> Oracle:
    return Oracle(build(spec), contract)
