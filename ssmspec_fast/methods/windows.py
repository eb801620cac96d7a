"""What the methods for drafts share: a feed without lag, attention over it, and the updates after a verdict.

If a sequence has one row, its keys and values are written to the cache directly, at T + i for node i; after the verdict a
tree's path moves to the front (`kv_compact`), and a chain's is there already. If several rows share a slot, none may write
before one of them is chosen, so keys and values of the window are kept until then.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine.state import Cache, Kept, Pools, landed
from ..engine.window import Feed, Verdict, Window
from ..layers.attention import Attention
from ..layers.recurrent import Recurrent
from ..models.model import Model
from ..operations import Operations, Rows
from ..operations.slots import index


@dataclass
class Together(Kept):
    """`params`: what advances the states of all layers of a shape, by group, with a leading axis of layers."""

    params: dict[int, Any]


def attend(
    pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
) -> Tensor:
    """Attention over the cache and the feed."""
    cache, alone = pools.cache(layer), feed.window.drafts == 1
    if not alone:
        pools.flight.attended[layer] = (k, v)
    return operations.attention(
        q,
        k,
        v,
        cache.K,
        cache.V,
        feed.start,
        ancestors=feed.ancestors,
        scale=mixer.scale,
        append=alone,
        slots=feed.slots,
    )


def room(pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor:
    """Where a layer's projection is written, so that the convolutions can advance after the verdict."""
    return piece(pools, pools.flight.inputs, layer, mixer, feed, mixer.projection.weight.shape[0])


def room_behind(pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor:
    """Where the outputs of a layer's convolution are written, so that the states can advance after the verdict."""
    return piece(pools, pools.flight.outputs, layer, mixer, feed, mixer.taps.weight.shape[0])


def piece(
    pools: Pools, held: dict[int, tuple[Tensor, Recurrent]], layer: int, mixer: Recurrent, feed: Feed, channels: int
) -> Tensor:
    """A layer's part of one tensor for all layers of its shape, allocated when the first of them needs it."""
    dtype, device = mixer.projection.weight.dtype, mixer.projection.weight.device
    for number, group in enumerate(pools.convolutions):
        if layer in group.layers:
            shape = (len(group.layers), *feed.tokens.shape, channels)
            if number not in held or held[number][0].shape != shape:
                held[number] = torch.empty(shape, dtype=dtype, device=device), mixer
            return held[number][0][group.layers.index(layer)]
    raise AssertionError(f"layer {layer} has no convolution")


def convolutions_on(
    pools: Pools, verdict: Verdict, operations: Operations, drafts: int, *, advanced: Tensor | None = None,
    path: Tensor | None = None,
) -> None:  # fmt: skip
    """Advances the windows of all convolutions, by the first `advanced` (n) inputs of their row, or by those on its path."""
    for number, (inputs, mixer) in landed(pools.flight.inputs).items():
        group, u = pools.convolutions[number], inputs[..., mixer.reads]
        u = u if drafts == 1 else u[:, verdict.row]
        M, u, layers = group.M.flatten(0, 1), u.flatten(0, 1), len(group.layers)
        places = torch.where(verdict.slots >= 0, verdict.slots + group.first, verdict.slots).flatten()
        if path is not None:
            operations.conv_commit(M, u, path=path.repeat(layers, 1), slots=places)
        elif advanced is not None:
            operations.conv_commit(M, u, advanced=advanced.repeat(layers), slots=places)


def together(operations: Operations, mixer: Recurrent) -> bool:
    """Whether one launch after the verdict advances the states of all layers of this shape."""
    return recurrence(operations, mixer).commit is not None


def convolved(pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations) -> Any:
    """The inputs of a layer's recurrence for a window or tree; its convolution state is only read. Kept for `states_on` where
    that is one launch."""
    M, slots = pools.recurrent(layer).M, feed.slots
    out = room_behind(pools, layer, mixer, feed) if together(operations, mixer) else None
    if feed.parents is None:
        c = operations.conv_window(M, pre, mixer.taps, slots=slots, keep="none", out=out)
    else:
        c = operations.conv_tree(M, pre, mixer.taps, feed.parents, slots=slots, out=out)
    inputs = mixer.project(c, gates, operations)
    if out is not None:
        pools.flight.beside[layer] = mixer.beside(inputs)
    return inputs


def outputs(S: Tensor, mixer: Recurrent, inputs: Any, gates: Any, feed: Feed, operations: Operations) -> Rows:
    """The outputs of a window or tree from states that are only read; gated and normed if the same launch does both."""
    slots, ancestors, scan = feed.slots, feed.ancestors, recurrence(operations, mixer)
    if (gate := mixer.gate(gates)) is not None:
        y = scan.gated_window(S, inputs, mixer.params, gate, ancestors=ancestors, slots=slots)
        if y is not None:
            return y
    if feed.parents is None or ancestors is None:
        return scan.scan(S, inputs, mixer.params, slots=slots, write_state=False)
    return scan.tree(S, inputs, mixer.params, feed.parents, ancestors, slots=slots)


def states_on(
    pools: Pools, verdict: Verdict, operations: Operations, drafts: int, *, advanced: Tensor | None = None,
    path: Tensor | None = None,
) -> None:  # fmt: skip
    """Advances the states whose convolutions wrote their outputs into one tensor, by the first `advanced` (n) tokens of the
    accepted row, or by those on its path. To be called before `convolutions_on`, which frees the projections.
    """
    beside = landed(pools.flight.beside)
    for number, (outputs, mixer) in landed(pools.flight.outputs).items():
        given = {"rows": verdict.row if drafts > 1 else None, "advanced": advanced, "path": path, "slots": verdict.slots}
        group = pools.convolutions[number]
        more = map(torch.stack, zip(*(beside[layer] for layer in group.layers), strict=True))
        inputs = mixer.moving(pools.flight.inputs[number][0], outputs, *more)
        recurrence(operations, mixer).commit(group.S, inputs, pools.of(Together).params[number], **given)


def parameters(model: Model, pools: Pools, operations: Operations) -> dict[int, Any]:
    """The parameters of the shapes whose states advance together, on the device of the pools."""
    found = {}
    for number, group in enumerate(pools.convolutions):
        mixers: list[Any] = [model.mixers[layer] for layer in group.layers]
        if together(operations, mixers[0]):
            first, device = mixers[0].params, pools.length.device
            read = [n for n in recurrence(operations, mixers[0]).replayed if getattr(first, n, None) is not None]
            rows = {name: torch.stack([getattr(mixer.params, name).to(device) for mixer in mixers]) for name in read}
            unread = {"D": None} if "D" in first._fields else {}
            found[number] = first._replace(**unread, **rows)
    return found


def keep_accepted(pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
    """Moves keys and values of the accepted nodes to the end of what is committed, in every attention layer."""
    pending = landed(pools.flight.attended)
    for layer, held in enumerate(pools.layers):
        if not isinstance(held, Cache):
            continue
        if layer in pending:
            k, v = (x[verdict.row] for x in pending[layer])
            operations.kv_append(held.K, held.V, k, v, feed.start, slots=verdict.slots)
        if feed.window.parents is not None:
            operations.kv_compact(held.K, held.V, verdict.run.path, feed.start, slots=verdict.slots)


def advance(pools: Pools, verdict: Verdict) -> None:
    """Advances the lengths by the tokens that entered the states; 0 for padding."""
    pools.length.index_add_(0, index(verdict.slots), verdict.run.advanced)


def at(cursor: Tensor, slots: Tensor) -> Tensor:
    """A cursor of each row; that of slot 0 for padding."""
    return cursor[index(slots)]


def draft_number(window: Window) -> Tensor:
    """Which draft of its sequence a row is (b)."""
    return torch.arange(len(window.slots), device=window.slots.device) % window.drafts


def recurrence(operations: Operations, mixer: Recurrent) -> Any:
    """The recurrence of a layer."""
    return operations.recurrences[mixer.kind]
