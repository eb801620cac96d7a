"""In five days each slow test runs, and each slow function every day; what changed or failed runs always."""

import subprocess
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import pytest

from conformance.progress.rotation import PARTS, Draw, read_draw
from tests import rotation
from tests.rotation import FAILED, SLOW, Slow, changed, imports, left_out, lists_of, read_slow, readers

pytest_plugins = ["pytester"]
CASES = [f"tests/a.py::test_cases[{i}]" for i in range(12)]
TWO = ["tests/a.py::test_two[x]", "tests/a.py::test_two[y]"]
SINGLE = [f"tests/b.py::test_{i}" for i in range(7)]
QUICK = ["tests/a.py::test_quick", "tests/c.py::test_quick[1]"]
TESTS = [*CASES, *TWO, *SINGLE, *QUICK]
LIST = Slow("", frozenset({"tests/a.py::test_cases", "tests/a.py::test_two", *SINGLE}))
DAYS = [Draw(date(2026, 11, 30) + timedelta(i), "1f0c2a") for i in range(PARTS)]


def ran(draw: Draw, always: tuple[str, ...] = ()) -> set[str]:
    return set(TESTS) - left_out(TESTS, LIST, draw, always)


def test_five_days_run_every_slow_test_and_each_day_runs_a_fifth() -> None:
    counts = Counter(test for draw in DAYS for test in ran(draw))
    assert set(counts) == set(TESTS)
    assert all(counts[test] == 1 for test in [*CASES, *SINGLE])
    for draw in DAYS:
        assert 2 <= len(ran(draw) & set(CASES)) <= 3
        assert 1 <= len(ran(draw) & set(SINGLE)) <= 2
        assert len(ran(draw) & set(TWO)) == 1


def test_quick_tests_and_those_that_are_named_run_every_day() -> None:
    for draw in DAYS:
        assert set(QUICK) < ran(draw)
        assert CASES[3] in ran(draw, (CASES[3],))
        assert set(SINGLE) < ran(draw, ("tests/b.py",))


def test_another_tree_runs_another_fifth() -> None:
    chosen = {frozenset(ran(Draw(DAYS[0].day, f"{i:x}")) & set(CASES)) for i in range(40)}
    assert len(chosen) == PARTS


def test_a_draw_is_read_again_as_it_is_printed() -> None:
    assert read_draw(str(DAYS[0])) == DAYS[0]
    assert read_draw("all") is None
    today = read_draw("today")
    assert today is not None
    assert read_draw(str(today)) == today


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01:ab", "2026-11-30", "2026-11-30:xyz"])
def test_a_text_that_names_no_draw_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="need all, today, or the DATE:TREE that a run printed"):
        read_draw(text)


@pytest.mark.parametrize("line", ["commit 12", "tests/a.py::test_x", "3 tests/a.py", "x tests/a.py::test_x"])
def test_a_line_that_names_no_function_is_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "slow.txt"
    file.write_text(f"commit {'0' * 40}\n{line}\n")
    with pytest.raises(ValueError, match=r"slow.txt:2: got .*; need `commit HASH` or `SECONDS FILE::FUNCTION`"):
        read_slow(file)


def test_the_lists_are_made_of_the_times_and_failures_of_a_run(tmp_path: Path) -> None:
    report = tmp_path / "all.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="test_cases[1]" time="9"/>'
        '<testcase classname="tests.a" name="test_cases[2]" time="1"><failure/></testcase>'
        '<testcase classname="tests.a" name="test_quick" time="0.2"/></testsuite></testsuites>'
    )
    assert lists_of([report]) == ("5.0 tests/a.py::test_cases\n", "tests/a.py::test_cases[2]\n")


def test_each_listed_function_is_in_its_file() -> None:
    """A test that was renamed runs every day until the list is made anew."""
    named = read_slow(SLOW).names | {test.partition("[")[0] for test in FAILED.read_text().splitlines()}
    lost = [name for name in named if f"def {name.rpartition('::')[2]}(" not in _source(name.partition("::")[0])]
    assert lost == [], "run all tests, then `python -m tests.rotation FILE..` with their JUnit files"


def _source(file: str) -> str:
    path = rotation.ROOT / file
    return path.read_text() if path.is_file() else ""


def test_what_a_test_imports_by_name_is_known() -> None:
    found = imports("tests/test_rotation.py")
    assert {"tests/test_rotation.py", "tests/rotation.py", "tests/__init__.py"} <= found
    assert "tests/conformance/__init__.py" not in found


def test_a_changed_file_has_its_readers_run_unless_most_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "ROOT", tmp_path)
    for name in ("common", "own"):
        (tmp_path / f"{name}.py").write_text("")
    for i in range(8):
        (tmp_path / f"test_{i}.py").write_text("import common\n" + ("from own import x\n" if i < 2 else ""))
    files = {f"test_{i}.py" for i in range(8)}
    assert readers(files, frozenset({"own.py"})) == {"test_0.py", "test_1.py"}
    assert readers(files, frozenset({"common.py"})) == set()
    assert readers(files, frozenset({"test_5.py"})) == {"test_5.py"}
    assert readers({"gone.py"}, frozenset({"gone.py"})) == set()


def test_changed_and_new_files_are_told_and_an_unknown_commit_is_not_taken_for_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        done = subprocess.run(
            ("git", "-c", "user.name=a", "-c", "user.email=a@b", *words),
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    monkeypatch.setattr(rotation, "ROOT", tmp_path)
    git("init", "-q")
    (tmp_path / "old.py").write_text("1\n")
    (tmp_path / "same.py").write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "old.py").write_text("2\n")
    (tmp_path / "new.py").write_text("2\n")
    changed.cache_clear()
    assert changed(git("rev-parse", "HEAD")) == frozenset({"old.py", "new.py"})
    assert changed("0" * 40) is None
    assert changed("") is None
    changed.cache_clear()


def test_pytest_leaves_out_what_the_draw_leaves_out(pytester: pytest.Pytester) -> None:
    """In a folder without git all tests run, and the header says which draw was asked for."""
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.parametrize('x', range(10))\ndef test_it(x): pass\n")
    hooks = "pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_report_header"
    pytester.makeconftest(
        "import pathlib\nfrom tests import rotation\n"
        f"from tests.rotation import {hooks}\n"
        "rotation.SLOW = pathlib.Path(__file__).with_name('slow.txt')\n"
        "rotation.FAILED = pathlib.Path(__file__).with_name('failed.txt')\n"
        "rotation.ROOT = pathlib.Path(__file__).parent\n"
        "rotation.git = lambda root, *words: None if pathlib.Path('no-git').exists() else ''\n"
    )
    pytester.path.joinpath("slow.txt").write_text(f"commit {'0' * 40}\n9 test_it.py::test_it\n")
    pytester.path.joinpath("failed.txt").write_text("")
    pytester.runpytest("--draw", "2026-11-30:1f").assert_outcomes(passed=2, deselected=8)
    pytester.runpytest().assert_outcomes(passed=10)
    pytester.path.joinpath("no-git").touch()
    changed.cache_clear()
    pytester.runpytest("--draw", "2026-11-30:1f").assert_outcomes(passed=10)
    changed.cache_clear()
