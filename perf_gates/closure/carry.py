"""Adds a step to the record of older hashes, in a checkout:

    python -m perf_gates.closure.carry REVISION --runs A.json B.json

A and B are what `perf_gates.static.same_code REVISION --out` wrote on two versions of Triton, of the kernels as they are
committed. Every launcher whose hash changed is carried, the whole, and the parts of a run; `--renamed new=old` as there.

    python -m perf_gates.closure.carry REVISION --runs A.json B.json --compared BEFORE AFTER

carries what the runs show of two other revisions to launchers with the same hashes: where others were added meanwhile.

    python -m perf_gates.closure.carry REVISION --added

carries the whole without runs: where launchers were added, and all others have the same hashes.

    python -m perf_gates.closure.carry REVISION --rewritten NAME ..

carries the whole from the last kernels without these launchers, which have other code now, while all others have the same
hashes: what was measured before they existed stays valid, and what was measured since does not.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ..verdicts.measured import RUNS
from .carried import FILE, faults, whole_before
from .hashes import Closures, folder_of
from .package import Definition, Package

ROOT = Path(__file__).parents[2]


def step(
    before: Closures,
    after: Closures,
    runs: list[dict[str, Any]],
    renamed: dict[str, str],
    compared: tuple[Closures, Closures] | None = None,
) -> dict[str, Any]:
    """A step without its revisions. `renamed`: new names by old ones; `compared`: what the runs compared, if not these two.

    Raises: ValueError for runs of other kernels, or for a changed launcher that they did not compare.
    """
    wholes = before.whole(), after.whole()
    shown = None
    if compared:
        shown = {(code["old"], code["new"]) for code in step(*compared, runs, renamed)["codes"]}
    elif any((run["before"], run["after"]) != wholes for run in runs):
        raise ValueError(f"the runs compared other kernels than {wholes[0]} and {wholes[1]}; run same_code again")
    old_names = {new: old for old, new in renamed.items()}
    codes = [_whole(after, wholes[0])]
    for names in RUNS.values():
        launchers = [after.launcher(name) for name in names]
        olds = before.of(*(old_names.get(name, name) for name in names))
        codes.append({"of": [_told(d) for d in launchers], "old": olds, "new": after.of(*names)})
    for d in sorted(after.launchers):
        same = [b for b in before.launchers if b.name == old_names.get(d.name, d.name)]
        same = same if len(same) == 1 else [b for b in same if b.module.rpartition(".")[2] == d.module.rpartition(".")[2]]
        pairs = [(before.hash(b), after.hash(d)) for b in same]
        if shown is not None and not (pairs and all(old == new or (old, new) in shown for old, new in pairs)):
            raise ValueError(f"the runs did not compare {_told(d)} as it is now; run same_code again")
        codes += [{"of": [_told(d)], "old": old, "new": new} for old, new in pairs]
    unique = {" ".join(code["of"]): code for code in codes if code["old"] != code["new"]}
    return {"renamed": renamed, "proof": {"kind": "same code", "runs": runs}, "codes": list(unique.values())}


def grown(before: Closures, after: Closures) -> dict[str, Any]:
    """A step without its revisions, for kernels to which launchers were added.

    Raises: ValueError where a launcher is gone or changed, or none was added.
    """
    old, new = ({(d.name, c.hash(d)) for d in c.launchers} for c in (before, after))
    if gone := sorted(name for name, _ in old - new):
        raise ValueError(f"{', '.join(gone)}: gone or changed; compare the machine code, and give --runs")
    if len(after.launchers) == len(before.launchers):
        raise ValueError("no launcher was added, so there is nothing to carry")
    return {"renamed": {}, "proof": {"kind": "added"}, "codes": [_whole(after, before.whole())]}


def rewritten(before: Closures, after: Closures, names: list[str], steps: list[dict[str, Any]]) -> dict[str, Any]:
    """A step without its revisions, for kernels of which the launchers `names` were rewritten; `steps` are those before it.

    Raises: ValueError where another launcher differs, or no earlier step has the launchers.
    """
    old, new = ({(d.name, c.hash(d)) for d in c.launchers if d.name not in names} for c in (before, after))
    if differ := sorted({name for name, _ in old ^ new}):
        raise ValueError(f"{', '.join(differ)}: changed, gone or added; compare the machine code, and give --runs")
    changed = [_told(d) for d in after.launchers if d.name in names]
    last = whole_before(steps, changed)
    if not last:
        raise ValueError(f"{', '.join(names)}: no earlier step has such a launcher; name one by its function")
    return {"renamed": {}, "proof": {"kind": "rewritten", "rewritten": changed}, "codes": [_whole(after, last)]}


def _whole(after: Closures, old: str) -> dict[str, Any]:
    """The code of all launchers, carried from the hash `old`."""
    return {"of": [_told(d) for d in after.launchers], "old": old, "new": after.whole()}


def _told(launcher: Definition) -> str:
    return f"{launcher.module}.{launcher.name}"


def write(record: dict[str, Any], file: Path = FILE) -> None:
    """Writes the record, one line per code."""
    steps = []
    for held in record["steps"]:
        codes = ",\n".join(f"  {json.dumps(code)}" for code in held["codes"])
        head = f'"renamed": {json.dumps(held["renamed"])},\n "proof": {json.dumps(held["proof"])}'
        steps.append(f'{{\n {head},\n "codes": [\n{codes}\n ]\n}}')
    file.write_text('{"steps": [' + ", ".join(steps) + "]}\n")


def at(revision: str, folder: Path) -> tuple[str, Path]:
    """The whole name of a revision, and its package of kernels unpacked.

    Raises: subprocess.CalledProcessError for a revision that is not known.
    """
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", f"{revision}^{{commit}}"], capture_output=True, text=True, check=True).stdout
    packed = subprocess.run([*git, "archive", "--format=tar", revision, "kernels"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return name.strip(), folder / "kernels" / "ssmspec_kernels"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_gates.closure.carry", description=__doc__)
    parser.add_argument("revision", help="before the change")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--runs", nargs="+", type=Path)
    how.add_argument("--added", action="store_true", help="launchers were only added")
    how.add_argument("--rewritten", nargs="+", metavar="NAME", help="only these launchers changed")
    parser.add_argument(
        "--compared", nargs=2, default=[], metavar=("BEFORE", "AFTER"), help="the revisions of the runs, if not these"
    )
    parser.add_argument("--renamed", nargs="*", default=[], metavar="NEW=OLD")
    a = parser.parse_args(argv)
    renamed = {old: new for new, old in (pair.split("=", 1) for pair in a.renamed)}
    with tempfile.TemporaryDirectory() as folder:
        (was, before), (now, after), *sides = (
            at(revision, Path(folder) / str(number)) for number, revision in enumerate((a.revision, "HEAD", *a.compared))
        )
        packages = before, after, *(package for _, package in sides), folder_of("ssmspec_kernels")
        old, new, *shown, own = (Closures(Package(package)) for package in packages)
    if new.whole() != own.whole():
        parser.error("the kernels differ from HEAD; commit them first")
    record = json.loads(FILE.read_text())
    if a.added:
        made = grown(old, new)
    elif a.rewritten:
        made = rewritten(old, new, a.rewritten, record["steps"])
    else:
        runs = [json.loads(file.read_text()) for file in a.runs]
        made = step(old, new, runs, renamed, (shown[0], shown[1]) if shown else None)
    made["proof"] |= {"before": was, "after": now} | ({"compared": [name for name, _ in sides]} if sides else {})
    record["steps"].append(made)
    if wrong := list(faults(record)):
        parser.error("\n".join(wrong))
    write(record)
    print(f"{len(made['codes'])} hashes are carried from {was[:7]} to {now[:7]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
