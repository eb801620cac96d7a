"""Every module that is run by name has a command of typer, with a help, and refuses a mistake in one line."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from conformance.main import run_command
from ssmspec_fast.cli import refusal
from tests.imported import imported_names

ROOT = Path(__file__).parents[2]
PACKAGES = "ssmspec_ref", "ssmspec_fast", "kernels", "conformance", "property_tests", "perf_gates"
ALONE = "it runs in another project's environment, where only the standard library is sure to be there"
GROUP = "it runs a group of commands, whose helps tests/conformance/test_help.py asks for"
OTHERS = {
    "conformance/__main__.py": GROUP,
    "property_tests/__main__.py": GROUP,
    "ssmspec_fast/__main__.py": GROUP,
    "ssmspec_ref/__main__.py": "the oracle imports NumPy alone; it has no options",
    "conformance/device/driver.py": "a process of ours asks it for the GPUs; it has no options",
    "perf_gates/digest/measured.py": "a process of ours, beside an older tree, gives it its work on standard input",
    "conformance/engines/adapters/build_llama.py": ALONE,
    "conformance/engines/adapters/convert_llama.py": ALONE,
    "conformance/engines/adapters/stand_in.py": ALONE,
    "conformance/engines/adapters/with_llama.py": ALONE,
    "conformance/engines/adapters/with_mlx.py": ALONE,
    "conformance/engines/adapters/with_transformers.py": ALONE,
    "conformance/engines/adapters/with_vllm.py": ALONE,
}
"""Modules that are run by name and have no command of typer, and why."""
PARSES = {"conformance/engines/adapters/build_llama.py": ALONE}
"""Modules that import argparse, and why."""
STARTED = 'if __name__ == "__main__":'


def files() -> dict[str, str]:
    """The text of every module of the packages, by its path."""
    found = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in found}


FILES = files()
RUN = sorted(path for path, text in FILES.items() if STARTED in text or path.endswith("__main__.py"))
COMMANDS = [path.removesuffix(".py").replace("/", ".") for path in RUN if path not in OTHERS]


def parses(text: str) -> bool:
    return any(module == ["argparse"] for module, _ in imported_names(text, []))


def test_argparse_is_imported_only_where_typer_may_be_missing() -> None:
    assert {path for path, text in FILES.items() if parses(text)} == {*PARSES}
    assert parses("def f():\n    from argparse import ArgumentParser")
    assert parses("import argparse")


def test_the_modules_without_a_command_are_those_that_are_listed() -> None:
    assert {*OTHERS} <= {*RUN}
    assert len(COMMANDS) >= 30
    for name in COMMANDS:
        text = FILES[f"{name.replace('.', '/')}.py"]
        assert text.endswith("sys.exit(run_command(main))\n"), name


def called(name: str, *words: str) -> Any:
    module = importlib.import_module(name)
    return module.run_command(module.main, [*words])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(name, "--help") == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: python -m {name.partition('.')[0]}.")
    assert "--help" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_option_is_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert called(name, "--mistyped") == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith("No such option: --mistyped")
    assert told.endswith("--help)\n")
    assert told.count("\n") == 1


def main(
    file: str,
    part: Annotated[list[str] | None, typer.Option(metavar="PART ..")] = None,
    one: Annotated[list[str] | None, typer.Option(metavar="ONE")] = None,
    count: int = 0,
) -> None:
    print(file, part, one, count)


@pytest.mark.parametrize("run", [run_command, refusal.run_command])
def test_an_option_shown_with_two_dots_takes_several_words(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["f", "--part", "a", "b", "--one", "c"], "f ['a', 'b'] ['c'] 0"),
        (["--part", "a", "a", "--one", "c", "f"], "f ['a', 'a'] ['c'] 0"),
        (["--part", "a", "--part", "b", "--count", "2", "f"], "f ['a', 'b'] None 2"),
    ):
        assert run(main, words) is None
        assert capsys.readouterr().out == f"{said}\n"


@pytest.mark.parametrize("run", [run_command, refusal.run_command])
@pytest.mark.parametrize("words", [["f", "--count", "many"], [], ["f", "--part"], ["f", "g"]], ids=" ".join)
def test_a_mistake_is_one_line(run: Any, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_option_is_not_the_value_of_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(main, ["f", "--part", "--count", "2"]) == 2
    assert "--part needs a value, but the option --count follows it" in capsys.readouterr().err


def test_an_error_of_ours_is_none_of_the_user() -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_command(broken, [])
