"""The results of a benchmark: a file that grows step by step, and its table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from ssmspec_ref.errors import ParameterError

from .fit import break_even, fit
from .steps import PHASES, StepTime
from .subjects import Subject

SCHEMA = 1
MADE_WITH = "ssmspec.made_with"
"""Entry points that identify the code of a result, because the engine does not import the packages that test it."""


@dataclass
class Report:
    """`machine` identifies hardware, versions and kernels. A file of another machine, other versions or other kernels is not
    continued. The commit may differ.

    `failed` holds the steps that could not be measured in this run, and why.

    Units: `copy_gb_s` is the device's copy bandwidth, `weights` the bytes of weights that a step of each model reads.
    """

    machine: dict[str, str]
    copy_gb_s: float | None = None
    weights: dict[str, int] = field(default_factory=dict)
    steps: list[StepTime] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def has(self, subject: Subject) -> bool:
        return any(step.subject == subject for step in self.steps)

    def plain(self, subject: Subject) -> StepTime | None:
        """The plain step of the same model at the same batch."""
        return next(
            (s for s in self.steps if s.subject == Subject(subject.model, "plain", batch=subject.batch)), None
        )  # fmt: skip

    def ratio(self, step: StepTime) -> float | None:
        """A step's time in plain steps: the tokens that it must emit to pay."""
        plain = self.plain(step.subject)
        return None if plain is None else break_even(step.us, plain.us)

    def floor_us(self, step: StepTime) -> float | None:
        """The time to read the weights of a step at copy bandwidth."""
        weights = self.weights.get(step.subject.model)
        return None if weights is None or self.copy_gb_s is None else weights / (1e3 * self.copy_gb_s)

    def fits(self) -> dict[str, dict[str, Any]]:
        """For each model and method with several windows at batch 1, the cost of a window and where it pays."""
        found = {}
        for model, method in dict.fromkeys((s.subject.model, s.subject.method) for s in self.steps):
            mine = [s for s in self.steps if s.subject == Subject(model, method, s.subject.window)]
            degree = 1 if "llama" not in model and "hybrid" not in model else 2
            if len(mine) > degree and method != "plain":
                line = fit([s.subject.window for s in mine], [s.us for s in mine], degree)
                pays = {s.subject.window: self.ratio(s) for s in mine}
                found[f"{model} {method}"] = {"coefficients_us": line.coefficients, "break_even_tau": pays}
        return found

    def as_json(self) -> str:
        held = asdict(self)
        for shown, step in zip(held["steps"], self.steps, strict=True):
            shown |= {"name": step.subject.name, "plain_steps": self.ratio(step), "floor_us": self.floor_us(step)}
        return json.dumps({"schema": SCHEMA, **held, "fits": self.fits()}, indent=1) + "\n"

    def table(self) -> Table:
        table = Table("step", "us", "plain steps", "of floor", "eager us", *PHASES, "pools MB", "peak GB", title="Steps")
        for step in self.steps:
            ratio, floor = self.ratio(step), self.floor_us(step)
            table.add_row(
                step.subject.name,
                f"{step.us:.0f}",
                "" if ratio is None else f"{ratio:.3f}",
                "" if floor is None else f"{step.us / floor:.2f}",
                f"{step.eager_us:.0f}",
                *(f"{step.phases[name]:.0f}" for name in PHASES),
                f"{step.memory / 1e6:.1f}",
                f"{step.peak / 1e9:.2f}",
            )
        return table


def costs(report: Report) -> list[dict[str, Any]]:
    """The costs that a chooser reads: chains of one draft, for any number of emitted tokens."""
    names = ("model", "method", "batch", "window")
    chains = [s for s in report.steps if s.subject.parents is None and (s.subject.drafts, s.subject.advanced) == (1, 1)]
    return [{name: getattr(s.subject, name) for name in names} | {"us": s.us} for s in chains]


def machine_of(device: torch.device) -> dict[str, str]:
    """What the times depend on. Commit and kernels come from the package that measures for the gates, if installed."""
    found = {"device": "cpu", "torch": torch.__version__, "commit": "unknown", "kernels": "unknown"}
    for entry in entry_points(group=MADE_WITH):
        found |= entry.load()()
    if device.type == "cuda":
        import triton

        found |= {"device": torch.cuda.get_device_name(device), "triton": triton.__version__, "cuda": str(torch.version.cuda)}
    return found


def alike(one: dict[str, str], other: dict[str, str]) -> bool:
    """Whether times of two machines and code versions may be compared."""
    return {**one, "commit": ""} == {**other, "commit": ""}


def read(file: Path, machine: dict[str, str]) -> Report:
    """A report to continue. Raises: ParameterError for one of another machine, or a file that is not a report."""
    try:
        held = json.loads(file.read_text())
        steps = [step_of(step) for step in held["steps"]]
        found = Report(held["machine"], held["copy_gb_s"], held["weights"], steps)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError(f"{file} cannot be read as a report: {error}; give another file, or remove it") from error
    if not alike(found.machine, machine):
        raise ParameterError(f"{file} was measured on {found.machine}, but this is {machine}; give another file")
    return found


def step_of(held: dict[str, Any]) -> StepTime:
    subject = dict(held["subject"])
    if subject["parents"] is not None:
        subject["parents"] = tuple(subject["parents"])
    names = ("us", "eager_us", "phases", "memory", "peak")
    return StepTime(Subject(**subject), *(held[name] for name in names))


def merged(parts: Sequence[Report]) -> Report:
    """Reports of one machine merged; of a step in several, the first is kept. Raises: ParameterError."""
    if not all(alike(part.machine, parts[0].machine) for part in parts):
        raise ParameterError("the parts were measured on different machines or versions; measure them again on one machine")
    whole = Report(parts[0].machine, parts[0].copy_gb_s)
    for part in parts:
        whole.weights |= part.weights
        whole.steps += [step for step in part.steps if not whole.has(step.subject)]
    return whole
