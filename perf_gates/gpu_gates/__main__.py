"""Every performance gate of a GPU runner: measure in parts, evaluate, report.

    python -m perf_gates.gpu_gates --out DIR --peers FOLDER      all parts, then the report; exits with 1 if anything is red
    python -m perf_gates.gpu_gates --out DIR --part core engine  some parts; run again, an interrupted part is continued
    python -m perf_gates.gpu_gates --out DIR --shard 1of2        the parts of one of two GPUs
    python -m perf_gates.gpu_gates --out DIR --report            measure nothing, evaluate the contents of DIR; needs no GPU
    python -m perf_gates.gpu_gates --list                        the parts, and what each shard runs
    python -m perf_gates.gpu.unpack_peers --into FOLDER          downloads other projects' kernels; needs a network, no GPU

DIR then holds the parts' files, core-benchmark.json, core-junit.xml, junit.xml, summary.md and durations.json; the summary is
added to GITHUB_STEP_SUMMARY if that is set. What no part measured is unknown, and not green: `--part` and `--shard` exit
with 0 if their own parts are complete and no measured result is red, and say so. To combine several shards, copy the files of
their folders into one. `--archive FILE` saves DIR in one file after each part; `--resume FILE` starts from such a file.
"""

import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from conformance.main import run_command
from perf_gates.machine import kernels_hash, need_gpu
from perf_gates.ratchet import bars
from perf_gates.ratchet.outcome import Outcome, outcome
from perf_gates.verdicts import gates
from perf_gates.verdicts.measured import Results
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import one_of, shard_of

from . import core_part, junit, summary
from .parts import BENCHMARK, MOST_S, PARTS, Part, Took, chosen, run

UNPACK = "python -m perf_gates.gpu.unpack_peers"
MINUTES = 55
"""Time for a whole run; a part that does not fit any more is not started."""


def main(
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("gpu-gates"),
    part: Annotated[list[str] | None, typer.Option(metavar="PART ..", help="Some parts; see --list.")] = None,
    shard: Annotated[str, typer.Option(metavar="IofN", help="The parts of the I-th of N GPUs.")] = "1of1",
    peers: Annotated[
        Path | None,
        typer.Option(help=f"Other projects' kernels: `{UNPACK} --into FOLDER` downloads them; a whole run without is red."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="For the whole run; a part that may not finish is not started.")] = MINUTES,
    resume: Annotated[Path | None, typer.Option(metavar="FILE", help="The archive of an earlier run to continue.")] = None,
    archive: Annotated[Path | None, typer.Option(metavar="FILE", help="Save the folder in this .tar.gz.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Measure nothing; evaluate what is in the folder.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the parts of this shard and exit.")] = False,
) -> int:
    parts = chosen([one_of("--part", name, [p.name for p in PARTS]) for name in part or ()], shard_of(shard))
    if resume and not resume.exists():
        raise OptionError(f"--resume is {resume}, which does not exist")
    if peers and not peers.is_dir():
        raise OptionError(f"--peers is {peers}, which is no folder; `{UNPACK} --into {peers}` makes it")
    if listed:
        print("\n".join(f"{p.name}: {', '.join(p.files)}; {p.expected} s expected, {MOST_S} at most a try" for p in parts))
        return 0
    if not report:
        need_gpu()
    out.mkdir(parents=True, exist_ok=True)
    if resume:
        with tarfile.open(resume) as held:
            held.extractall(out, filter="data")
    if not (report or peers) and any("peers" in one.files for one in parts):
        print(f"no --peers: the times of other projects' kernels will be missing; `{UNPACK} --into FOLDER` downloads them")
    failed = [] if report else measured(parts, out, peers, minutes, archive)
    whole = report or len(parts) == len(PARTS)
    judged = reported(out)
    red = [*core_part.reds(out / BENCHMARK), *(judged.reds if whole else here(judged, Results(out)))]
    if archive:
        archived(out, archive)
    if failed:
        print(f"parts that are not complete: {', '.join(failed)}")
    if not whole:
        print(
            f"{', '.join(p.name for p in parts)} alone: what other parts measure is unknown; --report evaluates the whole run"
        )
    print("\n".join(f"red: {line}" for line in red))
    print(f"{len(red)} red; {judged.counts()}; {out / 'summary.md'}")
    return 1 if red or failed else 0


def measured(parts: Sequence[Part], out: Path, peers: Path | None, minutes: float, archive: Path | None) -> list[str]:
    """Runs the parts; returns those that did not finish. A part is retried while it has tries and there is time."""
    until, failed = monotonic() + 60 * minutes, []
    for part in parts:
        said = "not started: no time left"
        for _ in range(part.tries):
            left = until - monotonic()
            if left < min(MOST_S, part.expected):
                break
            print(f"=== {part.name}", flush=True)
            said = run(part, out, peers, left)
            if part.name == "core":
                core_part.write_part(out / BENCHMARK, out)
            print(f"=== {part.name}: {said}", flush=True)
            if archive:
                archived(out, archive)
            if said == "complete":
                break
        if said != "complete":
            failed.append(part.name)
    return failed


def archived(out: Path, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as held:
        for one in sorted(out.iterdir()):
            if one.is_file() and one.resolve() != file.resolve():
                held.add(one, one.name)


def reported(out: Path) -> Outcome:
    """Evaluates the folder, and writes junit.xml and summary.md."""
    results, held, took = Results(out), bars.read(), Took.read(out)
    judged = outcome(gates.load(), results, kernels_hash(), held)
    junit.write(out / "junit.xml", judged, took)
    text = summary.text(judged, bars.times(results), held, took, core_part.pairs(out / BENCHMARK))
    (out / "summary.md").write_text(text)
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(step, "a") as file:
            file.write(text)
    return judged


def here(judged: Outcome, results: Results) -> list[str]:
    """The red results among what was measured, without those that other parts would have measured."""
    worse = [str(m) for m in judged.worse if m.how != "missing" or m.name.split("/")[0] in results.parts]
    cells = [str(j) for j in judged.judged if j.red and not j.why.startswith("not measured: ")]
    return [*judged.impossible, *worse, *cells]


if __name__ == "__main__":
    sys.exit(run_command(main))
