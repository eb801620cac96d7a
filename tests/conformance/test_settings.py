"""The table [tool.ssmspec] of pyproject.toml: what `conform run` and pytest take; a mistake is named."""

from pathlib import Path

import pytest

from conformance.refusal import REFUSED
from conformance.report.stream import read_report
from conformance.settings import PYTEST, RUN, Settings, read_settings
from ssmspec_ref.errors import OptionError
from tests.commands import ends

pytest_plugins = ["pytester"]

KERNELS = """
from ssmspec_ref import conv
from ssmspec_ref.contract import FLOAT64, Adapter, Capability, Subject

def adapter():
    return Adapter("mine", "1", (Subject("x", {"conv.commit": Capability(conv.commit, FLOAT64)}),))
"""
TABLE = '[tool.ssmspec]\nadapter = "set_kernels:adapter"\ntier = "smoke"\nreport = "out"\n'
CASE = "conv.commit/b2,t7,c6,w4/plain/normal/s0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set_kernels.py").write_text(KERNELS)
    return tmp_path


def table(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_a_run_takes_the_table_and_the_command_line_wins(folder: Path) -> None:
    table(folder, TABLE + "seed = 7\njobs = 2\n")
    ends(0, "run", "--in-process")
    head = read_report(folder / "out").header
    assert (head.tier, head.seeds) == ("smoke", (7,))
    ends(0, "run", "--in-process", "--seed", 8, "--report", "other")
    assert read_report(folder / "other").header.seeds == (8,)
    ends(0, "run", "--in-process", "--case", CASE)
    assert read_report(folder / "out" / "case").header.only
    assert read_report(folder / "out").header.seeds == (7,), "the report of all cases stays"


def test_a_program_on_the_command_line_replaces_the_adapter_of_the_table(folder: Path) -> None:
    table(folder, TABLE)
    said = ends(
        REFUSED, "run", "--program", "./no-such-program", said="AdapterUnavailable: ./no-such-program cannot be started"
    )
    assert "set_kernels" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[tool.ssmspec]\nadaptor = 'x'\n",
            "adaptor is not a key (did you mean 'adapter'?); the keys are adapter, program, tier",
        ),
        ("[tool.ssmspec]\njobs = '4'\n", "jobs is '4'; it must be a valid integer"),
        ("[tool.ssmspec]\njobs = true\n", "jobs is True; it must be a valid integer"),
        ("[tool.ssmspec]\nseed = -1\n", "seed is -1; it must be greater than or equal to 0"),
        ("[tool.ssmspec]\ntier = 'quick'\n", "tier is 'quick'; it must be 'smoke', 'standard' or 'deep'"),
        ("[tool.ssmspec]\nadapter = 3\n", "adapter is 3; it must be a text or a list of texts"),
        ("[tool]\nssmspec = 3\n", "it must be a table"),
        ("[tool.ssmspec\n", "cannot be read for [tool.ssmspec]"),
    ],
)
def test_a_mistake_in_the_table_is_refused_by_name(folder: Path, text: str, said: str) -> None:
    table(folder, text)
    with pytest.raises(OptionError) as refused:
        read_settings(folder)
    assert said in str(refused.value)
    assert str(folder / "pyproject.toml") in str(refused.value)
    ends(REFUSED, "run", "--adapter", "reference", said=(f"OptionError: {folder / 'pyproject.toml'}", said))


def test_the_nearest_table_counts_and_a_file_without_one_is_passed_over(folder: Path) -> None:
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    table(folder, TABLE)
    table(below, "[project]\nname = 'ssmspec-user'\n")
    assert read_settings(below)["report"] == str(folder / "out")
    assert read_settings(folder)["report"] == "out"
    table(folder / "a", "[tool.ssmspec]\nadapter = ['one', 'two']\n")
    assert read_settings(below) == {"adapter": ["one", "two"]}
    assert read_settings(folder.parent) == {}


def test_every_key_is_read_by_a_command() -> None:
    assert {*PYTEST, *RUN} == set(Settings.model_fields)


def inside(pytester: pytest.Pytester, *words: str, text: str = TABLE) -> pytest.RunResult:
    pytester.syspathinsert()
    (pytester.path / "set_kernels.py").write_text(KERNELS)
    pytester.makepyfile("def test_own():\n    pass\n")
    table(pytester.path, f"{text}\n[tool.pytest.ini_options]\ntestpaths = ['.']\n")
    return pytester.runpytest_inprocess("-p", "no:timeout", "-p", "no:cacheprovider", *words)


def test_pytest_takes_the_table_too(pytester: pytest.Pytester) -> None:
    done = inside(pytester)
    assert done.ret == 0
    read = read_report(pytester.path / "out")
    assert done.parseoutcomes()["passed"] == 1 + sum(bool(r.case) for r in read.results) > 3
    assert read.header.tier == "smoke"


def test_pytest_refuses_a_mistake_in_the_table(pytester: pytest.Pytester) -> None:
    done = inside(pytester, text=TABLE + "tear = 'smoke'\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "tear is not a key (did you mean 'tier'?)" in done.stderr.str()


PATHS, NONE = ("test_pytest_without_cases.py",), ("-k", "own")


@pytest.mark.parametrize("required", ["", "required = true\n"])
@pytest.mark.parametrize("words", [PATHS, NONE, ("--collect-only",)], ids=" ".join)
def test_pytest_without_a_case_ends_with_4_if_one_is_required(
    pytester: pytest.Pytester, words: tuple[str, ...], required: str
) -> None:
    words = (str(pytester.path / f"{pytester._name}.py"),) if words == PATHS else words
    done = inside(pytester, *words, text=TABLE + required)
    fails = bool(required) and words != ("--collect-only",)
    assert done.ret == (pytest.ExitCode.USAGE_ERROR if fails else pytest.ExitCode.OK)
    assert ("ssmspec_required is set, but no case of the suite was run" in done.stdout.str()) is fails


def test_pytest_with_a_case_or_without_an_adapter(pytester: pytest.Pytester) -> None:
    assert inside(pytester, text=TABLE + "required = true\n").ret == 0
    assert inside(pytester, text="").ret == 0
    done = inside(pytester, "-o", "ssmspec_required=true", text="")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
