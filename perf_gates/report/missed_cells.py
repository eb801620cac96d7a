"""The cells of the kernels that miss their target, beside what `missed.toml` says of them.

Every cell that misses needs an entry, and every entry a cell that misses: an unneeded entry is a fault too.
"""

from collections.abc import Iterator, Sequence

from ..verdicts.missed import FILE, Reason
from ..verdicts.targets import Cell
from ..verdicts.verdict import Judged


def missing(judged: Sequence[Judged]) -> list[tuple[Cell, float]]:
    """The cells of the kernels whose value misses its target, with the value. NaN misses."""
    return [
        (j.row.kernel, j.value)
        for j in judged
        if j.row.kernel and j.value is not None and not j.table.holds(j.value, j.target)
    ]


def faults(judged: Sequence[Judged], given: tuple[Reason, ...]) -> Iterator[str]:
    """Cells without an entry, and entries without a cell."""
    short = [cell for cell, _ in missing(judged)]
    for cell in short:
        if not any(reason.covers(cell) for reason in given):
            yield f"{cell.what}, {cell.shape}, {cell.batch}: misses its target, and {FILE.name} does not say why"
    for reason in given:
        if not any(reason.covers(cell) for cell in short):
            yield (
                f"{FILE.name}: {reason.row}, {', '.join(reason.shapes) or 'any shape'}: "
                "it explains no cell that misses its target; delete it"
            )


def text(judged: Sequence[Judged], given: tuple[Reason, ...]) -> Iterator[str]:
    """A paragraph for each entry: how far off, what limits it, what was tried."""
    short = missing(judged)
    for reason in given:
        own = [(cell, value) for cell, value in short if reason.covers(cell)]
        if own:
            worst, value = max(own, key=lambda one: one[0].target / one[1] if one[0].least else one[1] / one[0].target)
            where = f"{', '.join(dict.fromkeys(cell.shape for cell, _ in own))}"
            sign = ">=" if worst.least else "<="
            at = f"{worst.what}, batch {worst.batch}: {value:.2f}, target {sign} {worst.target}"
            yield f"- **{reason.row}**, {where}: {len(own)} cells; the farthest: {at}. {reason.bounds} Tried: {reason.tried}"
