"""Which variants of kernels are timed, and which of them the checks at the shapes of models launch; without a device.

    python -m perf_gates.gpu.variants     what is timed and not checked, and the fewest further checks that launch it

A variant is a kernel with its constants and options, and the arguments that are left out, as a launcher chooses them for a
shape, a batch and an H200. Ignored are strides and the length of a cache, because checked tensors are in larger buffers than
timed ones; types, because outputs of a batch are checked in fp32; and `ALWAYS`, which every check has.
"""

import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.language import constexpr

from conformance.main import run_command
from perf_gates.gpu.clock import compiling
from perf_gates.static.capture import Launch, given, leaves, recorded
from perf_gates.static.on_device import on_device
from perf_gates.verdicts import gates
from ssmspec_ref.shapes import Array

from . import core
from .judge import further
from .judge.call import Call, Check, NothingJudgedError, Plan
from .model_shapes import checks
from .rehearsal import H200, rehearse

PARTS = ("steps", "buffered", "buffered_delta", "linear", "unrolled", "prefill")
LAUNCHERS = (
    r"^(ssd_(scan|snapshots|window|tree_scan|buffered|buffered_step|chunk_scan|replay_scan)|delta_\w+|linear_rows|causal_attention"
    r"|conv_(step|window)|accept_greedy)/"
)
"""The checks of what these parts and the core set launch, and of replay."""
ADDRESSES = re.compile(r"(.*\.)?(stride|L$)")
UNTIMED = ("_delta_tree_kernel", "ssd_replay_chain_kernel")
"""Kernels that are timed nowhere, and that launchers choose in none of the other checks: any variant of them counts."""
ALWAYS = ("A", "dt_bias", "slots", "fresh", "length")
"""Gates formed by the kernel, slots, flags of new prompts and committed lengths: some timings do without."""


class Variant(NamedTuple):
    """A kernel, its constants and options by name, and the arguments that are left out."""

    kernel: str
    constants: tuple[tuple[str, Any], ...]
    absent: tuple[str, ...]

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel}({constants}) without {', '.join(self.absent) or 'nothing'}"


def variant(launch: Launch) -> Variant:
    whole, names = given(launch), launch.kernel.arg_names
    fixed = {p.name for p in launch.kernel.params if p.is_constexpr}
    constants = [(name, value) for name, value in (whole | launch.kwargs).items() if name in fixed or name not in names]
    others = [leaf for name, value in whole.items() if name not in fixed for leaf in leaves(name, value)]
    constants += [(name, value.value) for name, value in others if isinstance(value, constexpr)]
    absent = (name for name, value in others if value is None and name.rpartition(".")[2] not in ALWAYS)
    return Variant(launch.name, tuple(sorted(c for c in constants if not ADDRESSES.match(c[0]))), tuple(absent))


class Place(NamedTuple):
    """Where something is timed: a part, the dims, the batch."""

    part: str
    model: str
    batch: int

    def __str__(self) -> str:
        return f"{self.part}, {self.model}, batch {self.batch}"


def timed_launches() -> dict[Variant, tuple[Place, Launch]]:
    """The timed variants: for each the first place where it is timed, and its launch there."""
    found: dict[Variant, tuple[Place, Launch]] = {}
    for part in PARTS:
        for timings, launches in rehearse(part):
            place = Place(part, timings[0].model, timings[0].batch)
            for launch in launches:
                found.setdefault(variant(launch), (place, launch))
    for pair in gates.load().core:
        for launch in sides(pair):
            found.setdefault(variant(launch), (Place("core", pair.dims, pair.batch), launch))
    return found


def timed() -> dict[Variant, str]:
    """What is timed, and the first place where it is."""
    return {one: str(place) for one, (place, _) in timed_launches().items()}


def sides(pair: gates.Core) -> list[Launch]:
    """The launches of a pair of the core set."""
    with on_device(H200), compiling(), recorded() as launches:
        for side in core.sides(pair):
            side.call()
    return launches


class NoRows(Call):
    """A check without sampled rows: only its launches matter."""

    def __init__(self) -> None:
        self.device, self.guard, self.rng, self.drawn = "cuda", 0, np.random.default_rng(0), torch.Generator()

    def ints(self, array: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(dtype)

    def sample(self, count: int, most: int) -> Array:
        return np.arange(0)

    def heads(self, h: int) -> Array:
        return np.arange(1)

    def keeping(self, _owned: dict[str, Any], **tensors: torch.Tensor) -> Any:
        return nullcontext()


def launched(check: Check) -> set[Variant]:
    """What a check launches before it compares anything."""
    with on_device(H200), recorded() as launches, suppress(NothingJudgedError, AssertionError):
        check.run(NoRows())
    return {variant(launch) for launch in launches}


def launched_by(chosen: Iterable[Check]) -> dict[str, set[Variant]]:
    """The variants that each check launches, by its name."""
    return {check.name: launched(check) for check in chosen}


def lacking(wanted: Iterable[Variant], found: dict[str, set[Variant]]) -> list[Variant]:
    """Variants that no check launches."""
    have: set[Variant] = set().union(*found.values())
    return [one for one in wanted if one not in have]


def fewest(wanted: Iterable[Variant], found: dict[str, set[Variant]]) -> list[str]:
    """A small set of checks that launch the wanted variants: greedily the check with most of them, the first of equals.

    Raises: LookupError for a variant that none of them launches.
    """
    left, names = {*wanted}, list[str]()
    while left:
        best = max(found, key=lambda name: len(found[name] & left))
        if not found[best] & left:
            raise LookupError(f"no check launches {', '.join(map(str, left))}")
        names.append(best)
        left -= found[best]
    return sorted(names)


def untimed(found: dict[str, set[Variant]]) -> dict[Variant, str]:
    """For each kernel of `UNTIMED` the first variant that a check launches; without constants if no check launches it."""
    launched = [one for variants in found.values() for one in variants]
    chosen = ([one for one in launched if one.kernel == kernel] for kernel in UNTIMED)
    return {(those or [Variant(kernel, (), ())])[0]: "not timed" for kernel, those in zip(UNTIMED, chosen, strict=True)}


def main() -> int:
    """1 if a timed variant is launched by no check of the plan."""
    candidates = launched_by(checks(further.PLAN, LAUNCHERS))
    wanted = timed() | untimed(candidates)
    alone = launched_by(checks(Plan(), LAUNCHERS))
    missing = lacking(wanted, alone | {name: candidates[name] for name in further.NAMES})
    for one in missing:
        print(f"{wanted[one]}: {one}")
    print("\n".join(fewest(lacking(wanted, alone), candidates)))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(run_command(main))
