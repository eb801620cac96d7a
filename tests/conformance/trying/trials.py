"""`ssmspec conform try` on a module that a test writes, and verdicts on the adapter that it writes."""

import importlib
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.judge.verdict import judge
from conformance.suite import of_operation
from ssmspec_ref.contract import Capability, Verdict

NUMBERS = count()
"""A new name for every module, because modules are kept once they are imported."""


@dataclass(frozen=True)
class Trial:
    """How the command ended, what it said on one line, and the adapter's file."""

    code: int
    said: str
    adapter: Path

    @property
    def capability(self) -> tuple[str, Capability]:
        """The operation that the adapter declares, and its capability."""
        made = importlib.import_module(self.adapter.stem).adapter()
        ((operation, capability),) = made.subjects[0].capabilities.items()
        return operation, capability

    def verdicts(self) -> list[Verdict]:
        """The verdicts on the cases of the tier smoke."""
        operation, capability = self.capability
        (specification,) = of_operation(operation)
        cases = specification.cases("smoke", capability.limits)
        return [judge(specification, capability, case).verdict for case in cases]


class Trying:
    """The command in a folder of the test's, with modules that it writes there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)

    def module(self, text: str) -> str:
        """Write a module; its name."""
        name = f"mine_{next(NUMBERS)}"
        (self.folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    def __call__(self, target: str, *flags: str, run: bool = False, typed: str | None = None) -> Trial:
        """Run the command on a target."""
        out = self.folder / f"adapter_{next(NUMBERS)}.py"
        words = ["try", target, "--out", str(out), *flags, *([] if run else ["--no-run"])]
        ended = CliRunner().invoke(app, words, input=typed)
        importlib.invalidate_caches()
        return Trial(ended.exit_code, " ".join(ended.output.split()), out)


@pytest.fixture
def trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trying:
    return Trying(tmp_path, monkeypatch)
