"""Which variants of kernels are timed, and which of them the checks at the shapes of models launch; without a device.

    python -m perf_gates.gpu.variants     what is timed and not judged, and the fewest further checks that launch it

A variant is a kernel with its constants and options, and the arguments that are left out, as a launcher chooses them for a
shape, a batch and an H200. Left aside are strides and the length of a cache, for what is judged lies in larger buffers than
what is timed; types, for outputs of a batch are judged in fp32; and `ALWAYS`, what every check gives.
"""

import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from perf_gates import gates
from perf_gates.capture import Launch, recorded
from perf_gates.clock import compiling
from perf_gates.on_device import on_device
from ssmspec_ref.shapes import Array

from . import core
from .judge import further
from .judge.call import Call, Check, NothingJudgedError, Plan
from .model_shapes import checks
from .rehearsal import H200, rehearse

PARTS = ("steps", "buffered", "buffered_delta", "linear", "unrolled", "prefill")
LAUNCHERS = (
    r"^(ssd_(scan|window|tree_scan|buffered|buffered_step|chunk_scan|replay_scan)|delta_\w+|linear_rows|causal_attention)/"
)
"""The checks of what these parts and the core set launch, and of replay."""
ADDRESSES = re.compile("stride_|L$")
UNTIMED = ("_delta_tree_kernel", "ssd_replay_chain_kernel")
"""Kernels that are timed nowhere, and that launchers choose for none of the other checks: any variant of theirs is judged."""
ALWAYS = ("A", "dt_bias", "slots", "fresh", "length")
"""Gates that the kernel forms, slots, which prompts are new and what is committed: some timings go without."""


class Variant(NamedTuple):
    """A kernel, its constants and options by name, and the arguments that are left out."""

    kernel: str
    constants: tuple[tuple[str, Any], ...]
    absent: tuple[str, ...]

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel}({constants}) without {', '.join(self.absent) or 'nothing'}"


def variant(launch: Launch) -> Variant:
    names = launch.kernel.arg_names
    given = dict(zip(names, launch.args, strict=False)) | launch.kwargs
    fixed = {p.name for p in launch.kernel.params if p.is_constexpr} | {n for n in given if n not in names}
    constants = sorted((n, given[n]) for n in fixed & given.keys() if not ADDRESSES.match(n))
    absent = (n for n in names if n in given and given[n] is None and n not in fixed and n not in ALWAYS)
    return Variant(launch.name, tuple(constants), tuple(absent))


class Place(NamedTuple):
    """Where something is timed: a part, the dims, the batch."""

    part: str
    model: str
    batch: int

    def __str__(self) -> str:
        return f"{self.part}, {self.model}, batch {self.batch}"


def timed_launches() -> dict[Variant, tuple[Place, Launch]]:
    """What is timed: of each variant the first place where it is, and its launch there."""
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
    """A check of which no row is judged: what it launches is all that it does."""

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
    with on_device(H200), recorded() as launches, suppress(NothingJudgedError):
        check.run(NoRows())
    return {variant(launch) for launch in launches}


def judged(chosen: Iterable[Check]) -> dict[str, set[Variant]]:
    """What each check launches, by its name."""
    return {check.name: launched(check) for check in chosen}


def lacking(wanted: Iterable[Variant], found: dict[str, set[Variant]]) -> list[Variant]:
    """Variants that no check launches."""
    have: set[Variant] = set().union(*found.values())
    return [one for one in wanted if one not in have]


def fewest(wanted: Iterable[Variant], found: dict[str, set[Variant]]) -> list[str]:
    """Checks that launch what is wanted, each time the one of most variants; of several the first.

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
    """Of each kernel of `UNTIMED` the first variant that a check launches; one that none launches, without constants."""
    launched = [one for variants in found.values() for one in variants]
    chosen = ([one for one in launched if one.kernel == kernel] for kernel in UNTIMED)
    return {(those or [Variant(kernel, (), ())])[0]: "not timed" for kernel, those in zip(UNTIMED, chosen, strict=True)}


def main() -> int:
    """1 if a timed variant is launched by no check of the plan."""
    candidates = judged(checks(further.PLAN, LAUNCHERS))
    wanted = timed() | untimed(candidates)
    alone = judged(checks(Plan(), LAUNCHERS))
    missing = lacking(wanted, alone | {name: candidates[name] for name in further.NAMES})
    for one in missing:
        print(f"{wanted[one]}: {one}")
    print("\n".join(fewest(lacking(wanted, alone), candidates)))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
