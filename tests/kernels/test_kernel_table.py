"""The table at the end of the kernels' tests: what it counts, and what fails a run."""

import sys
from typing import Any

import pytest

from perf_gates.static.kernel_modules import kernel_module
from tests.kernels import kernel_table
from tests.kernels.kernel_table import Figures, Formula, Recorder

pytestmark = pytest.mark.interpreter


@pytest.fixture
def whole() -> dict[str, Figures]:
    made = {name: Figures(3, [0.5], [1.0, 1.0] if declares else []) for name, declares in kernel_table.modules().items()}
    for name, figures in made.items():
        figures.apart = kernel_table.pairs(kernel_module(name).traffic_bytes) if figures.ratios else []
    return made


def test_every_module_that_launches_has_a_row_and_a_budget(whole: dict[str, Figures]) -> None:
    assert {"ssd_scan", "ssd_tree_scan", "ssd_flush", "delta_tree", "linear_rows", "cursors", "double_buffer"} <= whole.keys()
    assert not {"dots", "launch", "functions", "ssd_ring"} & whole.keys()
    assert kernel_table.missing(whole) == []
    head, *rows = kernel_table.table(whole)
    assert head.split()[:2] == ["kernel", "tests"]
    assert [r.split()[0] for r in rows] == sorted(whole)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (Figures(), "no test that passed launched it"),
        (Figures(3, [], [1.0, 1.0]), "nothing was compared with a bound"),
        (Figures(3, [0.5], []), "its bytes were not counted"),
        (Figures(3, [0.5], [1.0, 1.25]), "bytes counted over the formula came as [1.0, 1.25], not 1"),
    ],
)
def test_kernel_without_its_figures_fails(figures: Figures, message: str, whole: dict[str, Figures]) -> None:
    whole["ssd_scan"] = figures
    assert f"ssd_scan: {message}" in kernel_table.missing(whole)


def test_a_formula_two_of_whose_sizes_are_always_the_same_fails(whole: dict[str, Figures]) -> None:
    whole["mamba3_commit"].apart.remove("g r")
    assert kernel_table.missing(whole) == ["mamba3_commit: bytes are counted only where these sizes are the same: g r"]


def test_sizes_that_differ_in_a_count_are_kept_of_tests_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(held: list[int], g: int, h: int, r: int, *, io: int = 2) -> int:
        return g * h * r * io * len(held)

    monkeypatch.setattr(Formula, "apart", {})
    assert kernel_table.pairs(counted) == ["g h", "g r", "h r"]
    kernel_table.formula("ssd_scan", counted)([1], 2, 3, r=2)
    recorder = Recorder()
    recorder.launched = {"ssmspec_mutant_3.ssd_scan"}
    recorder.keep("ssd_scan")
    assert recorder.found == {}
    recorder.launched = {"ssd_scan"}
    recorder.keep("ssd_scan")
    assert recorder.found["ssd_scan"].apart == ["g h", "h r"]


def test_kernel_without_a_budget_fails(whole: dict[str, Figures], monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: cost for name, cost in kernel_table.budgets().items() if not name.startswith("ssd_scan ")}
    monkeypatch.setattr(kernel_table, "budgets", lambda: own)
    assert kernel_table.missing(whole) == ["ssd_scan: no budget of registers"]


def test_figures_of_workers_add_up() -> None:
    found = Figures(2, [0.25, 0.5], [1.0], ["g r"])
    found.add(Figures(1, [0.75], [0.5, 2.0], ["b t", "g r"]))
    assert found == Figures(3, [0.75], [0.5, 2.0], ["b t", "g r"])


def test_formula_keeps_what_it_is_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Formula, "seen", [])
    assert 8 == Formula(3) + 5  # noqa: SIM300
    assert not sum([Formula(3), Formula(1)]) - 2 == 3  # noqa: SIM201
    assert Formula.seen == [1.0, 1.5]


@pytest.mark.parametrize(
    ("file", "launched", "counted"),
    [
        ("ssd_scan", {"ssd_scan"}, {"ssd_scan"}),
        ("tree_attention", {"tree_attention", "kv_compact", "ssd_flush"}, {"tree_attention", "ssd_flush"}),
        ("model_shapes", {"ssd_scan", "conv_step"}, {"ssd_scan", "conv_step"}),
        ("ssd_scan", {"ssd_scan", "ssmspec_mutant_3.ssd_scan"}, set()),
        ("ssd_scan", set(), set()),
    ],
)
def test_test_counts_for_the_kernels_it_is_about_and_planted_faults_for_none(
    file: str, launched: set[str], counted: set[str]
) -> None:
    recorder = Recorder()
    recorder.launched, recorder.used = launched, [0.5]
    recorder.keep(file)
    assert set(recorder.found) == counted


def test_launch_belongs_to_the_module_that_was_called_from_outside() -> None:
    def frame(name: str, back: Any) -> Any:
        return type("Frame", (), {"f_globals": {"__name__": name}, "f_back": back})()

    test = frame("tests.kernels.test_ssd_tree_scan", None)
    inner = frame("ssmspec_kernels.ssd.ssd_window", frame("ssmspec_kernels.ssd.ssd_tree_scan", test))
    assert kernel_table.launcher(inner) == "ssd_tree_scan"
    assert kernel_table.launcher(frame("ssmspec_mutant_0.ssd_window", test)) == "ssmspec_mutant_0.ssd_window"
    assert kernel_table.launcher(sys._getframe()) == __name__


def test_a_call_of_a_subscript_is_a_launch() -> None:
    assert kernel_table.launches("def f(x):\n    _kernel[(1, 2)](x)\n")
    assert not kernel_table.launches("def f(x):\n    return g(x)[0]\n")
