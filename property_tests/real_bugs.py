"""Real bugs of engines, and what here has their mechanism: planted faults, fuzzing laws, or nothing, with the reason.

    python -m property_tests.real_bugs --out docs/evidence/real-bugs.md

Each table of `conformance/faults/threads/*.toml` is one bug, named by its number in the list of 164:

    [a17]
    thread = "https://github.com/ggml-org/llama.cpp/pull/15625"
    state = "merged"                                       # of `STATES`
    bug_class = "GROUP-MAP"                                # of `conformance.faults.classes`
    says = "Heads take their groups in turn instead of in blocks."
    faults = ["group_map"]                                 # of `conformance.faults.catalogue`
    laws = ["repeated_groups/takes_groups_in_turn"]        # a law, and the fault with the mechanism that it finds
    none = "..."                                           # or a reason of `REASONS` instead of both

A fault is listed if its code does in small what the thread says went wrong, not if it only has the same effect.
"""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

import conformance
from conformance.faults.catalogue import FAULTS
from conformance.faults.classes import CLASSES
from conformance.main import run_command
from conformance.report.stream import Model

from .laws.decoder_laws import DECODER_LAWS
from .laws.recurrence_laws import LAWS

FOLDER = Path(conformance.__file__).parent / "faults" / "threads"
LINK = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")
FOUND: dict[str, frozenset[str]] = {law.name: frozenset(law.kills) for law in (*LAWS, *DECODER_LAWS)}
"""The laws, each with the faults that it finds; tested."""
SECTION = 3
"""Projects with this many bugs have their own section."""

STATES = {
    "merged": "the fix was merged",
    "proposed": "a pull request, open or closed",
    "reported": "an issue or a comment with an analysis",
    "reviewed": "found in review; it may never have shipped",
}
REASONS = {
    "unclear": "the thread does not say what was wrong, or how it ended",
    "prefix": "checkpoints inside a prompt and prefix caches: no operation gives a state inside a prompt",
    "blocks": "pages, blocks and pools of a cache, and their tables: caches come as rows of slots",
    "batches": "how an engine tracks its batches and captured graphs: operations get live rows only",
    "bounds": "reads and writes outside an array, and races: watched in Triton's interpreter, for our kernels only",
    "devices": "shards and stages on several devices: every operation runs on one",
    "drafter": "the cache and the length of a draft model: drafts are given",
    "rows": "settings that differ from row to row: one setting is for all rows",
    "noise": "how an implementation makes its random numbers: noise is given",
    "history": "counts that are carried from step to step: the whole history is given",
    "counters": "what an engine counts for its statistics",
    "option": "an option or a layout that no operation has",
    "malformed": "the suite gives no input that must be refused",
    "grammar": "no operation takes the mask of a constraint",
}
"""Why no fault or law is listed."""


class MalformedBug(Exception):
    """A bug with unknown names, or with too few or too many fields; the message says which."""


class Bug(Model):
    """One bug: its thread, its class, what went wrong, and what has its mechanism here."""

    name: str
    thread: str
    state: str
    bug_class: str
    says: str
    faults: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    none: str = ""

    @property
    def project(self) -> str:
        return str(self._link[1])

    @property
    def number(self) -> int:
        return int(self._link[2])

    @property
    def _link(self) -> re.Match[str]:
        found = LINK.fullmatch(self.thread)
        if found is None:
            raise MalformedBug(
                f"{self.name}: {self.thread!r} is not the address of an issue or pull request; give the whole address"
            )
        return found

    @property
    def held(self) -> str:
        """What covers the bug, for counting."""
        return "fault" if self.faults else "law" if self.laws else "none"


def read(folder: Path = FOLDER) -> tuple[Bug, ...]:
    """Every bug, in order. Raises: MalformedBug."""
    files = sorted(folder.glob("*.toml"))
    given = [(name, table) for file in files for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items()]
    twice = [name for name, count in Counter(name for name, _ in given).items() if count > 1]
    if twice or not given:
        raise MalformedBug(f"{', '.join(twice) or 'nothing'} in {folder}; each bug has one table")
    return tuple(sorted((bug(name, table) for name, table in given), key=lambda b: b.name))


def bug(name: str, table: dict[str, Any]) -> Bug:
    """One table. Raises: MalformedBug for unknown or repeated names, or unless it has exactly one of an answer and a
    reason."""
    try:
        found = Bug(name=name, **table)
    except (ValidationError, TypeError) as error:
        raise MalformedBug(f"{name}: {error}") from error
    planted = {f.name for f in FAULTS}
    wrong = [f"no fault {f}" for f in found.faults if f not in planted]
    wrong += [f"no law {law} that finds it" for law in found.laws if not finds(law)]
    wrong += [f"{named} twice" for named, count in Counter(found.faults + found.laws).items() if count > 1]
    reason = [(found.none, REASONS)] if found.none else []
    for value, allowed in ((found.bug_class, CLASSES), (found.state, STATES), *reason):
        wrong += [] if value in allowed else [f"{value!r} is none of {', '.join(allowed)}"]
    if bool(found.faults or found.laws) == bool(found.none):
        wrong.append("give faults or laws, or else a reason in `none`")
    if not found.says.endswith(".") or "|" in found.says or not found.number:
        wrong.append("`says` is a sentence that a table can hold")
    if wrong:
        raise MalformedBug(f"{name}: {'; '.join(wrong)}")
    return found


def finds(law: str) -> bool:
    """Whether there is a law that finds the fault after the slash."""
    name, _, fault = law.partition("/")
    return fault in FOUND.get(name, frozenset())


def markdown(bugs: Sequence[Bug]) -> str:
    """The page, committed."""
    held = Counter(b.held for b in bugs)
    also = sum(bool(b.faults and b.laws) for b in bugs)
    threads, projects = {b.thread for b in bugs}, Counter(b.project for b in bugs)
    lines = [
        "# Real bugs, and whether they would be caught",
        "",
        "Made by `python -m property_tests.real_bugs --out docs/evidence/real-bugs.md` from `conformance/faults/threads`.",
        "",
        f"{len(bugs)} bugs of decoding and speculation, from {len(threads)} public threads of",
        f"{len(projects)} projects. For each bug:",
        "a planted fault with the same mechanism, a law of the fuzzing that finds such a fault, or the",
        "reason why there is neither.",
        "The causes are those that the threads state; the projects were not run at that version.",
        "[faults.md](faults.md) shows that",
        "the planted faults are caught, [fuzzing](../fuzzing.md) that the laws find theirs, and",
        "[not-tested.md](not-tested.md) lists",
        "what is left open.",
        "",
        f"- **{held['fault']} of {len(bugs)} have a planted fault with the same mechanism**, which cases of the suite catch;",
        f"  for {also} of them a law of the fuzzing finds such a fault too",
        f"- **{held['law']} have none, but a law of the fuzzing finds a fault with their mechanism**",
        f"- **{held['none']} have neither**:",
        "",
        "| why | bugs |",
        "|---|---:|",
        *(f"| {REASONS[why]} | {n} |" for why, n in Counter(b.none for b in bugs if b.none).most_common()),
        "",
        "| class | bugs | fault | law only | neither |",
        "|---|---:|---:|---:|---:|",
        *(counted(name, own) for name in CLASSES if (own := [b for b in bugs if b.bug_class == name])),
        "",
        "States, in the third column below: " + "; ".join(f"{state}, {told}" for state, told in STATES.items()) + ".",
    ]
    sections = sorted((p for p, n in projects.items() if n >= SECTION), key=str.lower)
    for project in sections:
        lines += ["", f"## {project}", "", *rows((b for b in bugs if b.project == project), named=False)]
    lines += ["", "## Other projects", "", *rows((b for b in bugs if b.project not in sections), named=True)]
    return "\n".join(lines) + "\n"


def counted(name: str, own: Sequence[Bug]) -> str:
    held = Counter(b.held for b in own)
    return f"| {name} | {len(own)} | {held['fault']} | {held['law']} | {held['none']} |"


def rows(bugs: Iterable[Bug], named: bool) -> list[str]:
    """The table of a section; `named` writes threads with their project."""
    lines = ["| thread | class | state | what went wrong | what has its mechanism |", "|---|---|---|---|---|"]
    for b in sorted(bugs, key=lambda b: (b.project.lower() if named else "", b.number, b.name)):
        said = f"{b.project if named else ''}#{b.number}"
        lines.append(f"| [{said}]({b.thread}) | {b.bug_class} | {b.state} | {b.says} | {answer(b)} |")
    return lines


def answer(b: Bug) -> str:
    """The faults, then the laws; or why there are none."""
    of = {f.name: f"[`{f.name}`](faults.md#{f.bug_class.lower()})" for f in FAULTS}
    faults, laws = ", ".join(of[name] for name in b.faults), ", ".join(law(named) for named in b.laws)
    return "; ".join(part for part in (faults, laws) if part) or f"none: {REASONS[b.none].split(':')[0]}"


def law(named: str) -> str:
    name, _, fault = named.partition("/")
    return f"law [`{name}`](../fuzzing.md#laws) by `{fault}`"


def main(out: Annotated[Path | None, typer.Option(help="Write the page to this Markdown file.")] = None) -> None:
    """Counts the bugs with a fault, a law or neither. Exits with 1 if a name is wrong, and says which."""
    try:
        bugs = read()
    except MalformedBug as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    held = Counter(b.held for b in bugs)
    typer.echo(f"{len(bugs)} bugs: {held['fault']} with a fault, {held['law']} with a law only, {held['none']} with neither")
    if out:
        out.write_text(markdown(bugs), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_command(main))
