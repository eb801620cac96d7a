"""The explanation of a figure: `ssmspec gates why NAME` prints it for every row whose name contains NAME."""

from collections.abc import Iterator

from ..verdicts.gates import Gates
from ..verdicts.history import Run
from ..verdicts.measured import Results
from ..verdicts.value import sources
from ..verdicts.verdict import Judged
from .bars import Bars, name_of


def explained(j: Judged, gates: Gates, results: Results, bars: Bars, earlier: list[Run]) -> Iterator[str]:
    """Figure, target, operands with file, commit and limit, floor, reason, and the last saved run within its limit."""
    value = "not measured" if j.value is None else f"{j.value:.6g} +- {2 * j.error:.2%}"
    sign = "<=" if j.table.sense == "most" else ">="
    yield f"{j.row.name}: {j.verdict.value}"
    yield f"  figure    {value}, target {sign} {j.target:g}"
    if j.cell.paper is not None:
        yield f"  paper     {j.cell.paper:g}, {j.table.source}, {j.cell.row}, {j.cell.column}"
    if j.cell.figure is not None:
        yield f"  {j.cell.kind:<9} {j.cell.figure:g}: {j.cell.of}"
    yield f"  from      {j.cell.times:g} x {j.cell.tau:g} x over / under, the fastest of each"
    for side, places in (("over", j.cell.over), ("under", j.cell.under)):
        yield from (f"  {side:<9} {place.part}, {place.shape}, {place.operation}, batch {place.batch}" for place in places)
    for place in sources(j.cell):
        name = name_of(place)
        bar, timing = bars.times.get(name), results.timings.get(place)
        now = "not measured" if timing is None else f"{timing['us']:.2f} us +- {timing.get('noise') or 0:.2%}"
        stood = (
            "no limit"
            if bar is None
            else f"limit {bar.us:.2f} us, reached at {bars.commits.get(place.part, 'an unknown commit')[:7]}"
        )
        commit = results.parts[place.part]["machine"]["commit"][:7] if place.part in results.parts else "no commit"
        yield f"  measured  {name}: {now}; {stood}; {results.folder / place.part}.json, made at {commit}"
        good = [run for run in earlier if bar and name in run.times and run.times[name].us <= bar.us * 1.05]
        yield f"  last good {good[-1].name + f', {good[-1].times[name].us:.2f} us' if good else 'no saved run'}"
    yield f"  floor     {'none' if j.floor is None else f'{j.floor:.4g}'}"
    yield f"  reason    {j.table.reason} Weights: {j.table.weights}."
    if j.listed or j.why:
        yield f"  verdict   {j.listed or j.why}"
