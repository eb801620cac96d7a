"""Campaigns of the tests: small adapters, parts that were played, the command in this process and in one of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from conformance.progress import lines
from property_tests.campaigns.campaign import Campaign, Played
from property_tests.cli import app
from tests.commands import call, ends

REFERENCE = "conformance.adapters.sequences:adapter"
MODULE = """
import sys
from conformance.faults.decoding import sequences
from ssmspec_ref.contract import Adapter, FLOAT64, Decoding, Subject


class Ends(sequences.Right):
    def verify(self, *given, **more):
        sys.exit(0)


def adapter():
    return Adapter("faulty", "1", {given})
"""
NONE = '(Subject("s", {}),)'


def module(folder: Path, name: str, fault: str = "sequences.LosesLastToken", given: str = "") -> str:
    """A module with an adapter of one decoding, which is wrong; its name for --adapter."""
    decodings = f'decodings=(Decoding("faulty", {fault}, FLOAT64, trees=True),)'
    (folder / f"{name}.py").write_text(MODULE.format(given=given or decodings))
    return f"{name}:adapter"


def part(number: int, failure: str = "") -> Played:
    """A part as a campaign writes it down."""
    line = {"schema": lines.SCHEMA, "head": {}, "number": number, "examples": 1, "reached": {}, "decodings": {}, "used": {}}
    said = {"message": failure, "at": 1} if failure else None
    return Played({**line, "worst": None, "failure": said}, f"# {failure}\nraise AssertionError\n" if failure else "")


def campaign(folder: Path, **given: Any) -> Campaign:
    return Campaign(REFERENCE, folder, profile="ci", examples=2, **given)


def played(*words: object, adapter: str = REFERENCE) -> Any:
    """A campaign of the command, of a part."""
    return call("--profile", "ci", "--parts", 1, "--adapter", adapter, *words, app=app)


def plays(code: int, *words: object, said: Any = (), adapter: str = REFERENCE) -> str:
    """The same; it ends with a code and says something."""
    return ends(code, "--profile", "ci", "--parts", 1, "--adapter", adapter, *words, said=said, app=app)


def report(code: int, *folders: object, said: Any = ()) -> str:
    """What `ssmspec fuzz report` says of folders, which ends with a code."""
    return ends(code, "report", *folders, said=said, app=app)


def started(folder: Path, adapter: str, **given: Any) -> "subprocess.Popen[str]":
    """`ssmspec fuzz` over a module that lies in the parent of its folder."""
    given = {"adapter": adapter, "profile": "ci", "examples": 60, "parts": 1, "folder": folder, **given}
    options = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, "-P", "-c", "from conformance.main import main; main()", "fuzz", *options]
    place = os.environ | {"PYTHONPATH": str(folder.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place)
