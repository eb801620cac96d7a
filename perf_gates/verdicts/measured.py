"""The parts of a run on a GPU as they were written, and figures read from them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import files
from ..digest import record
from ..digest.texts import text

PARTS = ("steps", "buffered", "buffered_delta", "kda", "unrolled", "linear", "prefill", "peers", "model_shapes")
FURTHER = ("papers", "bench", "trained", "equality")
"""What the papers' tables need in addition: more windows and rings of the kernels; steps of an engine; its runs with the
checkpoints; whether speculation equals plain decoding at full size."""

OPTIONAL = ("core_set",)
"""Parts that a folder may hold."""

TODAY = "peers_today"
"""Kernels that engines run today, beside ours: `report.peers_today` reads it, and no limit comes from it."""

LOOKED_AT = (*PARTS[:-1], "papers", TODAY)
"""Parts whose times are kept only if each launch of a graph was seen to write its own output."""


def rule(part: str) -> dict[str, str]:
    """The record of outputs in a part's head; empty for a part that times no graphs of kernels."""
    return {"outputs": "each launch its own"} if part in LOOKED_AT else {}


def ruled(part: str, machine: dict[str, Any]) -> bool:
    """Whether a part was measured by the current rule."""
    return rule(part).items() <= machine.items()


def stands(part: str, machine: dict[str, Any], kernels: str, of: str = "") -> bool:
    """Whether a part, or its measurement shape/operation/batch, is of the current code, whose kernels have this hash."""
    return not fault(part, machine, kernels, of)


def fault(part: str, machine: dict[str, Any], kernels: str, of: str = "") -> str:
    """Why not."""
    if machine["kernels"] == kernels and machine.get("code", text()) == text():
        return ""
    return record.fault(part, machine.get("commit", "unknown"), machine["kernels"], of)


class Missing(LookupError):
    """A measurement that the results do not contain."""


@dataclass(frozen=True)
class At:
    """The name of one measurement; for `linear_rows` the batch is the number of rows."""

    part: str
    shape: str
    operation: str
    batch: int


class Results:
    """The results in a folder, by part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        every = {part: files.read(folder / f"{part}.json") for part in (*PARTS, *FURTHER, *OPTIONAL)}
        self.parts = {part: held for part, held in every.items() if held}
        self.timings = {
            At(part, t["model"], t["operation"], t["batch"]): t
            for part, found in self.parts.items()
            for t in found.get("timings", [])
        }

    def timing(self, at: At) -> dict[str, Any]:
        """Raises: Missing."""
        if at not in self.timings:
            raise Missing(f"{at.part}: no {at.operation!r} of {at.shape} at {at.batch}")
        return self.timings[at]

    def us(self, at: At) -> float:
        return float(self.timing(at)["us"])

    def copy_us(self, at: At) -> float:
        """The time of the bytes at the run's copy bandwidth."""
        return float(self.timing(at)["bytes"] / self.parts[at.part]["machine"]["copy_bytes_per_us"])

    def least_us(self, at: At, tflops: float) -> float:
        """The least time of a step: its weights at the run's copy bandwidth, or its products; then the other bytes.

        Raises: Missing for a step that was measured without its bytes and products.
        """
        timing = self.timing(at)
        if not timing.get("weights") or "products" not in timing:
            raise Missing(f"{at.part}: no bytes of {at.operation!r} of {at.shape} at {at.batch}")
        copy = float(self.parts[at.part]["machine"]["copy_bytes_per_us"])
        linear = max(timing["weights"] / copy, timing["products"] / (tflops * 1e6))
        return float(linear + (timing["bytes"] - timing["weights"]) / copy)

    def launch_us(self, part: str) -> float:
        return float(self.parts[part]["machine"]["empty_launch_us"])


Figure = Callable[[Results], float]


@dataclass(frozen=True)
class Ratio:
    """A time over a time; of several, the shortest is taken."""

    over: tuple[At, ...]
    under: tuple[At, ...]

    def __call__(self, results: Results) -> float:
        return min(map(results.us, self.over)) / min(map(results.us, self.under))


@dataclass(frozen=True)
class OfCopy:
    """Bytes over time, as a share of the run's copy bandwidth."""

    at: At

    def __call__(self, results: Results) -> float:
        return results.copy_us(self.at) / results.us(self.at)


@dataclass(frozen=True)
class OverFloor:
    """Time over the time of the bytes and one launch."""

    at: At

    def __call__(self, results: Results) -> float:
        return results.us(self.at) / (results.copy_us(self.at) + results.launch_us(self.at.part))
