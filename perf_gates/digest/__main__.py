"""Records what the results were measured with, and what of them is of other code now: `results/digests.json`.

    python -m perf_gates.digest             after a change of the kernels, or a new result: the record, the budgets of the
                                            launches that changed, and the tables of the pages
    python -m perf_gates.digest --carry     the same, after a comparison of the machine code of what differs
    python -m perf_gates.digest --check     recomputes all of the record from git
    python -m perf_gates.digest --install   puts the Triton of the results into a folder; both others need it

Of a result its commit is unpacked from git, and its calls are recorded there. A commit that git does not hold makes its
results unknown until they are measured again.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.main import run_command
from ssmspec_ref.errors import OptionError

from .. import files
from . import trees
from .record import (
    CUDA,
    FILE,
    LOST,
    OUTSIDE_GRAPHS,
    Current,
    Part,
    Record,
    Revision,
    Stale,
    by_launcher,
    current,
    read,
    recorded_now,
    stale,
    write,
)
from .texts import cuda_text, engine_text, kernels_text, text
from .trees import Recorded

RESULTS = FILE.parent
PARTS = (*(part for share in trees.SHARES for part in share), CUDA.partition("/")[0])
WHOLE = ("equality", "trained", "model_shapes", "sanitized", "lossless", "peers_today", "real_text_a", "real_text_b")
"""Results of all launchers, or of some by name: they depend on the revision of the kernels."""
PAGES = (
    ("-m", "perf_gates.static.compiled", "--write"),
    ("-m", "perf_gates.report.kernel_table", str(RESULTS), "--write"),
    ("-c", "from conformance.main import main; main()", "gates", "table", "--write"),
)
"""What else says or depends on it: the budgets of the launches that changed, and the tables of the pages."""


def heads(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The machine of every result."""
    found = ((name, files.read(results / f"{name}.json")) for name in (*PARTS, *WHOLE))
    return {name: held["machine"] for name, held in found if held}


class Revisions:
    """Trees of commits, unpacked once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Recorded] = {}
        """What was recorded of some measurements, by commit."""

    def tree(self, commit: str) -> Path:
        """Raises: trees.Unproven."""
        into = self.folder / commit
        return into if into.exists() else trees.unpacked(commit, into)

    def recorded(self, commit: str, *work: dict[str, Any]) -> Recorded:
        """Raises: trees.Unproven."""
        tree = self.tree(commit)
        return trees.recorded(tree, tree / "kernels", trees.folder(), work)

    def some(self, commit: str, names: Iterable[str], machine: Iterable[str] = ()) -> Recorded:
        """Some measurements, with the machine code of some of them, by one process and once. Raises: trees.Unproven."""
        known = self.known.setdefault(commit, {"calls": {}, "machine": {}})
        if not ({*names} <= known["calls"].keys() and {*machine} <= known["machine"].keys()):
            parts = dict.fromkeys(of.partition("/")[0] for of in names)
            made = self.recorded(commit, trees.asked(parts, entries=False, names=names, machine=machine))
            for kind, rows in known.items():
                rows.update(made[kind])
        return known

    def part(self, name: str, machine: dict[str, Any], names: list[str] | None = None) -> Part:
        """All measurements of a part, or those of some names."""
        made = Part(machine["commit"], machine["torch"], machine.get("timing", ""))
        own, _, of = CUDA.partition("/")
        if not trees.held(made.commit):
            return replace(made, why=LOST)
        tree = self.tree(made.commit)
        if name == own:
            return replace(made, calls={of: f"{cuda_text(tree / 'perf_gates')} -"})
        if names is None:
            found = self.recorded(made.commit, trees.asked([name], entries=False))["calls"]
        else:
            known = self.some(made.commit, names)["calls"]
            found = {of: known[of] for of in names if of in known}
        return replace(made, calls={of.partition("/")[2]: call for of, call in found.items()})

    def revision(self, commit: str) -> tuple[str, Revision]:
        """Under the hash of its kernels."""
        calls = by_launcher(self.recorded(commit, trees.asked([], entries=True))["entries"])
        tree = self.tree(commit)
        kernels = kernels_text(tree / "kernels" / "ssmspec_kernels")
        return kernels, Revision(commit, calls)

    def engine(self, commit: str) -> list[str]:
        return [commit, engine_text(self.tree(commit) / "ssmspec_fast") if trees.held(commit) else LOST]


def ids(results: Path = RESULTS) -> dict[str, str]:
    """The kernels that results name, by their hash, each with the commit of the file that names it first."""
    found: dict[str, str] = {}
    for name in WHOLE:
        held = files.read(results / f"{name}.json") or {"machine": {}}
        rows = [*held.get("cells", ()), *held.get("verdicts", ())]
        named = [held["machine"].get("kernels"), *(row.get("kernels") or row.get("code") for row in rows)]
        named += [code for tool in held.get("tools", ()) for code in tool["codes"].values()]
        for one in dict.fromkeys(filter(None, named)):
            found.setdefault(one, held["machine"]["commit"])
    return found


def updated(record: Record, revisions: Revisions, now: Current) -> Record:
    """With what was measured since, and (4) of `record`.

    Raises: trees.Unproven for a result whose kernels are not those of its commit.
    """
    parts = {
        name: record.parts[name]
        if name in record.parts and record.parts[name].commit == machine["commit"] and trees.held(machine["commit"])
        else revisions.part(name, machine)
        for name, machine in heads().items()
        if name in PARTS
    }
    wanted = ids()
    known = {
        name: one if trees.held(one.commit) else Revision(one.commit, why=LOST)
        for name, one in record.revisions.items()
        if name in wanted
    }
    for name, commit in wanted.items():
        if name not in known and not trees.held(commit):
            known[name] = Revision(commit, why=LOST)
        elif name not in known:
            made, found = revisions.revision(commit)
            if made != name:
                raise trees.Unproven(f"a result names the kernels {name}, but those of its commit {commit[:7]} are {made}")
            known[name] = found
    engines = {
        name: record.engines[name]
        if record.engines.get(name, [""])[0] == machine["commit"] and trees.held(machine["commit"])
        else revisions.engine(machine["commit"])
        for name, machine in heads().items()
        if name in OUTSIDE_GRAPHS
    }
    held = replace(record, text=text(), parts=parts, revisions=known, engines=engines)
    return replace(held, stale=stale(held, now))


def pairs(before: Recorded, after: Recorded) -> dict[str, list[str]]:
    """Of what has the same machine code and other Triton IR, the call before and after, with a hash of the machine code."""

    def call(side: Recorded, of: str) -> str:
        return (side["calls"].get(of) or side["entries"][of]).split()[0]

    both = before["machine"].keys() & after["machine"].keys()
    same = [of for of in sorted(both) if before["machine"][of] == after["machine"][of]]
    return {call(before, of): [call(after, of), after["machine"][of]] for of in same if call(before, of) != call(after, of)}


def carried(record: Record, revisions: Revisions, now: Current) -> dict[str, list[str]]:
    """(3) of all measurements and entries that differ, but for pairs that `record` has."""
    found: dict[str, list[str]] = {}

    def compared(commit: str, parts: list[str], old: dict[str, str], new: dict[str, str]) -> None:
        differ = [of for of in old if of in new and record.present(old[of]) != record.present(new[of])]
        if differ:
            work = trees.asked(parts, entries=not parts, names=differ, machine=differ)
            with ThreadPoolExecutor(2) as both:
                older = both.submit(revisions.recorded, commit, work)
                newer = both.submit(recorded_now, work)
                found.update(pairs(older.result(), newer.result()))

    calls = {of: call.split()[0] for of, call in now.calls.items()}
    for name, part in record.parts.items():
        compared(part.commit, [name], {f"{name}/{of}": call.split()[0] for of, call in part.calls.items()}, calls)
    for one in record.revisions.values():
        if one.why:
            continue
        compared(one.commit, [], revisions.recorded(one.commit, trees.asked([], entries=True))["entries"], now.entries)
    return found


def samples(before: Recorded, after: Recorded) -> dict[str, str]:
    """Of each kernel whose source changed, the first entry that launches it by the same call before and after."""
    found: dict[str, str] = {}
    for name, call in after["entries"].items():
        for kernel, source in after["kernels"][name].items() if before["entries"].get(name) == call else ():
            if before["kernels"][name].get(kernel) != source:
                found.setdefault(kernel, name)
    return found


def unlike(revisions: Revisions, commit: str) -> list[str]:
    """Entries of `samples` whose calls are the same as at a commit, and their machine code is not. Raises: trees.Unproven."""
    every = trees.asked([], entries=True, apart=True)
    names = {*samples(revisions.recorded(commit, every), recorded_now(every)).values()}
    work = trees.asked([], entries=True, names=names, machine=names, apart=True)
    before, after = revisions.recorded(commit, work)["machine"], recorded_now(work)["machine"]
    return sorted(name for name in names if before[name] != after[name])


def checked(record: Record, revisions: Revisions, names: Iterable[str] | None = None) -> Iterator[str]:
    """What in the record is not so, recomputed from git: all of it, or measurements by part/shape/operation/batch.

    Raises: trees.Unproven where git does not hold a commit that has digests.
    """
    wanted = None if names is None else [*names]
    for name, part in record.parts.items():
        own = [of for of in wanted or () if of.startswith(f"{name}/")]
        if part.why:
            if trees.held(part.commit):
                yield f"{name}: {part.why} {part.commit[:7]} is recorded, but git does"
        elif wanted is None or own:
            again = revisions.part(name, {"commit": part.commit, "torch": part.torch, "timing": part.timing}, own or None)
            found = {f"{name}/{of}": call for of, call in again.calls.items()}
            told = {f"{name}/{of}": call for of, call in part.calls.items() if not own or f"{name}/{of}" in own}
            if again.why:
                yield f"{name}: {again.why} {part.commit[:7]}, whose calls are recorded"
                continue
            yield from (f"{of}: {told.get(of)} is recorded, not {call}" for of, call in found.items() if told.get(of) != call)
            yield from (f"{of}: is recorded, and was not measured" for of in told.keys() - found.keys())
    for name, one in record.revisions.items() if wanted is None else ():
        if one.why == LOST:
            if trees.held(one.commit):
                yield f"kernels {name}: {LOST} {one.commit[:7]} is recorded, but git does"
        elif not trees.held(one.commit) or revisions.revision(one.commit) != (name, one):
            yield f"kernels {name}: not those of {one.commit[:7]}"
    if wanted is None:
        now = carried(replace(record, same_code={}), revisions, current())
        later = {new for new, _ in now.values()}
        held = {old: pair for old, pair in record.same_code.items() if pair[0] in later}
        yield from (f"{old} has not the machine code of {pair[0]}" for old, pair in held.items() if now.get(old) != pair)
    for name, engine in record.engines.items() if wanted is None else ():
        if revisions.engine(engine[0]) != engine:
            yield f"{name}: the engine is not that of {engine[0][:7]}"


def main(
    carry: Annotated[bool, typer.Option("--carry", help="Compare the machine code of what differs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Recompute the record from git.")] = False,
    install: Annotated[bool, typer.Option("--install", help="Put the Triton of the results into a folder.")] = False,
    without_pages: Annotated[bool, typer.Option("--without-pages", help="Only the record.")] = False,
) -> int:
    if carry + check + install > 1:
        raise OptionError("--carry, --check and --install exclude each other; give one of them")
    if install:
        trees.install()
        return 0
    record = read()
    with tempfile.TemporaryDirectory() as folder:
        revisions = Revisions(Path(folder))
        try:
            if check:
                wrong = [*checked(record, revisions)]
                print("\n".join(wrong) or "the record is that of the commits")
                return 1 if wrong else 0
            now = current()
            made = updated(record, revisions, now)
            if carry:
                made = replace(made, same_code=made.same_code | carried(made, revisions, now))
                made = replace(made, stale=stale(made, now))
        except trees.Unproven as unproven:
            raise OptionError(str(unproven)) from unproven
    write(made)
    print("\n".join(told(made.stale)) or "all that was measured is of the current code")
    return max(subprocess.run([sys.executable, *command]).returncode for command in PAGES) if not without_pages else 0


def told(held: Stale) -> Iterator[str]:
    yield from (f"{part}: {len(names)} measurements are of other code" for part, names in held.parts.items())
    yield from (f"kernels {name}: {', '.join(launchers)} are other code" for name, launchers in held.revisions.items())
    yield from (f"{name}: the engine is another" for name in held.engines)


if __name__ == "__main__":
    sys.exit(run_command(main))
