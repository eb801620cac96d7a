"""A worker of the checks at the shapes of models: one kernel breaks its GPU, another ends the process."""

import os
from collections.abc import Callable
from dataclasses import replace

from perf_gates.gpu import model_shapes
from perf_gates.gpu.judge.call import Check, Plan
from perf_gates.gpu.model_shapes import Verdict, judge
from perf_gates.losslessness.workers import Failed

BREAKS, ENDS = "accept_greedy", "commit_tokens"
ERROR = "AcceleratorError: CUDA error: an illegal memory access was encountered"
made = model_shapes.worker


def judged(check: Check, device: str, guard: int) -> Verdict:
    if check.kernel == ENDS:
        os._exit(3)
    verdict = judge(check, device, guard)
    return replace(verdict, passed=False, message=ERROR) if check.kernel == BREAKS else verdict


def worker(plan: Plan, only: str, device: str, guard: int) -> Callable[[int], Verdict | Failed]:
    """As that of `model_shapes`, in a process where nothing else is judged."""
    model_shapes.judge = judged
    return made(plan, only, device, guard)
