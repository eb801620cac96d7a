"""Results of engines, as a table for people and as JSON for programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..progress import files
from .judge import Found
from .laws import LAWS, LOSSLESS, SAME

SHORT = {"not exercised": "-", "not judged": "?", "refused": "refused", "not observable": "not observable"}
UNTOLD = (
    "the engine does not say how many drafts were accepted, and one that drafts nothing would answer the same; "
    "give `drafted` and `accepted` in its answers"
)
WIDEST = 1000
COLOUR = {"passed": "green", "differs": "bold red", "died": "bold red", "near tie": "yellow"}


def show(console: Console, found: Mapping[str, Found]) -> None:
    """A table for each checkpoint, with its failures below; as wide as it is where no terminal says how wide it may be."""
    for model, one in found.items():
        configurations = list(dict.fromkeys(configuration for configuration, _ in one.cells))
        table = Table(title=f"{one.engine or 'no engine'} on {model}", title_justify="left", show_lines=False)
        table.add_column("law")
        for configuration in configurations:
            table.add_column(configuration, justify="right")
        for kind, laws in (("same model", SAME), ("lossless", LOSSLESS)):
            judged = [law for law in laws if any((configuration, law) in one.cells for configuration in configurations)]
            if judged:
                table.add_section()
                table.add_row(Text(f"{kind}:", style="bold"))
            for law in judged:
                table.add_row(f"  {law}", *(cell(one, configuration, law) for configuration in configurations))
        if not console.is_terminal:
            console.width = max(
                console.width, console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
            )
        console.print(table)
        for configuration, why in one.refusals.items():
            style = "red" if configuration in one.named else "dim"
            console.print(Text(f"{configuration}: refused: {why}", style=style), soft_wrap=True)
        if one.not_run:
            told = f"the run stopped early; these configurations were not run: {', '.join(one.not_run)}"
            console.print(Text(told, style="bold yellow"), soft_wrap=True)
        for failure in one.failures:
            console.print(Text(f"{failure.configuration}: {failure.law}: {failure.finding}", style="red"), soft_wrap=True)
            console.print(Text(f"    {LAWS.get(failure.law, '')}", style="dim"), soft_wrap=True)
            for line in (*failure.schedule, failure.explained, failure.rerun):
                if line:
                    console.print(Text(f"    {line}"), soft_wrap=True)
        for configuration in (c for c, law in one.cells if one.outcome(c, law) == "not observable"):
            console.print(Text(f"{configuration}: not observable: {UNTOLD}", style="yellow"), soft_wrap=True)
        for note in one.notes:
            console.print(Text(note, style="yellow"), soft_wrap=True)
        bad = not one.green
        console.print(Text(one.verdict, style="bold red" if bad else "bold yellow" if one.refusals else "bold green"))
        drafts = "; ".join(f"{name} {accepted}/{drafted}" for name, (drafted, accepted) in one.counts.items() if drafted)
        told = f"{one.schedules} schedules, {one.requests} requests, {one.tokens} tokens; drafts accepted: {drafts or 'none'}"
        told += "".join(f"; preempted: {many} times ({name})" for name, many in one.preempted.items() if many)
        console.print(told, style="dim", soft_wrap=True, highlight=False, markup=False)


def cell(found: Found, configuration: str, law: str) -> Text:
    outcome = found.outcome(configuration, law)
    one = found.cells.get((configuration, law))
    if outcome in ("passed", "near tie") and one is not None:
        ties = f" ({one.counts['near tie']} near ties)" if one.counts["near tie"] else ""
        word = "" if outcome == "passed" else f"{outcome} "
        return Text(f"{word}{one.counts['passed']}{ties}", style=COLOUR[outcome])
    return Text(SHORT.get(outcome, outcome), style=COLOUR.get(outcome, "dim"))


def write(path: Path, engine: str, found: Mapping[str, Found], seed: int) -> None:
    """The report as JSON."""
    checkpoints: dict[str, Any] = {}
    for model, one in found.items():
        cells = [
            {"configuration": c, "law": law, "outcome": one.outcome(c, law), "counts": dict(cell.counts)}
            for (c, law), cell in one.cells.items()
        ]
        checkpoints[model] = {
            "engine": one.engine, "green": one.green, "verdict": one.verdict, "cells": cells,
            "failures": [vars(failure) for failure in one.failures],
            "refused": one.refusals, "not_run": one.not_run,
            "schedules": one.schedules, "requests": one.requests, "tokens": one.tokens,
            "drafts": one.counts, "preempted": dict(one.preempted), "notes": one.notes,
        }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps({"format": 1, "engine": engine, "seed": seed, "checkpoints": checkpoints}, indent=1) + "\n")
