"""The kernels under compute-sanitizer, at small batches: `python -m perf_gates.gpu.sanitized --out FILE`.

memcheck     accesses beyond an allocation, or misaligned; every tensor is a separate allocation of its exact size
racecheck    two threads at one word of shared memory with no barrier between them

It runs one check of every launcher and variant of `model_shapes`, and more of those that have several kernels, with
outputs compared as there, spread over processes; the launched kernels are recorded. A fault of its kind is planted
first: a tool that does not report it proves nothing. A tool that the machine's runtime refuses is recorded
with its message. FILE keeps other tools' results for the same kernels on such a machine, so that each tool may have its own
GPU, and a tool's earlier results for kernels whose code is the same; checks of other code are stale, and count as not run.
Exits with 1 unless every tool that ran saw its fault and nothing else.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from conformance.main import run_command
from perf_gates import files
from perf_gates.digest import record
from perf_gates.gpu.judge.call import Check, Plan
from perf_gates.machine import fingerprint, kernels_hash, need_gpu
from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import one_of

PLAN = Plan(batches=(2,), windows=(6,), nodes=(13,), rings=((6, 22),))
MANY = Plan(batches=(16,), windows=(10, 32), nodes=(63,), rings=((6, 32), (10, 64)))
OTHERWISE = "^(delta_chunked|delta_tree|delta_buffered|ssd_tree_scan|ssd_replay_scan|ssd_buffered)/"
"""Launchers that have other kernels for many rows, more tokens, larger trees and rings: checked with both plans."""
PLANTED = {
    "memcheck": 'extern "C" __global__ void planted(float* x) { x[blockDim.x + threadIdx.x] = 1.0f; }',
    "racecheck": """extern "C" __global__ void planted(float* x) {
        __shared__ float s[64];
        s[threadIdx.x] = x[threadIdx.x];
        x[threadIdx.x] = s[63 - threadIdx.x];
    }""",
}
"""For 64 threads and as many floats: a write after the last, and a read of what another warp writes."""
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed)")
FOUND = re.compile(r"=+ (?!RACECHECK SUMMARY).*(Invalid|hazard|Race|Error:)")
JUDGED = "judged: "


@dataclass
class Said:
    """One tool's results: `kernels` that the checks launched; `found` errors or hazards; `failed` checks with wrong outputs;
    `unrun` checks that did not finish; `refused`: why the tool could not run; `lines`: the first findings; `codes`: a
    hash of the code of each check's kernel; `stale`: the same for checks that passed before that code changed."""

    tool: str
    planted: int = 0
    checks: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    found: int = 0
    failed: list[str] = field(default_factory=list)
    unrun: list[str] = field(default_factory=list)
    refused: str = ""
    lines: list[str] = field(default_factory=list)
    codes: dict[str, str] = field(default_factory=dict)
    stale: dict[str, str] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether the tool ran over everything, found the planted fault, and nothing else."""
        return bool(self.planted and self.checks) and not (self.found or self.failed or self.unrun or self.refused)


def chosen(only: str = "") -> list[Check]:
    """The first check of each launcher and variant, and all of `MANY`; rings, which take most time, before all others. With
    `only`, those whose name the pattern matches."""
    from perf_gates.gpu.model_shapes import checks

    found = list({(check.kernel, check.variant): check for check in reversed(checks(PLAN))}.values())[::-1]
    named = [check for check in (*checks(MANY, OTHERWISE), *found) if re.search(only, check.name)]
    return sorted(named, key=lambda check: "buffered" not in check.kernel)


@contextmanager
def launched() -> Iterator[set[str]]:
    """The names of the compiled kernels that Triton launches in the block."""
    from triton.runtime.jit import JITFunction

    from perf_gates.static.capture import launching

    names, run = set[str](), JITFunction.run

    def noted(kernel: JITFunction, *args: Any, **named: Any) -> Any:
        names.add(kernel.__name__)
        return run(kernel, *args, **named)

    with launching(noted):
        yield names


def run(tool: str, share: str, only: str, seconds: float) -> str:
    """The output of a process under a tool, as far as it arrives in time: for the planted fault, or for a share of the
    checks whose name a pattern matches."""
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "application-only", "--print-limit", "20"]
    work = [sys.executable, "-m", "perf_gates.gpu.sanitized", "--tools", tool, "--inside", share]
    work += ["--only", only] if only else []
    env = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        try:
            made = subprocess.Popen([*command, *work], env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return f"{error}\n"
        try:
            made.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(made.pid, signal.SIGKILL)  # the tool, and the process it runs
            made.wait()
        said.seek(0)
        return said.read()


def counted(text: str) -> int | None:
    """Errors or hazards in the tool's own summary; None without a summary."""
    found = SUMMARY.search(text)
    return None if found is None else int(found[1] or found[2])


def heard(tool: str, planted: str, shares: list[str]) -> Said:
    """A tool's results for the planted fault and for every share."""
    said, seen = Said(tool), counted(planted)
    if not seen:
        lines = [line for line in planted.splitlines() if line.strip(" =")]
        said.refused = next((line for line in lines if "rror" in line), "; ".join(lines[-3:]) or "it said nothing")[:300]
        return said
    said.planted, kernels = seen, set[str]()
    for i, text in enumerate(shares):
        said.found += counted(text) or 0
        if counted(text) is None:
            said.unrun.append(f"share {i} printed no summary")
        said.lines += [line for line in text.splitlines() if FOUND.match(line)][:5]
        for line in (line for line in text.splitlines() if line.startswith(JUDGED)):
            verdict = json.loads(line.removeprefix(JUDGED))
            said.checks.append(verdict["check"])
            kernels |= {*verdict["kernels"]}
            if not verdict["passed"]:
                said.failed.append(f"{verdict['check']}: {verdict['message']}")
    said.checks.sort()
    said.kernels = sorted(kernels)
    said.unrun += sorted({check.name for check in chosen()} - {*said.checks})
    said.codes = dict.fromkeys(said.checks, kernels_hash())
    return said


def current(check: str, kernels: str) -> bool:
    """Whether a check, given by its name, ran the current code of its kernel, on kernels of this hash."""
    return not record.revision_fault(kernels, check.split("/")[0])


def standing(said: Said) -> Said:
    """The results that are still valid: checks of kernels whose code has changed are stale, and count as not run."""
    names = {check.name for check in chosen()}
    stand = [name for name in said.checks if name in names and current(name, said.codes[name])]
    stale = said.stale | {name: said.codes[name] for name in said.checks if name in names and name not in stand}
    shares = [name for name in said.unrun if name.startswith("share ")]
    codes = {name: said.codes[name] for name in stand}
    return replace(said, checks=stand, codes=codes, stale=stale, unrun=[*shares, *sorted(names - {*stand})])


def joined(before: Said, now: Said) -> Said:
    """A tool's new results, with its valid earlier ones if it found nothing then and can run now."""
    before = standing(before)
    if now.refused or before.refused or before.found or before.failed:
        return now
    codes = before.codes | now.codes
    stale = {name: code for name, code in before.stale.items() if name not in codes}
    kernels = sorted({*before.kernels, *now.kernels})
    unrun = [name for name in now.unrun if name not in codes]
    return replace(now, checks=sorted(codes), codes=codes, stale=stale, kernels=kernels, unrun=unrun)


def kept(file: Path, machine: dict[str, Any]) -> list[Said]:
    """The contents of a file, if it was written on such a machine, with any kernels; otherwise nothing."""
    held = files.read(file) or {"machine": {}, "tools": []}
    same = all(
        held["machine"].get(name, value) == value
        for name, value in machine.items()
        if name not in ("commit", "kernels", "timing", "code")
    )
    return [Said(**one) for one in held["tools"] if same]


def inside(tool: str, share: str, only: str) -> Iterator[str]:
    """The work of a process: the planted fault, or share `i/n` of the checks that `only` matches, a line for each."""
    import torch

    from perf_gates.gpu.model_shapes import judge

    if share == "planted":
        launch = torch.cuda._compile_kernel(PLANTED[tool], "planted")
        launch((1, 1, 1), (64, 1, 1), (torch.zeros(64, device="cuda"),))
        torch.cuda.synchronize()
        return
    i, n = map(int, share.split("/"))
    for check in chosen(only)[i::n]:
        with launched() as names:
            began, verdict = monotonic(), judge(check, "cuda", 0)
        held = {"check": check.name, "passed": verdict.passed, "message": verdict.message, "kernels": sorted(names)}
        yield JUDGED + json.dumps(held | {"seconds": round(monotonic() - began, 1)})


def main(
    out: Annotated[Path | None, typer.Option(help="The file of the results.")] = None,
    tools: Annotated[list[str] | None, typer.Option(metavar="TOOL ..", help=f"Some of {', '.join(PLANTED)}.")] = None,
    only: Annotated[str, typer.Option(help="Checks whose name this pattern matches; valid results of others are kept.")] = "",
    jobs: Annotated[int, typer.Option(help="Processes at once, of all tools together.")] = 8,
    seconds: Annotated[float, typer.Option(help="Of the whole run.")] = 300.0,
    logs: Annotated[Path | None, typer.Option(help="A folder for what every process said.")] = None,
    share: Annotated[str, typer.Option("--inside", hidden=True)] = "",
) -> int:
    chosen_tools = [one_of("--tools", tool, PLANTED) for tool in tools or PLANTED]
    if share:
        for line in inside(chosen_tools[0], share, only):
            print(line, flush=True)
        return 0
    if out is None:
        raise OptionError("--out is missing: the file of the results")
    need_gpu()
    until, each = monotonic() + seconds, max(1, jobs // len(chosen_tools))
    with ThreadPoolExecutor(jobs) as pool:
        planted = {tool: pool.submit(run, tool, "planted", only, until - monotonic()) for tool in chosen_tools}
        blind = [tool for tool in chosen_tools if not counted(planted[tool].result())]
        shares = {
            tool: [pool.submit(run, tool, f"{i}/{each}", only, until - monotonic()) for i in range(each)]
            for tool in chosen_tools
            if tool not in blind
        }
        said = [heard(tool, planted[tool].result(), [s.result() for s in shares.get(tool, [])]) for tool in chosen_tools]
    machine = fingerprint()
    before = {one.tool: one for one in kept(out, machine)}
    others = [standing(one) for one in before.values() if one.tool not in chosen_tools]
    now = [joined(before[one.tool], one) if one.tool in before else one for one in said]
    every = sorted([*others, *now], key=lambda one: one.tool)
    files.write(out, {"machine": machine, "tools": [asdict(one) for one in every]})
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
        for tool, parts in shares.items():
            (logs / f"{tool}.txt").write_text("\n".join(part.result() for part in parts))
    for one in said:
        print(f"{one.tool}: {one.refused or f'{len(one.checks)} checks, {one.found} found, {len(one.failed)} failed'}")
        for line in (*one.lines, *one.failed, *(f"not run: {name}" for name in one.unrun)):
            print(f"{one.tool}: {line}")
    return 0 if all(one.clean for one in said) else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
