"""Checks that timed launches have written all of their outputs, in the timed graph itself, after the last timing.

    fill      every output with NaN
    replay    the graph once more, untimed
    look      every output must be finite, and every state that the launches advance

Each launch of the graph has its own output, so that no launch fills what another one leaves out. States cannot be
filled, because a launch reads what it advances; they are only checked.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from .paired_timing import WrongOutputError

Outputs = Mapping[str, Tensor]
"""Which launch, and what it writes. These and the states are read after the recording, so that a launch which returns a new
tensor may add it."""

SLAB = 2**28
"""Elements that are checked together."""


def own_outputs(like: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """An unwritten output like `like` for each launch, in the order of their names."""
    return dict(zip(names, like.new_full((len(names), *like.shape), float("nan")), strict=True))


def numbered(count: int) -> list[str]:
    """Names of launches that only differ by their order."""
    return [f"launch {i} of {count}" for i in range(count)]


def check_written(replay: Callable[[], object], outputs: Outputs, states: Collection[Tensor] = ()) -> None:
    """Fills, replays, looks.

    Raises: WrongOutputError for an output that was not written whole or holds something that is not finite, with its name,
    and for a state that is not finite; ValueError for none, or for two that share their memory.
    """
    if not outputs or len({out.data_ptr() for out in outputs.values()}) < len(outputs):
        raise ValueError(f"{len(outputs)} outputs were given for the launches of a graph; give each launch its own")
    for piece in pieces(outputs.values()):
        piece.fill_(float("nan"))
    replay()
    if not all(map(finite, pieces(outputs.values()))):
        wrong = [name for name, out in outputs.items() if not finite(out)]
        more = f", and those of {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WrongOutputError(f"the output of {wrong[0]} was not written, or is not finite{more}; no time is kept")
    for i, state in enumerate(states):
        if not finite(state):
            raise WrongOutputError(f"state {i} of {len(states)} is not finite after the launches; no time is kept")


def pieces(outputs: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same memory in fewer tensors: the tensors that contain outputs, or the outputs themselves if there is more in
    them."""
    parts: dict[int, list[Tensor]] = {}
    for out in outputs:
        parts.setdefault(id(out if out._base is None else out._base), []).append(out)
    for of in parts.values():
        base = of[0]._base
        whole = base is not None and base.numel() == sum(out.numel() for out in of)
        yield from [base] if base is not None and whole else of


def finite(x: Tensor) -> bool:
    """In slabs, so that little memory is used in addition to a large tensor."""
    flat = x.flatten()
    return all(bool(flat[at : at + SLAB].isfinite().all()) for at in range(0, flat.numel(), SLAB))
