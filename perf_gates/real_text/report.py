"""The tables of a run as text, the targets, and the picture: `docs/real-text.md` holds them between two marks."""

from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from .. import files
from ..files import head
from ..report.page_section import PageSection
from .runs import Row
from .texts import AT_LEAST
from .ways import CHOSEN, FORCED, PLAIN

MADE = PageSection("real text")
PAGE, PICTURE = Path("docs/real-text.md"), Path("docs/pictures/real-text.svg")
TITLES = {
    "a": "Recorded outputs, forced on Mamba2-2.7B's shape, one H200",
    "b": "A target of 127M and its drafters, trained for minutes, one H200",
    "c": "The model that ships, one thread of a CPU",
}
GAIN_A, GAIN_B, GAIN_C, NO_LOSS, OF_BETTER = 1.5, 1.3, 1.2, 0.98, 0.95
"""Targets: recorded outputs with AT_LEAST tokens a step, greedy, batch 1, forced; drafts by a model, greedy, batch 1;
edited code; chosen over plain; chosen over the better of plain and forced."""


def file_of(folder: Path, part: str) -> Path:
    return folder / f"real_text_{part}.json"


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The parts of a folder, with their rows as records."""
    found = {part: held for part in TITLES if (held := files.read(file_of(folder, part)))}
    return {part: held | {"rows": [Row(**row) for row in held["rows"]]} for part, held in found.items()}


def plain_of(row: Row, rows: Sequence[Row]) -> Row:
    """Plain decoding of the same texts and batch, at the same temperature."""
    return next(
        r for r in rows if r.how == PLAIN and (r.texts, r.batch, r.temperature) == (row.texts, row.batch, row.temperature)
    )


def twin(row: Row, rows: Sequence[Row]) -> Row | None:
    """The same way, chosen."""
    same = (row.texts, row.way, row.batch, row.temperature, row.rule)
    return next((r for r in rows if r.how == CHOSEN and (r.texts, r.way, r.batch, r.temperature, r.rule) == same), None)


def gain(row: Row | None, rows: Sequence[Row]) -> float:
    return float("nan") if row is None else row.speed / plain_of(row, rows).speed


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each way: plain decoding's tokens a second, and the speed-ups, forced and chosen."""
    yield from head("texts | batch | T | drafts | tokens/s, plain | tau | forced | chosen | compared | different")
    for row in rows:
        if row.how != FORCED:
            continue
        other, plain = twin(row, rows), plain_of(row, rows)
        both = [r for r in (row, other) if r is not None]
        how = f"{row.way}, {row.rule}" if row.temperature else row.way
        compared = "law" if row.different is None else f"{sum(r.compared for r in both):,}"
        differ = "" if row.different is None else different(both)
        speeds = f"{plain.speed:.0f} | {row.tau:.2f} | {gain(row, rows):.2f} | {gain(other, rows):.2f}"
        yield f"| {row.texts} | {row.batch} | {row.temperature:g} | {how} | {speeds} | {compared} | {differ} |"


def different(rows: Sequence[Row]) -> str:
    count, ties = sum(row.different or 0 for row in rows), sum(row.ties for row in rows)
    far = [distance for row in rows for _, _, distance in row.differences if not distance <= 1]
    beyond = f" ({', '.join(f'{distance:.2g}' for distance in sorted(far))} times the rounding)" if far else ""
    return f"{count}{beyond}{f', {ties} near ties' if ties else ''}"


def targets(part: str, held: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Each target: what was measured, and whether it is reached."""
    rows: list[Row] = held["rows"]
    pairs = [(r, c) for r in rows if r.how == FORCED and (c := twin(r, rows)) is not None]
    yield from OWN[part](held)
    if pairs:
        least = min(pairs, key=lambda pair: gain(pair[1], rows))
        value = gain(least[1], rows)
        said = f"chosen, the least of {len(pairs)} rows: {value:.2f} times plain decoding ({named(least[1])})"
        yield f"{said}, at least {NO_LOSS}", value >= NO_LOSS
        shares = [(gain(c, rows) / max(1.0, gain(r, rows)), c) for r, c in pairs]
        share, row = min(shares, key=lambda pair: pair[0])
        said = f"chosen over the better of plain and forced, the least: {share:.2f} ({named(row)})"
        yield f"{said}, at least {OF_BETTER}", share >= OF_BETTER
    count = sum(r.different or 0 for r in rows)
    yield f"texts that differ from plain decoding other than by rounding: {count}, none", count == 0


def of_a(held: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Text by text at batch 1: those with many tokens a step, and the least of all when chosen."""
    rows, texts = held["rows"], held["about"].get("texts of batch 1", [])
    alone = [
        r for r in rows if r.batch == 1 and r.temperature == 0 and r.way.startswith("n-gram, chain") and "ring" not in r.way
    ]
    plain = next((r for r in rows if r.how == PLAIN and r.batch == 1 and r.temperature == 0), None)
    if plain is None or len(alone) < 2:
        return
    by = {r.how: [p[0] / s[0] for p, s in zip(plain.each, r.each, strict=True)] for r in alone}
    many = [g for g, (_, tau, _) in zip(by[FORCED], texts, strict=False) if tau >= AT_LEAST]
    if many:
        said = f"{len(many)} outputs with {AT_LEAST} tokens a step or more, n-gram, greedy, batch 1"
        between = f"{min(many):.2f} to {max(many):.2f} times plain decoding (median {median(many):.2f})"
        yield f"{said}: {between}, each at least {GAIN_A}", min(many) >= GAIN_A
    yield (
        f"the same chosen, the least of {len(by[CHOSEN])} outputs: {min(by[CHOSEN]):.2f}, at least {NO_LOSS}",
        min(by[CHOSEN]) >= NO_LOSS,
    )


def of_b(held: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    rows = [
        r for r in held["rows"] if r.how == FORCED and r.batch == 1 and r.temperature == 0 and r.way.startswith("drafter")
    ]
    best = max((gain(r, held["rows"]) for r in rows), default=0.0)
    yield f"drafts by a model, greedy, batch 1: {best:.2f} times plain decoding, at least {GAIN_B}", best >= GAIN_B


def of_c(held: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    rows = [r for r in held["rows"] if r.how == CHOSEN and r.batch == 1 and r.texts == "edited code"]
    best = max((gain(r, held["rows"]) for r in rows), default=0.0)
    yield f"n-grams on edited code, chosen, batch 1: {best:.2f} times plain decoding, at least {GAIN_C}", best >= GAIN_C


OWN = {"a": of_a, "b": of_b, "c": of_c}
"""The targets of one part alone."""


def named(row: Row) -> str:
    return f"{row.texts}, batch {row.batch}, T {row.temperature:g}, {row.way}, {row.rule}"


def text(parts: dict[str, dict[str, Any]]) -> str:
    """All tables as Markdown."""
    lines: list[str] = []
    for part, title in TITLES.items():
        lines += [f"## {part}. {title}", ""]
        if part not in parts:
            lines += ["Not measured.", ""]
            continue
        held = parts[part]
        lines += [*about(part, held), "", *table(held["rows"]), "", "Targets:", ""]
        lines += [f"- {'reached' if reached else '**missed**'}: {said}" for said, reached in targets(part, held)]
        if held["skipped"]:
            lines += ["", f"Not reached in the time: {len(held['skipped'])} rows or texts, the first: {held['skipped'][0]}."]
        lines += [""]
    return "\n".join(lines).strip()


def about(part: str, held: dict[str, Any]) -> Iterator[str]:
    """What a part was made with."""
    machine, noise = held["machine"], max((row.noise for row in held["rows"]), default=0.0)
    yield (
        f"Measured on {machine['name']}, torch {machine['torch']}, commit {machine['commit'][:8]}; plain decoding differs by "
        f"at most {noise:.1%} between two runs of a text."
    )
    yield from SAID.get(part, lambda _: iter(()))(held["about"])


def outputs_of(a: dict[str, Any]) -> Iterator[str]:
    counted, forcing = a["counted"], a.get("forcing", {"share": float("nan")})
    yield (
        f"{a['outputs']} recorded outputs of {a['length']} tokens or more, cut to that; a token is a {a['tokens']}. "
        f"With chains of {counted['drafts']} n-gram drafts {a['share']:.0%} of them emit {counted['at least']} tokens a "
        f"step or more, all of them {a['tau']:.2f} on average; {a['loops']} end in a loop. Forcing adds "
        f"{forcing['share']:.1%} to a plain step."
    )


def training_of(a: dict[str, Any]) -> Iterator[str]:
    for run in a["runs"]:
        yield (
            f"{run['name']}: {run['layers']} layers of {run['width']}, {run['parameters'] / 1e6:.1f}M, {run['steps']} "
            f"steps of {run['rows']} x {run['length']} tokens in {run['seconds']:.0f} s, seed {run['seed']}; "
            f"{run['held out']:.3f} nats a token on held-out files."
        )
    yield f"Text: {a['text']}: {a['files']:,} files, {a['tokens in all']:,} tokens ({a['tokens']})."


SAID = {"a": outputs_of, "b": training_of}


def picture(parts: dict[str, dict[str, Any]]) -> str:
    """Bars for greedy decoding of one sequence: the speed-up, forced and chosen, of each part; the line is plain decoding."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "ssmspec", "font.size": 9, "svg.fonttype": "none"}):
        bars = [
            (part, f"{row.way} ({row.texts})", gain(row, held["rows"]), gain(twin(row, held["rows"]), held["rows"]))
            for part, held in parts.items() for row in held["rows"]
            if row.how == FORCED and row.batch == 1 and row.temperature == 0
        ]  # fmt: skip
        figure, axes = plt.subplots(figsize=(8, 1 + 0.34 * max(1, len(bars))), layout="constrained")
        places = range(len(bars))
        axes.barh([n - 0.18 for n in places], [bar[2] for bar in bars], 0.34, label="always drafting", color="#9db7d5")
        axes.barh(
            [n + 0.18 for n in places],
            [bar[3] for bar in bars],
            0.34,
            label="drafting when the engine chooses to",
            color="#1f5a96",
        )
        axes.set_yticks(list(places), [f"{part}  {name}" for part, name, _, _ in bars])
        axes.axvline(1.0, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set_xlabel("tokens a second over plain decoding (the line); one sequence, greedy")
        axes.legend(frameon=False, loc="lower right")
        held = StringIO()
        figure.savefig(held, format="svg", metadata={"Date": None})
        plt.close(figure)
    return "\n".join(line.rstrip() for line in held.getvalue().splitlines()) + "\n"
