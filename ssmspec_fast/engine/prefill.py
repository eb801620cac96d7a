"""Reads prompts into the states: packed one after the other, in runs of a limited number of tokens.

All tokens of a prompt but the last are read; the last is the first root. A run holds pieces of several prompts, or a piece of
one; the next piece of a prompt starts from the state after the previous piece.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..layers.attention import Attention
from ..layers.linear import Product
from ..layers.rotary import Positions
from ..methods import Method
from ..methods.windows import recurrence
from ..models.model import Mixer, Model, through
from ..operations import Operations, Rows
from .state import Pools, RecurrentState

CHUNK = 4096
"""Most tokens of a run."""


class Piece(NamedTuple):
    """Tokens of a prompt, the first of them at place `start`, and its slot."""

    slot: int
    start: int
    tokens: Sequence[int]


class Run(NamedTuple):
    """Pieces of prompts: tokens (1, t), bounds (m + 1), and for each piece its slot and the tokens before it."""

    tokens: Tensor
    bounds: Tensor
    slots: Tensor
    positions: Tensor
    fresh: Tensor
    lengths: Tensor


def prefill(
    model: Model,
    pools: Pools,
    method: Method,
    prompts: Sequence[Sequence[int]],
    slots: Sequence[int],
    operations: Operations,
    chunk: int = CHUNK,
) -> None:
    """Sets the states of `slots` to those after all but the last token of each prompt."""
    for pieces in runs(prompts, slots, chunk):
        read(model, pools, method, pieces, operations)


def read(model: Model, pools: Pools, method: Method, pieces: Sequence[Piece], operations: Operations) -> None:
    """Reads one piece of each of some prompts in one run; the first piece of a prompt, perhaps an empty one, empties its
    slot."""
    first = [piece.slot for piece in pieces if not piece.start]
    if first:
        method.start(pools, torch.tensor(first, dtype=torch.int64, device=model.device))
    run = packed(pieces, model.device)
    feed(model, pools, method, run, operations)
    pools.length[run.slots.long()] += run.lengths


def runs(prompts: Sequence[Sequence[int]], slots: Sequence[int], chunk: int) -> Iterator[list[Piece]]:
    """Prompts cut into the pieces of runs of at most `chunk` tokens."""
    pieces: list[Piece] = []
    for prompt, slot in zip(prompts, slots, strict=True):
        body = list(prompt[:-1])
        for start in range(0, max(len(body), 1), chunk):
            piece = Piece(slot, start, body[start : start + chunk])
            if pieces and (start or sum(len(one.tokens) for one in pieces) + len(piece.tokens) > chunk):
                yield pieces
                pieces = []
            pieces.append(piece)
    if pieces:
        yield pieces


def packed(pieces: Sequence[Piece], device: torch.device) -> Run:
    lengths = torch.tensor([len(tokens) for _, _, tokens in pieces])
    flat = [token for _, _, tokens in pieces for token in tokens]
    places = [start + i for _, start, tokens in pieces for i in range(len(tokens))]
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    found = (
        torch.tensor([flat], dtype=torch.int64),
        bounds,
        torch.tensor([slot for slot, _, _ in pieces], dtype=torch.int64),
        torch.tensor([places], dtype=torch.int64),
        torch.tensor([start == 0 for _, start, _ in pieces]),
        lengths,
    )
    return Run(*(x.to(device) for x in found))


def feed(model: Model, pools: Pools, method: Method, run: Run, operations: Operations) -> None:
    """One run through all layers. Empty pieces only clear their slots."""
    if run.tokens.shape[1] == 0:
        clear(pools, run.slots, method.places(pools, run.slots))
        return
    positions = Positions(run.positions)

    def mixed(layer: int, mixer: Mixer, u: Rows) -> Product:
        if isinstance(mixer, Attention):
            cache = pools.cache(layer)
            q, k, v, gate = mixer.inputs(u, positions, operations)
            to = {"length": pools.length, "slots": run.slots}
            operations.append_packed(cache.K, cache.V, k, v, run.bounds, **to)
            y = operations.attention_packed(q, cache.K, cache.V, run.bounds, scale=mixer.scale, **to)
            return mixer.output(y, gate, operations)
        state = pools.recurrent(layer)
        pre, gates = mixer.inputs(u, operations)
        c = operations.conv_packed(state.M, pre, mixer.taps, run.bounds, slots=run.slots, fresh=run.fresh)
        places = method.places(pools, run.slots)
        inputs = mixer.project(c, gates, operations)
        y = recurrence(operations, mixer).packed(state.S, inputs, mixer.params, run.bounds, slots=places, fresh=run.fresh)
        return mixer.output(y, gates, operations)

    through(model, run.tokens, mixed, operations)


def clear(pools: Pools, slots: Tensor, places: Tensor) -> None:
    for state in pools.layers:
        if isinstance(state, RecurrentState):
            state.M[slots], state.S[places] = 0, 0
