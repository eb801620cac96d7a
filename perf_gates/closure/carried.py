"""Which recorded hashes belong to the current code: `carried.json`, a committed record of older hashes and their proofs.

A step states for some launchers that the code of hash `old` and that of hash `new` are the same, and why:

    files        at `revision` the hash over files, which identified results before, is `old`, and the closure hash `new`
    same code    `static.same_code` compared every launch of `before` with `after`, on each Triton that is named, and none
                 differed; a run holds the closure hashes of both packages, and a hash of the names of all launches; those
                 under `machine_code` were compiled, some in one of the runs at least, and of the others
                 (`ir`, as many) the Triton IR was the same. With `compared` the runs are of those two revisions, where
                 each launcher that changed had the same two hashes
    added        every launcher of `before` has the same hash in `after`, which has more launchers: the whole, a hash over
                 the launchers, is the only one that changed
    rewritten    the launchers under `rewritten` have other code in `after` than in `before`, and every other one has the same
                 hash. The whole is carried from that of the last kernels without them, so that only results that cannot
                 have launched them stay valid

Steps apply in their order. `renamed` maps launchers of older results to their present names.
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "carried.json"
HASH, REVISION = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{40}")
TRITONS = 2
"""How many versions of Triton must confirm that code is the same."""


@functools.cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def same(recorded: str, now: str) -> bool:
    """Whether a recorded hash equals this one, or is proven to belong to the same code."""
    return recorded == now or now in proven(recorded)


@functools.cache
def proven(recorded: str) -> frozenset[str]:
    """All hashes of the same code as a recorded one."""
    found = {recorded}
    for step in record()["steps"]:
        found |= {code["new"] for code in step["codes"] if code["old"] in found}
    return frozenset(found)


def present(name: str) -> str:
    """The present name of a launcher of older results."""
    for step in record()["steps"]:
        name = step["renamed"].get(name, name)
    return name


def whole_before(steps: list[dict[str, Any]], launchers: list[str]) -> str:
    """The hash of the last kernels without some launchers, by the first step that has one of them; empty if none has."""
    for step in steps:
        whole = max(step["codes"], key=lambda code: len(code["of"]))
        if {*launchers} & {*whole["of"]}:
            return str(whole["old"])
    return ""


def faults(held: dict[str, Any]) -> Iterator[str]:
    """The reasons why a record is not a proof."""
    for number, step in enumerate(held["steps"]):
        yield from (f"step {number}: {fault}" for fault in _faults(step))
        if step["proof"]["kind"] == "rewritten":
            last = whole_before(held["steps"][:number], step["proof"]["rewritten"])
            if [code["old"] for code in step["codes"]] != [last]:
                yield f"step {number}: carries more than the whole of {last}, the last kernels without what was rewritten"


def _faults(step: dict[str, Any]) -> Iterator[str]:
    proof = step["proof"]
    if not step["codes"]:
        yield "carries nothing"
    for code in step["codes"]:
        if not (HASH.fullmatch(code["old"]) and HASH.fullmatch(code["new"])) or code["old"] == code["new"]:
            yield f"{' '.join(code['of'])}: {code['old']} to {code['new']} are not two different hashes"
    carried = [" ".join(code["of"]) for code in step["codes"]]
    yield from (f"{of}: carried twice" for of in sorted(set(carried)) if carried.count(of) > 1)
    revisions = [proof.get(name, "") for name in (("revision",) if proof["kind"] == "files" else ("before", "after"))]
    if not all(map(REVISION.fullmatch, revisions)):
        yield "names no revision"
    if proof["kind"] == "same code":
        runs = proof["runs"]
        if len({run["triton"] for run in runs}) < TRITONS:
            yield f"was compared on fewer than {TRITONS} versions of Triton"
        for run in runs:
            if not run["compared"] > 0 or run["differ"] != 0:
                yield f"on Triton {run['triton']} {run['compared']} launches were compared and {run['differ']} differ"
            if not run["timed"] > 0:
                yield f"on Triton {run['triton']} nothing that is timed was compared"
            if "ir" in run and run["ir"] + len({*run["machine_code"]}) != run["compared"]:
                yield f"on Triton {run['triton']} it is not said of each launch how it was compared"
        if all("ir" in run and not run["machine_code"] for run in runs):
            yield "no run compiled a launch to machine code"
        if len({(run["before"], run["after"], run["entries"]) for run in runs}) != 1:
            yield "the runs compared different packages or launches"
    elif proof["kind"] == "added" and len(step["codes"]) > 1:
        yield "carries more than the whole, though launchers were only added"
    elif proof["kind"] not in ("files", "added", "rewritten"):
        yield f"{proof['kind']} is no proof"
