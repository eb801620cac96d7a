"""The help of every command: short and long, values by their kind, and words that a shell completes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from conformance.main import build, named
from conformance.run.worker import environment
from tests.commands import done


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def test_a_value_is_shown_by_its_kind() -> None:
    whole = typer.main.get_command(build())  # not when the module is imported: this imports what every command needs
    named(whole)
    found = list(commands(whole))
    assert len(found) > 20
    for path in found:
        command: Any = whole
        for name in path:
            command = command.commands[name]
        kinds = {option.name: option.metavar for option in command.params if option.opts[0].startswith("-")}
        assert set(kinds.values()) <= {"PATH", "N", "NUMBER", "TEXT", " "}, (path, kinds)
        assert all((kinds[option.name] == " ") == option.is_flag for option in command.params if option.name in kinds), path


@pytest.mark.parametrize("path", [(), ("conform", "run"), ("generate",), ("gates", "check")], ids=" ".join)
def test_the_short_help_is_the_long_one(path: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(build(), [*path, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output
    assert "Usage" in short.output


def test_a_shell_completes_commands_and_options() -> None:
    code = "import sys; sys.argv = ['ssmspec']; from conformance.main import main; main()"
    for words, count, wanted in (("ssmspec con", 1, "conform"), ("ssmspec conform run --max-f", 3, "--max-failures")):
        asked = {"_SSMSPEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment() | asked, check=True)
        assert done.stdout.split() == [wanted]


@pytest.mark.parametrize("words", [(), ("run",), ("init",), ("merge",)], ids=" ".join)
def test_the_help_of_the_module_shows_no_types_of_python(words: tuple[str, ...]) -> None:
    shown = done(*words, "--help", code=0).stdout
    assert "Usage: python -m conformance" in shown
    assert re.findall(r"<[a-zA-Z].*?>|\{[a-z]+\}", shown) == []


def test_a_mistake_is_one_line_of_the_module_too() -> None:
    told = done("rum", code=2).stderr
    assert told == "No such command 'rum'. Did you mean 'run'? (python -m conformance --help)\n"
