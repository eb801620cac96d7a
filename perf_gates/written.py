"""What is timed has written all of its outputs: seen in the graph that was timed, behind the last time that is taken.

    fill      every output with NaN
    replay    the graph once more, untimed
    look      every output is finite, and every state that the launches advance

Each launch of the graph has an output of its own, so that what one of them leaves out no other one fills. States cannot be
filled, for a launch reads what it advances; they are looked at only.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .pairs import WrongOutputError

Outputs = Mapping[str, Tensor]
"""Which launch, and what it writes. These and the states are read behind the recording, so that a launch which returns a new
tensor may put it there."""

SLAB = 2**28
"""Elements of a state that are looked at together: what that takes beside them stays small."""


def own_outputs(like: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """An output like `like` for each launch, in the order of their names, that nobody has written."""
    return dict(zip(names, like.new_full((len(names), *like.shape), float("nan")), strict=True))


def numbered(count: int) -> list[str]:
    """Names of launches that nothing but their order tells apart."""
    return [f"launch {i} of {count}" for i in range(count)]


def written(replay: Callable[[], object], outputs: Outputs, states: Collection[Tensor] = ()) -> None:
    """Fill, replay, look.

    Raises: WrongOutputError for an output that was not written whole or holds something that is not finite, with its name,
    and for a state that is not finite; ValueError for none, or for two that share their memory.
    """
    if not outputs or len({out.data_ptr() for out in outputs.values()}) < len(outputs):
        raise ValueError(f"{len(outputs)} outputs came for the launches of a graph; give each launch its own")
    for out in outputs.values():
        out.fill_(float("nan"))
    replay()
    sound = torch.stack([out.isfinite().all() for out in outputs.values()]).tolist()
    wrong = [name for name, whole in zip(outputs, sound, strict=True) if not whole]
    if wrong:
        more = f", and those of {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WrongOutputError(f"the output of {wrong[0]} was not written, or is not finite{more}; no time is kept")
    for i, state in enumerate(states):
        if not all(bool(slab.isfinite().all()) for slab in slabs(state)):
            raise WrongOutputError(f"state {i} of {len(states)} is not finite behind the launches; no time is kept")


def slabs(state: Tensor) -> Iterator[Tensor]:
    """A tensor in parts."""
    flat = state.flatten()
    yield from (flat[at : at + SLAB] for at in range(0, flat.numel(), SLAB))
