"""The speed table and the conformance at the shapes of models, in parts: `python -m perf_gates.gpu --out DIR --peers DIR`.

Everything is compiled first, by as many processes as there are cores. Then each part runs in its own process, so that a
kernel that breaks the GPU's context ends its case only: the next process continues from DIR/PART.json. A part that is
complete for the current kernels is not run again; any other part is continued.
`python -m perf_gates.report.kernel_table DIR` makes the table of the kernels, `ssmspec gates table DIR` that of the papers.
"""

import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import torch
import typer

from conformance.main import run_command
from perf_gates import files
from perf_gates.gpu import rehearsal
from perf_gates.gpu.clock import copy_bytes_per_us, empty_launch_us, noises
from perf_gates.gpu.compilation import compile_all, module
from perf_gates.gpu.kernels import peers
from perf_gates.gpu.today import loading
from perf_gates.gpu_gates.parts import ended
from perf_gates.machine import clock_mhz, fingerprint, kernels_hash, need_gpu
from perf_gates.ratchet import peers as versions
from perf_gates.verdicts.measured import FURTHER, PARTS, TODAY, rule, ruled, stands
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import one_of

COMPILE_S, PART_S, SHAPES_S = 120, 90, 180
"""Seconds after which a stage is ended. The checks at the shapes of models report what they had no time for."""
TRIES = 4
"""Most processes of a part, when kernels break the context of earlier ones."""


def complete(file: Path) -> bool:
    """Whether a part need not run again: with these kernels, by the current rule, all its cases, without a fault."""
    found = files.read(file)
    if not found:
        return False
    same = stands(file.stem, found["machine"], kernels_hash())
    if "verdicts" in found:
        return same and bool(found["verdicts"]) and all(v["passed"] for v in found["verdicts"])
    whole = {str(case) for case in module(file.stem).cases()} <= {*found["done"]}
    return same and ruled(file.stem, found["machine"]) and found["complete"] and whole and not found["errors"]


# --- measurement ---


def measure(part: str, out: Path, folder: Path | None, like: str = "") -> None:
    """Runs every case of a part whose name contains the pattern `like`; the file is written after each.

    A timing holds the relative error of its median, and the clock right after its case.
    """
    if part in ("prefill", "peers"):
        peers.load(folder)
    if part == TODAY:
        loading.load(folder)
    measured = {"copy_bytes_per_us": copy_bytes_per_us(), "empty_launch_us": empty_launch_us()}
    head: dict[str, Any] = fingerprint() | rule(part) | measured | versions.head(part)
    found: dict[str, Any] = {"part": part, "machine": head, "complete": False, "errors": [], "done": [], "timings": []}
    was = files.read(out)
    if was and stands(part, was["machine"], head["kernels"]) and continues(part, was["machine"], head):
        found |= {name: was[name] for name in ("errors", "done", "timings")}
    wanted = [case for case in module(part).cases() if re.search(like, str(case))]
    for case in wanted:
        if str(case) in found["done"] or any(error.startswith(f"{case}: ") for error in found["errors"]):
            continue
        noises.clear()
        try:
            timings = module(part).timings(*case)
        except Exception as error:
            found["errors"].append(f"{case}: {type(error).__name__}: {error}".split("\n")[0][:400])
            print(found["errors"][-1], flush=True)
            write(out, found)
            if broken(found["errors"][-1]):
                return
            continue
        finally:
            torch.cuda.empty_cache()
        errors = noises if len(noises) == len(timings) else [max(noises, default=0.0)] * len(timings)
        clock = clock_mhz()
        rows = zip(timings, errors, strict=True)
        found["timings"] += [asdict(t) | {"noise": error, "clock_mhz": clock} for t, error in rows]
        found["done"].append(str(case))
        print(case, ", ".join(f"{t.operation} {t.us:.2f}" for t in timings), flush=True)
        write(out, found)
    write(out, found | {"complete": not like})


def continues(part: str, was: dict[str, Any], head: dict[str, Any]) -> bool:
    """Whether a part was begun by the current rule, and with the same versions of its peers."""
    return ruled(part, was) and was.get("peers") == head.get("peers")


def broken(error: str) -> bool:
    """Whether a fault left the process without its GPU."""
    return "CUDA error" in error or "Error [CUDA]" in error


def again(file: Path) -> bool:
    """Whether a part ended with its GPU's context, so that a new process can measure the rest."""
    found = files.read(file)
    return not found.get("complete", True) and any(map(broken, found["errors"][-1:]))


def without_errors(file: Path) -> None:
    """Removes failed cases, so that they are tried again; keeps what was measured."""
    if held := files.read(file):
        write(file, held | {"errors": [], "complete": False})


def write(out: Path, found: dict[str, Any]) -> None:
    """One line a timing."""
    rows = ",\n".join(f"  {json.dumps(t)}" for t in found["timings"])
    head = json.dumps({name: value for name, value in found.items() if name != "timings"}, indent=1)
    out.write_text(f'{head[:-2]},\n "timings": [\n{rows}\n ]\n}}\n')


# --- stages ---


def stage(arguments: list[str], seconds: float) -> bool:
    """Runs Python on arguments; whether it succeeded in time. Its child processes end with it."""
    said = ended(arguments, seconds)
    if said.startswith("ended"):
        print(f"{' '.join(arguments)}: {said}", flush=True)
    return said == "complete"


def main(
    out: Annotated[Path | None, typer.Option(help="The folder of the results.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="PART ..", help="Some parts.")] = None,
    peers: Annotated[Path | None, typer.Option(help="The folder of other projects' kernels.")] = None,
    anew: Annotated[bool, typer.Option("--again", help="Also run parts that are already complete.")] = False,
    seconds: Annotated[float, typer.Option(help="Of one part.")] = PART_S,
    cases: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only cases with this in their name; the part stays incomplete.")
    ] = "",
    jobs: Annotated[int, typer.Option(help="Processes that compile.")] = os.cpu_count() or 1,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Launch nothing, on any machine: see `rehearsal`.")] = False,
    stage: Annotated[str, typer.Option(hidden=True)] = "",
) -> int:
    chosen = [one_of("--only", part, (*PARTS, *FURTHER, TODAY)) for part in only or PARTS]
    if rehearse:
        rehearsed(chosen)
        return 0
    if out is None:
        raise OptionError("--out is missing: the folder of the results")
    if stage == "compile":
        compile_all(chosen, peers, jobs, cases)
        return 0
    if stage == "measure":
        measure(chosen[0], out / f"{chosen[0]}.json", peers, cases)
        return 0
    need_gpu()
    out.mkdir(parents=True, exist_ok=True)
    given = ["--out", str(out), "--jobs", str(jobs)]
    given += [*(["--cases", cases] if cases else []), *(["--peers", str(peers)] if peers else [])]
    todo = [part for part in (*PARTS, *FURTHER, TODAY) if part in chosen and (anew or not complete(out / f"{part}.json"))]
    timed = [part for part in todo if part not in ("model_shapes", TODAY)]
    for parts in (timed, [part for part in todo if part == TODAY]):  # separate processes: each has other peers
        if parts:
            run("compilation", ["perf_gates.gpu", *given, "--stage", "compile", "--only", *parts], COMPILE_S)
    failed = []
    for part in todo:
        file = out / f"{part}.json"
        if anew or part == "model_shapes":
            file.unlink(missing_ok=True)
        else:
            without_errors(file)
        if part == "model_shapes":
            long = max(SHAPES_S, seconds)
            run(
                part,
                ["perf_gates.gpu.model_shapes", "--out", str(file), "--jobs", str(jobs), "--seconds", str(long - 15)],
                long,
            )
        else:
            until = monotonic() + seconds
            for _ in range(TRIES):
                run(part, ["perf_gates.gpu", *given, "--stage", "measure", "--only", part], until - monotonic())
                if not again(file) or monotonic() > until:
                    break
        if not complete(file):
            failed.append(part)
    print(f"failed: {', '.join(failed)}" if failed else "all parts are complete", flush=True)
    return 1 if failed else 0


def rehearsed(parts: list[str]) -> None:
    """Prints what each part would time and launch, as one line of JSON per launch."""
    for part in parts:
        if part != "model_shapes":
            cases = list(rehearsal.rehearse(part))
            timed = [(t.model, t.operation, t.batch) for timings, _ in cases for t in timings]
            launched = sorted({launch.name for _, launches in cases for launch in launches})
            print(json.dumps({"part": part, "timed": timed, "launched": launched}), flush=True)


def run(name: str, arguments: list[str], seconds: float) -> None:
    start = monotonic()
    print(f"--- {name}", flush=True)
    stage(arguments, seconds)
    print(f"--- {name}: {monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
