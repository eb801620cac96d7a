"""What the methods for drafts share: a feed without lag, attention over it, and the moves behind a verdict.

Where one row speaks for a sequence, its keys and values go to the cache as they come, T + i for node i; behind the verdict a
tree's path moves to the front (`kv_compact`), and a chain's is there already. Where several rows share a slot, none may write
before one of them is chosen, so that keys and values of the window are kept until then.
"""

from typing import Any

import torch
from torch import Tensor

from ..layers.attention import Attention
from ..layers.mamba2 import Mamba2
from ..model import Model, Recurrent
from ..operations import Operations, Rows
from ..operations.slots import index
from ..state import Cache, Pools
from ..window import Feed, Verdict, Window

INPUTS, OUTPUTS = "inputs of the convolutions", "outputs of the convolutions"
"""In `Pools.kept` between a window and its verdict only: the projections that the convolutions read, and what they gave, all
layers of a shape in one piece; and one of the layers."""
PARAMS = "parameters of the states"
"""In `Pools.kept`: what moves the states of all layers of a shape on, with an axis of layers in front."""
PENDING = "pending keys and values"
"""In `Pools.kept` between a window and its verdict only: keys and values of windows of several rows to a slot."""


def attend(
    pools: Pools, layer: int, mixer: Attention, q: Tensor, k: Tensor, v: Tensor, feed: Feed, operations: Operations
) -> Tensor:
    """Attention over the cache and the feed."""
    cache, alone = pools.cache(layer), feed.window.drafts == 1
    if not alone:
        pools.kept.setdefault(PENDING, {})[layer] = (k, v)
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
    """Where a layer's projection goes, so that the convolutions can be moved on behind the verdict."""
    return piece(pools, INPUTS, layer, mixer, feed, mixer.projection.weight.shape[0])


def room_behind(pools: Pools, layer: int, mixer: Recurrent, feed: Feed) -> Tensor:
    """Where the outputs of a layer's convolution go, so that the states can be moved on behind the verdict."""
    return piece(pools, OUTPUTS, layer, mixer, feed, mixer.taps.weight.shape[0])


def piece(pools: Pools, what: str, layer: int, mixer: Recurrent, feed: Feed, channels: int) -> Tensor:
    """A layer's part of a tensor for all layers of its shape, made when the first of them asks."""
    held, dtype, device = pools.kept.setdefault(what, {}), mixer.projection.weight.dtype, mixer.projection.weight.device
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
    """The windows of all convolutions, by the first `advanced` (n) inputs of their row, or by those on its path."""
    for number, (inputs, mixer) in pools.kept.pop(INPUTS, {}).items():
        group, u = pools.convolutions[number], inputs[..., mixer.reads]
        u = u if drafts == 1 else u[:, verdict.row]
        M, u, layers = group.M.flatten(0, 1), u.flatten(0, 1), len(group.layers)
        places = torch.where(verdict.slots >= 0, verdict.slots + group.first, verdict.slots).flatten()
        if path is not None:
            operations.conv_commit(M, u, path=path.repeat(layers, 1), slots=places)
        elif advanced is not None:
            operations.conv_commit(M, u, advanced=advanced.repeat(layers), slots=places)


def together(operations: Operations, mixer: Recurrent) -> bool:
    """Whether one launch behind the verdict moves on the states of all layers of this shape."""
    return recurrence(operations, mixer).commit is not None


def convolved(pools: Pools, layer: int, mixer: Recurrent, pre: Tensor, gates: Any, feed: Feed, operations: Operations) -> Any:
    """What a layer's recurrence reads of a window or tree, its convolution only reading; kept for `states_on` where that is
    one launch.
    """
    M, slots = pools.recurrent(layer).M, feed.slots
    out = room_behind(pools, layer, mixer, feed) if together(operations, mixer) else None
    if feed.parents is None:
        c = operations.conv_window(M, pre, mixer.taps, slots=slots, keep="none", out=out)
    else:
        c = operations.conv_tree(M, pre, mixer.taps, feed.parents, slots=slots, out=out)
    return mixer.project(c, gates, operations)


def outputs(S: Tensor, mixer: Recurrent, inputs: Any, gates: Any, feed: Feed, operations: Operations) -> Rows:
    """What a window or tree gives from states that it only reads; gated and normed where that is the same launch."""
    slots, ancestors = feed.slots, feed.ancestors
    if isinstance(mixer, Mamba2) and (gate := mixer.gate(gates)) is not None:
        y = operations.ssd_gated_window(S, inputs, mixer.params, gate, ancestors=ancestors, slots=slots)
        if y is not None:
            return y
    if feed.parents is None or ancestors is None:
        return recurrence(operations, mixer).scan(S, inputs, mixer.params, slots=slots, write_state=False)
    return recurrence(operations, mixer).tree(S, inputs, mixer.params, feed.parents, ancestors, slots=slots)


def states_on(
    pools: Pools, verdict: Verdict, operations: Operations, drafts: int, *, advanced: Tensor | None = None,
    path: Tensor | None = None,
) -> None:  # fmt: skip
    """The states whose convolutions gave their outputs into one piece, by the first `advanced` (n) tokens of the row that
    stands, or by those on its path; before `convolutions_on`, which lets go of the projections.
    """
    for number, (outputs, mixer) in pools.kept.pop(OUTPUTS, {}).items():
        given = {"rows": verdict.row if drafts > 1 else None, "advanced": advanced, "path": path, "slots": verdict.slots}
        inputs = mixer.moving(pools.kept[INPUTS][number][0], outputs)
        recurrence(operations, mixer).commit(pools.convolutions[number].S, inputs, pools.kept[PARAMS][number], **given)


def parameters(model: Model, pools: Pools, operations: Operations) -> dict[int, Any]:
    """PARAMS of the shapes whose states move on together, on the device of the pools."""
    found = {}
    for number, group in enumerate(pools.convolutions):
        mixers: list[Any] = [model.mixers[layer] for layer in group.layers]
        if together(operations, mixers[0]):
            first, device = mixers[0].params, pools.length.device
            read = [name for name in ("A", "dt_bias") if getattr(first, name) is not None]
            rows = {name: torch.stack([getattr(mixer.params, name).to(device) for mixer in mixers]) for name in read}
            found[number] = first._replace(D=None, **rows)
    return found


def keep_accepted(pools: Pools, feed: Feed, verdict: Verdict, operations: Operations) -> None:
    """Keys and values of the accepted nodes to the end of what is committed, in every attention layer."""
    pending = pools.kept.pop(PENDING, {})
    for layer, held in enumerate(pools.layers):
        if not isinstance(held, Cache):
            continue
        if layer in pending:
            k, v = (x[verdict.row] for x in pending[layer])
            operations.kv_append(held.K, held.V, k, v, feed.start, slots=verdict.slots)
        if feed.window.parents is not None:
            operations.kv_compact(held.K, held.V, verdict.run.path, feed.start, slots=verdict.slots)


def advance(pools: Pools, verdict: Verdict) -> None:
    """The lengths, by as many tokens as entered the states; padding has entered none."""
    pools.length.index_add_(0, index(verdict.slots), verdict.run.advanced)


def at(cursor: Tensor, slots: Tensor) -> Tensor:
    """A cursor of each row; that of slot 0 for padding."""
    return cursor[index(slots)]


def draft_number(window: Window) -> Tensor:
    """Which draft of its sequence a row is (b)."""
    return torch.arange(len(window.slots), device=window.slots.device) % window.drafts


def recurrence(operations: Operations, mixer: Any) -> Any:
    """The recurrence of a layer."""
    return getattr(operations, mixer.kind)
