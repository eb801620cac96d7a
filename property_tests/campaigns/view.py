"""A campaign on the screen: a line while it runs, tables when it is over."""

from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..drawing.actions import ACTIONS
from ..sessions.features import CLASSES, classes
from ..sessions.totals import Totals, merged

PATTERNS = ("accepted none of the drafts", "accepted some of the drafts", "accepted all drafts",
            "accepted a path that is no prefix", "a run cut behind its acceptance")  # fmt: skip


def line(part: int, before: dict[str, Any], totals: Totals) -> str:
    """Examples, actions, states of the model, kinds of actions, classes of bugs, worst utilisation, over all batches."""
    now = merged([before, {**totals.words(), "worst": None}]) if before["examples"] else totals.words()
    reached = classes_of(now)
    rules = {name for name in now["reached"] if name.startswith("rule ")}
    actions = sum(now["reached"][name] for name in rules)
    most = max(now["used"].values(), default=0.0)
    return (
        f"batch {part}  examples {now['examples']}  actions {actions}  states {states(now)}  "
        f"rules {len(rules)}/{len(calls())}  "
        f"classes {sum(n > 0 for n in reached.values())}/{len(CLASSES)}  worst utilisation {most:.3g}"
    )


def calls() -> set[str]:
    return {action.call for action in ACTIONS.values()}


def states(report: dict[str, Any]) -> int:
    """The number of situations that occurred, without tokens (`Ledger.situation`)."""
    return sum(name.startswith("state ") for name in report["reached"])


def classes_of(report: dict[str, Any]) -> dict[str, int]:
    return classes(Counter(report["reached"]))


def rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The coverage of a campaign: kind, name, count."""
    reached = report["reached"]
    found = [("rule", name, str(reached.get(f"rule {name}", 0))) for name in sorted(calls())]
    found += [("states of the model", "slots taken, sequences that wait, window pending", str(states(report)))]
    found += [("acceptance", name, str(reached.get(name, 0))) for name in PATTERNS]
    found += [("bug class", name, str(count)) for name, count in classes_of(report).items()]
    pairs = [count for name, count in reached.items() if name.startswith("from ")]
    found += [("handed over", f"between {len(pairs)} pairs of decodings", str(sum(pairs)))]
    found += [("decoding", name, str(count)) for name, count in sorted(report["decodings"].items())]
    return found


def show(console: Console, report: dict[str, Any]) -> None:
    table = Table("", "reached", "times", title="What the campaign reached")
    for kind, name, count in rows(report):
        table.add_row(kind, name, f"[red]{count}[/red]" if count == "0" else count)
    console.print(table)
    show_used(console, report)


def show_used(console: Console, report: dict[str, Any]) -> None:
    """How close values came to their bounds, how much was done, and the failures."""
    used = Table("decoding and value", "worst utilisation of its bound")
    for label, most in worst(report):
        used.add_row(label, f"{most:.3g}")
    console.print(used)
    if report.get("branches"):
        branches = Table("file of the oracle", "branches reached")
        for name, share in report["branches"].items():
            branches.add_row(name, share)
        console.print(branches)
    console.print(ended(report))
    for folder in report.get("unfinished", []):
        console.print(f"[red]unfinished[/red]: {escape(folder)}; run its campaign again to continue it", soft_wrap=True)
    for wrong in report.get("unread", []):
        console.print(f"[red]not read[/red]: {escape(wrong)}", soft_wrap=True)


def ended(report: dict[str, Any]) -> str:
    """How much was done, and the failures."""
    failed = len(report.get("failures", []))
    return f"{report['examples']} examples in {report['parts']} batches, {report['seconds']:.0f} s, {failed} failures"


def worst(report: dict[str, Any]) -> list[tuple[str, float]]:
    """The kinds of values that came closest to their bounds."""
    return sorted(report["used"].items(), key=lambda item: -item[1])[:10]


def markdown(report: dict[str, Any]) -> str:
    """The same as a page."""
    lines = [
        f"{ended(report)}.",
        "",
        "| | reached | times |",
        "|---|---|---:|",
        *(f"| {kind} | {name} | {count} |" for kind, name, count in rows(report)),
    ]
    lines += ["", "| decoding and value | worst utilisation |", "|---|---:|"]
    lines += [f"| {label} | {most:.3g} |" for label, most in worst(report)]
    if report.get("branches"):
        lines += ["", "| file of the oracle | branches |", "|---|---:|"]
        lines += [f"| {name} | {share} |" for name, share in report["branches"].items()]
    lines += [f"\nUnfinished: {folder}" for folder in report.get("unfinished", [])]
    lines += [f"\nNot read: {wrong}" for wrong in report.get("unread", [])]
    return "\n".join(lines) + "\n"
