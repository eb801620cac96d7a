"""Candidates beside the current kernel, in one run on a GPU: `python -m perf_gates.gpu.candidates --out FILE`.

For each pair the first launches are compared: what they write must be equal, or lie within the rounding of outputs. A pair
that differs by more is not timed. The two sides are timed in turn, in graphs over states that no cache holds, until their
ratio is known to 1 % (`paired_timing`). After the last timing each graph must still write its own outputs (`output_guard`).

    ratio    the candidate's time over that of the current kernel: below 1 it is faster

Exits with 1 if a pair differs or fails. FILE is written after each pair, and a run that is started
again continues after them.
What they cost in registers and instructions is in `costs`, which needs no GPU.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import recorded
from perf_gates.gpu.core import LEAST, Events
from perf_gates.gpu.output_guard import check_written, numbered, own_outputs
from perf_gates.gpu.paired_timing import Side as TimedSide
from perf_gates.gpu.paired_timing import WrongOutputError, measure
from perf_gates.machine import fingerprint, need_gpu

from .pairs import ROUNDING, Pair, Side, copies_of, pairs

WANTED, MOST = 0.01, 40
SECONDS = 480
"""Of a run; what is left is measured by the next one."""


def compared(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """How far what two sides wrote is apart, relative to the largest, by name; 0: the same bits."""
    apart = {}
    for name, mine in found.items():
        if not torch.equal(mine, wanted[name]):
            far = (mine.double() - wanted[name].double()).abs().max() / wanted[name].double().abs().max()
            apart[name] = float(far) if far > 0 else float("nan")  # NaN: not finite, or zeros of two signs
    return {name: apart.get(name, 0.0) for name in found}


def first_launches(sides: tuple[Side, Side], batch: int) -> dict[str, float]:
    """`compared` after one launch of each. Raises: WrongOutputError beyond the rounding of outputs."""
    slots, wrote = torch.arange(batch, device="cuda", dtype=torch.int32), []
    for side in sides:
        y = torch.full_like(side.like, float("nan"))
        side.launch(slots, y)
        wrote.append({"outputs": y, **side.written})
    apart = compared(*wrote)
    if wrong := {name: far for name, far in apart.items() if not far <= ROUNDING}:
        raise WrongOutputError(f"differs from the current kernel by {wrong} of the largest; {ROUNDING:.2g} is rounding")
    return apart


def measured(pair: Pair) -> dict[str, Any]:
    """The figures of a pair. Raises: WrongOutputError."""
    copies = copies_of(pair)
    sides = pair.sides(copies)
    apart = first_launches(sides, pair.batch)
    slots = [torch.arange(i * pair.batch, (i + 1) * pair.batch, device="cuda", dtype=torch.int32) for i in range(copies)]
    graphs, calls = [], []
    for name, side, launches in zip(("candidate", "current"), sides, pair.launches, strict=True):
        outputs = own_outputs(side.like, numbered(copies))
        each = [lambda s=s, y=y, f=side.launch: f(s, y) for s, y in zip(slots, outputs.values(), strict=True)]
        replay = recorded(each * -(-LEAST // copies))
        graphs.append((replay, outputs, [side.written["S"]]))
        calls.append(TimedSide(name, replay, lambda: None, launches=launches))
    found = measure(calls[0], calls[1], Events(), wanted=WANTED, most=MOST)
    for replay, outputs, states in graphs:
        check_written(replay, outputs, states)
    each_us = [median(times) / (copies * -(-LEAST // copies)) for times in (found.over_us, found.under_us)]
    return {
        "pair": str(pair), "candidate_us": each_us[0], "current_us": each_us[1], "ratio": found.ratio, "error": found.error,
        "bytes": pair.bytes, "apart": apart,
    }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if row.get("error_message"):
        return f"| {row['pair']} | - | - | - | {row['error_message']} |"
    same = "same bits" if not any(row["apart"].values()) else f"{max(row['apart'].values()):.1e} apart"
    figures = f"{row['candidate_us']:.2f} | {row['current_us']:.2f} | {row['ratio']:.3f} +- {row['error']:.3f}"
    return f"| {row['pair']} | {figures} | {same} |"


def run(out: Path, like: str, seconds: float) -> list[dict[str, Any]]:
    """Measures what the file does not hold yet, until the time is over."""
    head, until = fingerprint(), monotonic() + seconds
    read = json.loads(out.read_text()) if out.exists() else {}
    rows: list[dict[str, Any]] = read["pairs"] if read.get("machine") == head else []
    print("| pair | candidate, us | current, us | ratio | outputs and states |\n|---|---|---|---|---|")
    for pair in pairs():
        if like not in str(pair) or str(pair) in {row["pair"] for row in rows}:
            continue
        if monotonic() > until:
            print("no time left; start it again for the other pairs", file=sys.stderr)
            break
        try:
            rows.append(measured(pair))
        except Exception as error:
            rows.append({"pair": str(pair), "error_message": f"{type(error).__name__}: {error}".split("\n")[0][:300]})
        torch.cuda.empty_cache()
        print(line(rows[-1]), flush=True)
        out.write_text(json.dumps({"machine": head, "pairs": rows}, indent=1) + "\n")
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_gates.gpu.candidates", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("candidates.json"))
    parser.add_argument("--only", default="", metavar="TEXT", help="only pairs with this in their name")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args(argv)
    need_gpu(parser)
    rows = run(options.out, options.only, options.seconds)
    return 1 if any("error_message" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
