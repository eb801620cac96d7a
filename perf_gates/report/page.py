"""One HTML page of a run, with its plots: `ssmspec gates page`. The plots are also saved as SVG, for the documents.

roofline      bytes of a launch against its time, with the copy bandwidth and the empty launch of the run
ratios        our value over the target of each cell of the papers' tables, and kernels over the peers' of their kind
cost          time over the tokens of a window or tree, with the least squares of `ssmspec_ref.cost`
throughput    tokens a second of the recurrence alone, over the rows of a batch
steps         whole steps of an engine in plain steps, over the tokens of a window or tree, with the same least squares
sequences     tokens a second of an engine over the sequences of a batch, plain and with drafts at a stated tau
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator, StrMethodFormatter

from ssmspec_ref.cost import fit

from ..verdicts import served
from ..verdicts.measured import At, Results
from ..verdicts.targets import ROUTES, SHAPES
from ..verdicts.verdict import Judged
from .paper_table import row

COST_BATCH = 16
NAMES = ("roofline", "ratios", "cost", "throughput", "steps", "sequences")
MODEL = "mamba2-2.7b"
RCPARAMS: dict[Any, Any] = {
    "svg.hashsalt": "ssmspec",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "svg.fonttype": "none",
}
STYLE = (
    "body{font:15px sans-serif;max-width:70em;margin:2em auto}td,th{padding:.1em .6em;text-align:left}"
    "td+td{white-space:nowrap}.FAIL{color:#b00}"
)


def write(results: Path, out: Path, judged: Sequence[Judged]) -> Iterator[Path]:
    """Writes the pictures, then the page."""
    out.mkdir(parents=True, exist_ok=True)
    read = Results(results)
    pictures = {name: drawn(DRAW[name], read, judged) for name in NAMES}
    for name, svg in pictures.items():
        file = out / f"{name}.svg"
        file.write_text(svg)
        yield file
    file = out / "performance.html"
    file.write_text(html(read, pictures, judged))
    yield file


def drawn(draw: Callable[[Any, Results, Sequence[Judged]], None], results: Results, judged: Sequence[Judged]) -> str:
    """A plot as SVG; equal results give equal text."""
    with mpl.rc_context(RCPARAMS):
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        draw(axes, results, judged)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def roofline(axes: Any, results: Results, _: Sequence[Judged]) -> None:
    timed = [(at, t) for at, t in results.timings.items() if at.part == "steps" and t["bytes"]]
    for shape in SHAPES:
        own = [(t["bytes"] / 1e6, t["us"]) for at, t in timed if at.shape == shape]
        if own:
            axes.scatter(*zip(*own, strict=True), s=12, label=shape)
    machine = results.parts.get("steps", {}).get("machine")
    if machine and timed:
        ends = [min(t["bytes"] for _, t in timed), max(t["bytes"] for _, t in timed)]
        line = [b / machine["copy_bytes_per_us"] + machine["empty_launch_us"] for b in ends]
        axes.plot([b / 1e6 for b in ends], line, color="black", lw=1, label="bytes at copy bandwidth, one launch")
    axes.set(xscale="log", yscale="log", xlabel="bytes of a launch, MB", ylabel="us", title="Roofline")
    legend(axes)


def ratios(axes: Any, results: Results, judged: Sequence[Judged]) -> None:
    """A line for each table and each peer's kernel, a point for each cell; right of 1 is better."""
    names: dict[str, None] = {}

    def dot(name: str, gain: float, marker: str, color: str) -> None:
        names.setdefault(name)
        axes.plot(gain, list(names).index(name), marker, color=color, ms=4, alpha=0.7)

    for j in judged:
        if j.value is not None:
            for marked, marker, color in ((j.target, "o", "tab:blue"), (j.cell.paper, "^", "tab:orange")):
                if marked is not None:
                    gain = marked / j.value if j.table.sense == "most" else j.value / marked
                    dot(j.table.id, gain, marker, color)
    for name, gain in peers(results):
        dot(name, gain, "s", "tab:green")
    axes.axvline(1, color="black", lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-1, len(names))
    axes.figure.set_figheight(max(5, 1 + 0.17 * len(names)))  # a line of text for each name
    axes.set(xscale="log", xlabel="better than the target (circles), the paper (triangles), the peer's kernel (squares)")


def peers(results: Results) -> Iterator[tuple[str, float]]:
    """The peer's time over ours, for every kernel that was timed together with one."""
    for at, timing in results.timings.items():
        name, _, who = at.operation.rpartition(", ")
        alike = "ours in bf16" if at.part == "prefill" else "ours"
        ours = At(at.part, at.shape, f"{name}, {alike}", at.batch)
        if name.startswith("buffered"):
            ours = At("buffered", at.shape, f"{name} output only, aligned", at.batch)
        if at.part in ("peers", "prefill") and not who.startswith("ours") and ours in results.timings:
            yield f"{who}: {name}", timing["us"] / results.us(ours)


def points(results: Results, shape: str, batch: int) -> list[tuple[int, float]]:
    """Tokens and times of kernels that read the state and write none: a window of 5, by its faster version, and three
    trees."""
    names = {5: [f"window of 5, {route}" for route in ROUTES]} | {n: [f"tree of {n}"] for n in (13, 15, 63)}
    found = {tokens: [At("steps", shape, name, batch) for name in own] for tokens, own in names.items()}
    return [(n, min(map(results.us, own))) for n, own in found.items() if all(at in results.timings for at in own)]


def fitted(axes: Any, known: Sequence[tuple[int, float]], name: str, digits: tuple[int, int]) -> None:
    """Points of tokens and times, with the least-squares line for three or more; `digits` of slope and constant."""
    if len(known) < 3:
        return
    tokens, times = zip(*known, strict=True)
    line = fit(tokens, times, 1)
    label = f"{name}: {line.linear:.{digits[0]}f} N + {line.fixed:.{digits[1]}f}"
    (dots,) = axes.plot(tokens, times, "o", label=label)
    axes.plot(tokens, [line(n) for n in tokens], color=dots.get_color(), lw=1)


def cost(axes: Any, results: Results, _: Sequence[Judged]) -> None:
    for shape in SHAPES:
        fitted(axes, points(results, shape, COST_BATCH), shape, (2, 1))
    title = "Cost of a verification, no state written"
    axes.set(xlabel="tokens of a window, nodes of a tree", ylabel=f"us, {COST_BATCH} rows", title=title)
    legend(axes)


def throughput(axes: Any, results: Results, _: Sequence[Judged]) -> None:
    rows: set[int] = set()
    for i, shape in enumerate(SHAPES):
        for operation, style in {"step": "-", "buffered L=16 output only, aligned": "--"}.items():
            own = {at.batch: at.batch / t["us"] for at, t in results.timings.items() if of_batches(at, shape, operation)}
            if own:
                label = f"{shape}, {operation.split(' output')[0]}"
                axes.plot(*zip(*sorted(own.items()), strict=True), style, marker=".", color=f"C{i}", label=label)
                rows |= own.keys()
    axes.set(
        xscale="log", yscale="log", xlabel="rows", ylabel="tokens a microsecond, one layer", title="Throughput over batch"
    )
    sized(axes, rows)
    legend(axes)


def sized(axes: Any, sizes: Iterable[int]) -> None:
    """Logarithmic axes with plain numbers as ticks: the measured sizes, and any y."""
    ticks = sorted(set(sizes))
    axes.set_xticks(ticks, ticks)
    axes.xaxis.set_minor_locator(NullLocator())
    for told in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        told(StrMethodFormatter("{x:g}"))


def of_batches(at: At, shape: str, operation: str) -> bool:
    return at.part in ("buffered", "buffered_delta") and (at.shape, at.operation) == (shape, operation)


def in_plain_steps(results: Results, method: str, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Tokens of a window, or nodes of a tree, and the time of the step over a plain one's, for the measured sizes."""
    shape = "tree" if method == "tree" else "window"
    at = {n: At("bench", MODEL, f"{method}, {shape} of {n}", 1) for n in sizes}
    plain = At("bench", MODEL, served.PLAIN, 1)
    if plain not in results.timings:
        return []
    return [(n, results.us(place) / results.us(plain)) for n, place in at.items() if place in results.timings]


def steps(axes: Any, results: Results, _: Sequence[Judged]) -> None:
    windows, trees = (2, 3, 5, 7, 9), (13, 15, 63)
    for method, sizes in {"replay": windows, "joint": windows, "tree": trees}.items():
        fitted(axes, in_plain_steps(results, method, sizes), method, (4, 2))
    axes.axhline(1, color="black", lw=1)
    axes.set(
        xscale="log", xlabel="tokens of a window, nodes of a tree", ylabel="plain steps", title=f"A step of {MODEL}, batch 1"
    )
    sized(axes, windows + trees)
    legend(axes)


def sequences(axes: Any, results: Results, _: Sequence[Judged]) -> None:
    for name, tau in ((served.PLAIN, 1.0), (served.SPECULATIVE, served.TAU)):
        at = {b: At("bench", MODEL, name, b) for b in served.BATCHES}
        known = [(b, 1e6 * tau * b / results.us(place)) for b, place in at.items() if place in results.timings]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", label=name if tau == 1 else f"{name}, tau {tau}")
    axes.set(xscale="log", yscale="log", xlabel="sequences", ylabel="tokens a second", title=f"{MODEL}, drafting counted")
    sized(axes, served.BATCHES)
    legend(axes)


def legend(axes: Any) -> None:
    """A legend, if anything was drawn."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


DRAW: dict[str, Callable[[Any, Results, Sequence[Judged]], None]] = {
    "roofline": roofline,
    "ratios": ratios,
    "cost": cost,
    "throughput": throughput,
    "steps": steps,
    "sequences": sequences,
}


def html(results: Results, pictures: dict[str, str], judged: Sequence[Judged]) -> str:
    """The page: the machine, the plots, every cell."""
    made: dict[str, list[str]] = defaultdict(list)
    for part, found in results.parts.items():
        m = found["machine"]
        made[f"{m['gpu']}, torch {m['torch']}, Triton {m['triton']}, kernels {m['kernels']}"].append(part)
    told = "; ".join(f"{machine}: {', '.join(parts)}" for machine, parts in made.items())
    head = "".join(
        f"<th>{name}</th>" for name in ("", "paper", "other figure", "target", "ours", "floor", "verdict", "table")
    )
    plots = "\n".join(svg[svg.index("<svg") :] for svg in pictures.values())
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Performance</title><style>{STYLE}</style>\n"
        f"<h1>Performance</h1><p>{escape(told)}</p>\n{plots}\n"
        f"<table><tr>{head}</tr>\n{''.join(map(shown, judged))}</table></html>\n"
    )


def shown(judged: Judged) -> str:
    """A cell as a row of the page's table."""
    columns = [cell.strip() for cell in row(judged).strip("|").split("|")] + [judged.table.source]
    return f"<tr class='{judged.verdict.value}'>{''.join(f'<td>{escape(cell)}</td>' for cell in columns)}</tr>\n"
