"""What was measured, by digests; and which of it is of other code than the current: `results/digests.json`.

    parts       of each part its commit, versions, the hash of the code that takes times, and the call and inputs of every
                measurement; without calls if git does not hold the commit                                                (1)
    revisions   of other results, by the hash of their kernels, the commit and the calls of every launcher in the
                catalogue, or why there are none; `engines`: of parts with times outside a graph the commit and the
                hash of the engine                                                                                        (2)
    same_code   pairs of calls with other Triton IR and the same machine code, an older and a newer one, and a hash
                of that code                                                                                              (3)
    stale       what of (1) and (2) is of other code than the kernels and measurements whose text has the hash `text`     (4)

(1) and (2) are recomputed from git, (3) by the compiler (`__main__.checked`), and (4) follows from them. Where the current
text is another, (4) is made again from the current calls.
"""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from . import trees
from .texts import cuda_text, engine_text, kernels_text, package, text

FILE = Path(__file__).parent.parent / "results" / "digests.json"
COMMAND = "python -m perf_gates.digest"
CUDA = "one_launch/its source/1"
"""The call of a result that NVRTC compiles: its source and options, for nothing of it is Triton's."""
AGAIN = "unknown until measured again"
LOST = "git does not hold"
OUTSIDE_GRAPHS = ("trained", "real_text_a", "real_text_b")
"""Parts whose times depend on the engine too."""
THEIRS = re.compile(r", (vLLM|fla|mamba-ssm|torch)\b|^cuBLAS|^transformers\b")
"""Measurements of others' code, which have the versions of their packages."""
SHORT = 8
"""Digits of a call in (2)."""


@dataclass(frozen=True)
class Part:
    """(1). `calls`: the digests of call and inputs by shape/operation/batch; `why`: why there are none."""

    commit: str
    torch: str
    timing: str = ""
    calls: dict[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Revision:
    """(2), under the hash of its kernels' text. `why`: why there are no calls."""

    commit: str
    calls: dict[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Stale:
    """(4). Of a part the measurements, of a revision the launchers; `engines`: parts whose engine is another."""

    parts: dict[str, list[str]]
    revisions: dict[str, list[str]]
    engines: list[str]


@dataclass(frozen=True)
class Record:
    """The file."""

    triton: str
    text: str
    parts: dict[str, Part]
    revisions: dict[str, Revision]
    engines: dict[str, list[str]]
    same_code: dict[str, list[str]]
    stale: Stale

    def present(self, call: str) -> str:
        """The newest call with the same machine code. Raises: ValueError (the pairs go round in a circle)."""
        first = call
        for _ in range(1 + len(self.same_code)):
            if call not in self.same_code:
                return call
            call = self.same_code[call][0]
        raise ValueError(f"{FILE.name}: same_code leads from {first} round in a circle; run `{COMMAND} --carry`")


@dataclass(frozen=True)
class Current:
    """What the current code gives: calls and inputs by part/shape/operation/batch, calls by entry, and the engine's hash."""

    calls: dict[str, str]
    entries: dict[str, str]
    engine: str


@functools.cache
def read(file: Path = FILE) -> Record:
    held: dict[str, Any] = json.loads(file.read_text())
    parts = {name: Part(**part) for name, part in held["parts"].items()}
    revisions = {name: Revision(**one) for name, one in held["revisions"].items()}
    return Record(**held | {"parts": parts, "revisions": revisions, "stale": Stale(**held["stale"])})


def write(record: Record, file: Path = FILE) -> None:
    """One line for each measurement, launcher or pair, so that a diff shows what changed."""
    text = json.dumps(asdict(record), indent=1)
    file.write_text(text + "\n")


def stale(record: Record, now: Current) -> Stale:
    """(4)"""

    def same(recorded: str, current: str) -> bool:
        (call, inputs), (own, drawn) = recorded.split(), current.split()
        return record.present(call) == record.present(own) and inputs == drawn

    parts = {
        name: sorted(of for of, call in part.calls.items() if not same(call, now.calls.get(f"{name}/{of}", "none none")))
        for name, part in record.parts.items()
    }
    have = {call[:SHORT] for call in now.entries.values()}
    have |= {old[:SHORT] for old in record.same_code if record.present(old)[:SHORT] in have}
    revisions = {
        name: sorted(launcher for launcher, calls in one.calls.items() if not {*calls.split()} <= have)
        for name, one in record.revisions.items()
    }
    return Stale(
        {name: found for name, found in parts.items() if found},
        {name: found for name, found in revisions.items() if found},
        sorted(part for part, (_, engine) in record.engines.items() if engine != now.engine),
    )


def by_launcher(entries: dict[str, str]) -> dict[str, str]:
    """(2) of the calls of entries."""
    found: dict[str, set[str]] = {}
    for name, call in entries.items():
        found.setdefault(name.split(" ")[0], set()).add(call[:SHORT])
    return {launcher: " ".join(sorted(calls)) for launcher, calls in sorted(found.items())}


# --- what of a result is of other code ---


def fault(part: str, commit: str, kernels: str, of: str = "") -> str:
    """Why a measurement of a part, by shape/operation/batch, or any of it, is not of the current code; empty if all is."""
    record = read()
    if part not in record.parts:
        return _engine_fault(part, commit) or revision_fault(kernels)
    held = record.parts[part]
    if held.commit != commit:
        return f"{part}: its digests at {commit[:7]} are not recorded; run `{COMMAND}` where git holds that commit"
    if held.why:
        return f"{part}: {AGAIN}, {held.why} {held.commit[:7]}"
    if of and of not in held.calls:
        return "" if THEIRS.search(of.split("/")[1]) else f"{part}: no digest of {of} is recorded; run `{COMMAND}`"
    return _told(lambda now: of in now.parts.get(part, ()) if of else part in now.parts, f"{part} at {commit[:7]}")


def _engine_fault(part: str, commit: str) -> str:
    if part not in OUTSIDE_GRAPHS:
        return ""
    if read().engines.get(part, [""])[0] != commit:
        return f"{part}: its engine at {commit[:7]} is not recorded; run `{COMMAND}` where git holds that commit"
    return _told(lambda now: part in now.engines, f"{part} at {commit[:7]}")


def revision_fault(kernels: str, launcher: str = "") -> str:
    """The same of what ran a launcher, or all of them, of the kernels with this hash."""
    if kernels == kernels_text():
        return ""
    held = read().revisions.get(kernels)
    if held is None:
        return f"the digests of kernels {kernels} are not recorded; run `{COMMAND}` where git holds their commit"
    if held.why:
        return f"the kernels at {held.commit[:7]}: {AGAIN}, {held.why} that commit"
    one = f"{launcher} at {held.commit[:7]}" if launcher else f"the kernels at {held.commit[:7]}"
    return _told(lambda now: launcher in now.revisions.get(kernels, ()) if launcher else kernels in now.revisions, one)


def listed(part: str, commit: str, of: str) -> str:
    """What `fault` says, if it is recorded: unknown until it is measured again."""
    record = read()
    if part in record.stale.engines and record.engines[part][0] == commit:
        return _engine_fault(part, commit)
    held = record.parts.get(part)
    if held is None or held.commit != commit:
        return ""
    return fault(part, commit, "", of) if held.why or of in record.stale.parts.get(part, ()) else ""


def _told(other: Callable[[Stale], bool], name: str) -> str:
    try:
        return f"{name}: {AGAIN}, its code has changed" if other(standing()) else ""
    except trees.Unproven as unproven:
        return f"{name}: unproven: {unproven}"


# --- the current calls ---


def recorded_now(*work: dict[str, Any]) -> trees.Recorded:
    """Of the current code, on the Triton of the results. Raises: trees.Unproven."""
    return trees.recorded(package("perf_gates").parent, package("ssmspec_kernels").parent, trees.folder(), work)


@functools.cache
def current() -> Current:
    """The calls of the current code on the Triton of the results; kept in a folder by the hash of the code's text.

    Raises: trees.Unproven.
    """
    trees.folder()
    file = trees.FOLDER.parent / f"calls-{trees.TRITON}-{text()}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(json.dumps(recorded_now(*trees.everything())))
    held = json.loads(file.read_text())
    return Current(held["calls"] | {CUDA: f"{cuda_text()} -"}, held["entries"], engine_text())


@functools.cache
def standing() -> Stale:
    """(4) for the current code: as it is recorded, or made again. Raises: trees.Unproven."""
    record = read()
    return record.stale if record.text == text() else stale(record, current())
