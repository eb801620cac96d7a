"""Which steps are measured: for a model, every method over windows, trees and batches; and the papers' tables as one plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssmspec_ref.errors import ParameterError
from ssmspec_ref.options.words import one_of

from .models import DIMS
from .subjects import METHODS, Subject, tree_of

SIZES = ("mamba2-1.3b", "mamba2-2.7b", "mamba2-7b", "mamba2-13b", "mamba2-23b")
LEAVES = 32
"""Paths of the full binary tree of 63 nodes; unrolled, each is a row of DEPTH tokens with its own state."""
DEPTH = 6


@dataclass(frozen=True)
class Plan:
    """Every method of every model at every window (root included), tree and batch, each with the plain steps.

    Raises: ParameterError for an unknown name, or a number below 1.
    """

    models: tuple[str, ...] = ("mamba2-2.7b",)
    methods: tuple[str, ...] = ("joint", "replay", "buffer", "snapshots", "tree")
    windows: tuple[int, ...] = (7,)
    trees: tuple[int, ...] = (13,)
    batches: tuple[int, ...] = (1,)
    drafts: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for kind, names, known in (("model", self.models, DIMS), ("method", self.methods, METHODS)):
            for name in names:
                one_of(f"--{kind}", name, known)
        numbers = (*self.windows, *self.trees, *self.batches, *self.drafts)
        if any(n < 1 for n in numbers) or any(n < 2 for n in (*self.windows, *self.trees)):
            raise ParameterError(f"sizes are {numbers}; windows and trees must be 2 or more, batches and drafts 1 or more")

    def subjects(self) -> Iterator[Subject]:
        """Model by model, plain steps first."""
        for model in self.models:
            for batch in self.batches:
                yield Subject(model, "plain", batch=batch)
                for method in self.methods:
                    yield from self.of(model, method, batch)

    def of(self, model: str, method: str, batch: int) -> Iterator[Subject]:
        """One method's steps, with the plain step."""
        if method == "tree":
            yield from (Subject(model, method, n, batch, parents=tree_of(n)) for n in self.trees)
        elif method != "plain":
            several = self.drafts if method != "buffer" else (1,)
            yield from (Subject(model, method, t, batch, m) for t in self.windows for m in several)


def papers() -> tuple[Subject, ...]:
    """The steps of the papers' tables, the most informative first."""
    flat = (Subject("mamba2-2.7b", "replay", 7, advanced=n) for n in (1, 3, 5, 7))
    found = [
        *Plan().subjects(),
        Subject("mamba2-2.7b", "replay", 5),
        *flat,
        *(Subject("mamba2-2.7b", "tree", 13, parents=tree_of(13), advanced=n) for n in (1, 3, 5)),
        Subject("mamba2-2.7b", "tree", 63, parents=tree_of(63)),
        Subject("mamba2-2.7b", "replay", DEPTH, LEAVES),
        *Plan(("mamba2-2.7b",), ("replay", "buffer"), batches=(2, 4, 8, 16)).subjects(),
        *Plan(("mamba2-2.7b",), ("replay", "buffer"), (2, 3, 4, 5, 9)).subjects(),
        *Plan(("mamba2-2.7b",), ("joint", "replay"), drafts=(2, 4)).subjects(),
        *(Subject("mamba2-2.7b", "joint-by-lag", 7, advanced=n) for n in (1, 4, 7)),
    ]
    for model in ("mamba-in-llama-8b", *(size for size in SIZES if size != "mamba2-2.7b")):
        found += [*Plan((model,), ("joint", "replay", "buffer", "tree")).subjects(), Subject(model, "replay", 5)]
    return tuple(dict.fromkeys(found))


TINY = Plan(("tiny", "tiny-hybrid"), (*Plan.methods, "joint-by-lag"), batches=(1, 2), windows=(3, 5), trees=(7,))


def grouped(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """Grouped by model, so that only one model's weights are in memory at a time."""
    found: dict[str, list[Subject]] = {}
    for subject in subjects:
        found.setdefault(subject.model, []).append(subject)
    return found
