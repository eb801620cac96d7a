"""What `ssmspec conform try` refuses, in one line, with exit code 2."""

from pathlib import Path

import pytest

from .trials import Trying

TEXT = (Path(__file__).parent / "numpy_functions.py").read_text()
REFUSED = {
    "no function": (
        "attention",
        "attention(q, k, v, mask) does not have the inputs of ssd, selective, delta, conv, shortconv",
    ),
    "a number": ("NOT_A_FUNCTION", "is of type int; give the name of a function"),
    "another name": ("mamba_scam", "has no mamba_scam (did you mean 'mamba_scan'?)"),
    "only stars": ("only_stars", "has no named arguments, so nothing says what they are"),
    "no state": ("stateless", "it returns no state; the suite compares it: return it too"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_function_is_refused_in_one_line(what: str, trying: Trying) -> None:
    name, said = REFUSED[what]
    trial = trying(f"{trying.module(TEXT)}:{name}", "--yes")
    assert trial.code == 2
    assert said in trial.said
    assert not trial.adapter.exists()


def test_a_module_that_does_not_import_is_refused(trying: Trying) -> None:
    trial = trying(f"{trying.module('import no_such_module')}:step")
    assert trial.code == 2
    assert "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')" in trial.said
    exits = trying(f"{trying.module('raise SystemExit(3)')}:step")
    assert exits.code == 2
    assert "cannot be imported (SystemExit: 3)" in exits.said


@pytest.mark.parametrize(("target", "said"), [
    ("mamba_scan", "names no function; give MODULE:FUNCTION"),
    ("missing.py:step", "missing.py is no file"),
    ("not-a-name.py:step", "is not the name of a Python module"),
])  # fmt: skip
def test_a_target_that_is_no_function_is_refused(target: str, said: str, trying: Trying) -> None:
    (trying.folder / "not-a-name.py").touch()
    trial = trying(target)
    assert trial.code == 2
    assert said in trial.said


@pytest.mark.parametrize(("flags", "said"), [
    (("--operation", "ssd.stap"), "(did you mean 'ssd.step'?)"),
    (("--operation", "delta.step"), "does not have the inputs of delta.step"),
    (("--dtype", "fp8"), "--dtype is 'fp8'"),
    (("--dtype", "bf16"), "--dtype is bf16, which NumPy does not have"),
    (("--layout", "y=b,t,d"), "mamba_scan has no argument 'y'"),
    (("--layout", "x=batch,d"), "give the axes as letters with commas, such as x=b,t,d"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(flags: tuple[str, ...], said: str, trying: Trying) -> None:
    trial = trying(f"{trying.module(TEXT)}:mamba_scan", *flags)
    assert trial.code == 2
    assert said in trial.said


def test_a_file_that_exists_is_kept(trying: Trying) -> None:
    (trying.folder / "mine.py").write_text("# mine")
    trial = trying(f"{trying.module(TEXT)}:mamba_scan", "--out", "mine.py")
    assert trial.code == 2
    assert "mine.py exists; name another file" in trial.said
    assert (trying.folder / "mine.py").read_text() == "# mine"


def test_a_layout_that_is_wrong_makes_no_guess_fit(trying: Trying) -> None:
    trial = trying(f"{trying.module(TEXT)}:mamba_scan", "--layout", "x=b,d,t")
    assert trial.code == 2
    assert "no guess fits" in trial.said


def test_a_file_elsewhere_is_found_by_its_adapter(trying: Trying) -> None:
    (trying.folder / "below").mkdir()
    name = trying.module(TEXT)
    (trying.folder / f"{name}.py").rename(trying.folder / "below" / f"{name}.py")
    trial = trying(f"below/{name}.py:mamba_scan", "--dtype", "fp64")
    assert trial.code == 0, trial.said
    assert trial.capability[1].contract.accumulate == "fp64"
    assert 'parent / "below"' in trial.adapter.read_text()
