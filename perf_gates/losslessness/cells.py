"""The table that says whether speculation equals plain decoding: its cells, their verdicts, and when it is valid.

A cell counts its windows by how much of them was accepted. It is starved, and so shows nothing, unless none, some and
all each are at least 5 % of them. A cell whose method does not support its drafter is inapplicable, with the reason. Plain
decoding has its own cell for each model and mode, where it is compared with transformers (`reference_logits`).
"""

import functools
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssmspec_ref.near_ties import MOST, NearTie, first_difference, near_tie

from ..digest import record
from ..files import head

MODELS = ("mamba2", "hybrid", "delta", "llama")
PLAIN, FORETOLD = "plain", "transformers"
METHODS = (PLAIN, "activation-replay", "replay-buffer", "snapshots", "joint", "joint-by-lag", "tree")
DRAFTERS: dict[str, dict[str, Any]] = {
    "mamba2": {"drafter": "mamba2-drafter", "drafts": 3},
    "mamba2 tree 2,2,1": {"drafter": "mamba2-drafter", "tree": "2,2,1"},
    "ngram": {"drafter": "ngram+bigram", "drafts": 3},
    "lookup": {"drafter": "lookup", "drafts": 4},
    "ngram rows": {"drafter": "ngram+bigram", "drafts": 3, "rows": 4},
    "ngram tree": {"drafter": "ngram+bigram", "drafts": 3, "tree": "4"},
    "mamba1": {"drafter": "mamba1-drafter", "drafts": 3},
    "bpe, by text": {"drafter": "bpe-drafter", "drafts": 3},
    "mamba2 at 25 %": {"drafter": "mamba2-drafter-25", "drafts": 3},
    "mamba2 at 5 %": {"drafter": "mamba2-drafter-05", "drafts": 3},
    "mamba2 tree A": {"drafter": "mamba2-drafter", "tree": "a"},
    "mamba2 beams 2x3": {"drafter": "mamba2-drafter", "tree": "2x3"},
    "mamba2 at 5 %, bandit": {"drafter": "mamba2-drafter-05", "tree": "1,1/2,1/3,2,1"},
}
MODES = ("bitwise", "fast")
SHARE = 0.05
CARRIED = Path(__file__).parents[1] / "checkpoints.toml"
PASSED = ("identical", "near ties", "inapplicable")

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Cell:
    """One row of the table. `windows` counts none, some and all accepted; `ties` the excused tokens; `beside` names
    the other program, if it was not the engine."""

    model: str
    method: str
    drafter: str
    mode: str
    outcome: str
    reason: str = ""
    compared: int = 0
    ties: int = 0
    windows: tuple[int, int, int] = (0, 0, 0)
    tau: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    kernels: str = ""
    checkpoints: str = ""
    beside: str = ""

    @property
    def key(self) -> Key:
        return self.model, self.method, self.drafter, self.mode


def keys(models: Sequence[str], methods: Sequence[str], drafters: Sequence[str], modes: Sequence[str]) -> Iterator[Key]:
    """Every cell; all of the stricter mode first, and each drafter with every method on every model."""
    for mode in modes:
        for drafter in (FORETOLD, *drafters):
            for method in methods:
                if (drafter == FORETOLD) == (method == PLAIN):
                    yield from ((model, method, drafter, mode) for model in models)


def compare(plain: Any, spoken: Any, exact: Any, fast: bool) -> tuple[str, str, int, int]:
    """Outcome, reason, tokens compared, tokens excused. `exact(n)`: the float64 logits of plain's tokens of request n."""
    compared = ties = 0
    for n, (ours, theirs) in enumerate(zip(plain.tokens, spoken.tokens, strict=True)):
        at = first_difference(ours, theirs)
        compared += len(ours) if at is None else at + 1
        if at is None:
            continue
        if not fast:
            return "differs", f"prompt {n}, token {at}", compared, ties
        if at >= min(len(ours), len(theirs)):
            return "differs", f"prompt {n} ends at token {at}", compared, ties
        rows = (plain.logits[n][: at + 1], spoken.logits[n][: at + 1], exact(n)[: at + 1])
        found: NearTie = near_tie(*rows, (ours[at], theirs[at]))
        if not found.excused:
            return "differs", f"prompt {n}, token {at}: margin {found.margin:.3g}, errors {found.errors}", compared, ties
        ties += 1
    return ("near ties" if ties else "identical"), "", compared, ties


def judge(outcome: str, reason: str, compared: int, ties: int, windows: Sequence[int] | None, fp32: bool) -> tuple[str, str]:
    """The outcome after the limits on near ties and on the windows (None: nothing was drafted)."""
    if outcome == "differs":
        return outcome, reason
    if fp32 and not ties <= MOST * compared:
        return "differs", f"{ties} near ties among {compared} tokens, more than 1 in {1 / MOST:,.0f}"
    if windows is not None and not (sum(windows) > 0 and min(windows) >= SHARE * sum(windows)):
        return "starved", f"{windows[0]}, {windows[1]}, {windows[2]} windows with none, some, all accepted"
    return outcome, reason


def missing(cells: Sequence[Cell], expected: Sequence[Key]) -> list[Key]:
    held = {cell.key for cell in cells}
    return [key for key in expected if key not in held]


def problems(results: dict[str, Any], expected: Sequence[Key], kernels: str, digests: dict[str, str]) -> list[str]:
    """Why a table is not valid for this code: empty if it is."""
    cells = [read(cell) for cell in results["cells"]]
    found = [f"{' / '.join(key)}: missing" for key in missing(cells, expected)]
    for cell in cells:
        name = " / ".join(cell.key)
        if cell.outcome not in PASSED:
            found.append(f"{name}: {cell.outcome}, {cell.reason}")
        if cell.kernels != kernels and (other := record.revision_fault(cell.kernels)):
            found.append(f"{name}: {other}")
        if not same_checkpoints(cell, digests):
            found.append(f"{name}: made with other checkpoints")
    applicable = {(c.model, c.drafter) for c in cells if c.outcome != "inapplicable"}
    found += [
        f"{model} / {drafter}: no method takes it" for model, drafter in sorted({(k[0], k[2]) for k in expected} - applicable)
    ]
    return found


def joined(digests: dict[str, str], cell: Cell) -> str:
    """The weights that a cell was made with."""
    drafter = DRAFTERS.get(cell.drafter, {}).get("drafter", "")
    return " ".join(digests[name] for name in (cell.model, str(drafter)) if name in digests)


def same_checkpoints(cell: Cell, digests: dict[str, str]) -> bool:
    """Whether a cell was made with these checkpoints, or with ones that `checkpoints.toml` declares to be the same model."""
    return " ".join(carried().get(digest, digest) for digest in cell.checkpoints.split(" ")) == joined(digests, cell)


@functools.cache
def carried() -> dict[str, str]:
    """The present digest of each checkpoint whose config changed without effect, by its old digest."""
    return {row["old"]: row["new"] for row in tomllib.loads(CARRIED.read_text(encoding="utf-8"))["carried"]}


def read(cell: dict[str, Any]) -> Cell:
    return Cell(**cell | {"windows": tuple(cell["windows"])})


def table(results: dict[str, Any]) -> str:
    """Markdown: a row for each model, method and drafter, the modes side by side."""
    cells = {cell.key: cell for cell in map(read, results["cells"])}
    modes, kernels = sorted({key[3] for key in cells}), results["machine"]["kernels"]
    lines = [*head(f"model | method | drafter | {' | '.join(modes)} | none, some, all accepted | tokens a call")]
    for row in sorted(dict.fromkeys(key[:3] for key in cells), key=_place):
        of = [cells.get((*row, mode)) for mode in modes]
        if all(cell is None or cell.outcome == "inapplicable" for cell in of):
            continue
        shown = next((cell for cell in of if cell and sum(cell.windows)), None)
        shares = ", ".join(f"{100 * n / sum(shown.windows):.0f} %" for n in shown.windows) if shown else ""
        said, tau = " | ".join(_said(cell, kernels) for cell in of), f"{shown.tau:.2f}" if shown else ""
        lines.append(f"| {' | '.join(row)} | {said} | {shares} | {tau} |")
    left_out: dict[str, list[str]] = {}
    for cell in cells.values():
        if cell.outcome == "inapplicable":
            left_out.setdefault(cell.reason, []).append(f"{cell.method} with {cell.drafter}")
    lines += ["", "Inapplicable:", ""]
    lines += [f"- {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in left_out.items()]
    return "\n".join(lines)


def _place(row: tuple[str, str, str]) -> tuple[int, ...]:
    """Rows by model, then method, then drafter."""
    orders = (MODELS, METHODS, (FORETOLD, *DRAFTERS))
    return tuple(order.index(name) if name in order else len(order) for name, order in zip(row, orders, strict=True))


def _said(cell: Cell | None, kernels: str) -> str:
    if cell is None:
        return ""
    of = "" if cell.kernels == kernels else f", kernels {cell.kernels}"
    if cell.outcome == "near ties":
        return f"{cell.ties} near ties in {cell.compared:,}{of}"
    return f"{cell.outcome}{of}" if cell.outcome in PASSED else f"**{cell.outcome}**: {cell.reason}"
