"""What is timed has written all of its outputs: seen in the graph that was timed, behind the last time that is taken.

    fill      every output with NaN
    replay    the graph once more, untimed
    look      every output is finite, and every state that the launches advance

Each launch of the graph has an output of its own, so that what one of them leaves out no other one fills. States cannot be
filled, for a launch reads what it advances; they are looked at only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from .pairs import WrongOutputError

Outputs = Mapping[str, Tensor]
"""Which launch, and what it writes. These and the states are read behind the recording, so that a launch which returns a new
tensor may put it there."""

SLAB = 2**28
"""Elements that are looked at together."""


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
    for piece in pieces(outputs.values()):
        piece.fill_(float("nan"))
    replay()
    if not all(map(finite, pieces(outputs.values()))):
        wrong = [name for name, out in outputs.items() if not finite(out)]
        more = f", and those of {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WrongOutputError(f"the output of {wrong[0]} was not written, or is not finite{more}; no time is kept")
    for i, state in enumerate(states):
        if not finite(state):
            raise WrongOutputError(f"state {i} of {len(states)} is not finite behind the launches; no time is kept")


def pieces(outputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same memory in fewer tensors: those that outputs make up together, the outputs themselves where there is more."""
    parts: dict[int, list[Tensor]] = {}
    for out in outputs:
        parts.setdefault(id(out if out._base is None else out._base), []).append(out)
    for of in parts.values():
        base = of[0]._base
        whole = base is not None and base.numel() == sum(out.numel() for out in of)
        yield from [base] if base is not None and whole else of


def finite(x: Tensor) -> bool:
    """Slab by slab, so that what it takes beside a large tensor stays small."""
    flat = x.flatten()
    return all(bool(flat[at : at + SLAB].isfinite().all()) for at in range(0, flat.numel(), SLAB))
