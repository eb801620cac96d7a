"""The table that says whether speculation is plain decoding: what it excuses, what it refuses, when it stands."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from conformance.suite.graph.tape import TapeRecorder
from perf_gates import lossless
from perf_gates.lossless import fill
from perf_gates.losslessness import cells
from perf_gates.losslessness.cells import Cell, compare, judge, keys, problems, table
from perf_gates.losslessness.runs import Bench, needs, ordered
from perf_gates.losslessness.workers import Failed
from ssmspec_fast.engine.traces import Exact, run
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_ref.near_ties import first_difference, near_tie

from ..fast.trained import pair

PROMPTS = ["def mean(", "def fir", "values", "\n\n\n"]
EXACT = np.zeros((5, 3)) + [[2.0, 1.0, 0.0]] * 5


def runs(*noise: float) -> np.ndarray:
    """Logits whose error at each token is what is given."""
    return EXACT + np.array(noise)[:, None] * [1.0, -1.0, 0.5]


def near(margin: float) -> np.ndarray:
    """The float64 logits with the last two choices this near."""
    found = EXACT.copy()
    found[-1, 1] = found[-1, 0] - margin
    return found


def test_a_choice_nearer_than_the_errors_of_both_runs_is_excused() -> None:
    found = near_tie(near(1e-3) + 1e-3, near(1e-3) - 1e-3, near(1e-3), (0, 1))
    assert found.excused
    assert found.margin == pytest.approx(1e-3)
    assert found.errors == pytest.approx((1e-3, 1e-3))
    assert not near_tie(near(3e-3) + 1e-3, near(3e-3) - 1e-3, near(3e-3), (0, 1)).excused


def test_an_error_out_of_the_ordinary_excuses_nothing() -> None:
    steady, jump = runs(1e-3, 1e-3, 1e-3, 1e-3, 1e-3), runs(1e-3, 1e-3, 1e-3, 1e-3, 5e-3)
    wide, exact_logits = near(4e-3) - EXACT, near(4e-3)
    assert not near_tie(steady + wide, jump + wide, exact_logits, (0, 1)).excused
    assert not near_tie(jump + wide, steady + wide, exact_logits, (0, 1)).excused
    tolerable = runs(1e-3, 1e-3, 1e-3, 1e-3, 3.9e-3)
    assert near_tie(steady + wide, tolerable + wide, exact_logits, (0, 1)).excused


def test_what_is_no_number_excuses_nothing() -> None:
    fine, broken = near(0.0) + 1e-3, near(0.0) + 1e-3
    broken[-1, 2] = np.nan
    assert near_tie(fine, fine, near(0.0), (0, 1)).excused
    assert not near_tie(fine, broken, near(0.0), (0, 1)).excused
    assert not near_tie(fine, fine, np.where(EXACT == 0, np.nan, near(0.0)), (0, 1)).excused


def test_the_first_difference_is_a_token_or_the_end_of_the_shorter_run() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@dataclass(frozen=True)
class Said:
    """A trace, as the engine's."""

    tokens: list[list[int]]
    logits: list[np.ndarray]


PLAIN = Said([[0] * 5, [0] * 5], [near(1e-3) + 1e-3, EXACT])
TIED = Said([[0, 0, 0, 0, 1], [0] * 5], [near(1e-3) - 1e-3, EXACT])


def float64(n: int) -> np.ndarray:
    return (near(1e-3), EXACT)[n]


def test_bitwise_excuses_nothing_and_fast_near_ties_only() -> None:
    assert compare(PLAIN, PLAIN, None, fast=False) == ("identical", "", 10, 0)
    assert compare(PLAIN, TIED, None, fast=False)[:2] == ("differs", "prompt 0, token 4")
    assert compare(PLAIN, TIED, float64, fast=True) == ("near ties", "", 10, 1)
    far = replace(TIED, tokens=[[0] * 5, [0, 1, 0, 0, 0]])
    assert compare(PLAIN, far, float64, fast=True)[0] == "differs"
    short = replace(TIED, tokens=[[0] * 4, [0] * 5])
    assert compare(PLAIN, short, float64, fast=True)[:2] == ("differs", "prompt 0 ends at token 4")


def test_many_near_ties_and_windows_of_one_kind_do_not_pass() -> None:
    fine = (50, 50, 50)
    assert judge("near ties", "", 20_000, 2, fine, True)[0] == "near ties"
    assert judge("near ties", "", 20_000, 3, fine, True)[0] == "differs"
    assert judge("near ties", "", 20_000, 3, fine, False)[0] == "near ties"
    for windows in ((0, 50, 50), (50, 4, 50), (50, 50, 5), (0, 0, 0)):
        assert judge("identical", "", 9, 0, windows, True)[0] == "starved"
    assert judge("differs", "why", 9, 0, (0, 0, 0), True) == ("differs", "why")
    assert judge("near ties", "", 20_000, 2, None, True)[0] == "near ties"
    assert judge("near ties", "", 20_000, 3, None, True)[0] == "differs"


EXPECTED = list(keys(["mamba2"], ["joint", "tree"], ["lookup", "mamba2"], ["fast"]))
DIGESTS = {"mamba2": "aa", "mamba2-drafter": "bb"}


def whole() -> list[Cell]:
    held = [Cell(*key, "identical", windows=(1, 1, 1), kernels="k", checkpoints="aa") for key in EXPECTED]
    held = [replace(c, checkpoints="aa bb") if c.drafter == "mamba2" else c for c in held]
    return [replace(c, outcome="inapplicable", reason="why") if c.method == "tree" else c for c in held]


def found(held: list[Cell], kernels: str = "k", digests: dict[str, str] = DIGESTS) -> list[str]:
    written = json.loads(json.dumps({"cells": [asdict(cell) for cell in held]}))
    return problems(written, EXPECTED, kernels, digests)


def test_a_table_stands_with_every_cell_passed_on_these_kernels_and_checkpoints() -> None:
    held = whole()
    assert found(held) == []
    assert found(held[1:]) == ["mamba2 / joint / lookup / fast: missing", "mamba2 / lookup: no method takes it"]
    assert len(found(held, kernels="other")) == len(held)
    assert len(found(held, digests=DIGESTS | {"mamba2-drafter": "cc"})) == 2
    for outcome in ("differs", "starved", "error"):
        assert found([replace(held[0], outcome=outcome, reason="why"), *held[1:]])[0].endswith(f"{outcome}, why")
    idle = [replace(c, outcome="inapplicable") for c in held]
    assert found(idle) == ["mamba2 / lookup: no method takes it", "mamba2 / mamba2: no method takes it"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def make(trained: Path, tmp_path: Path) -> Callable[[], Bench]:
    return partial(Bench, lossless.ENGINE, trained, PROMPTS, 16, 3, "cpu", "float32", tmp_path)


def test_cells_are_run_written_and_not_run_again(
    make: Callable[[], Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "SHARE", 0.0)  # so few windows need not hold all three kinds
    monkeypatch.setitem(cells.DRAFTERS, "tree", {"drafter": "mamba2-drafter", "tree": "2,1"})
    expected = list(keys(["mamba2"], ["joint", "tree"], ["mamba2", "tree"], ["bitwise", "fast"]))
    digests = make().digests
    file, settings = tmp_path / "table.json", {"tokens": 16, "device": "cpu"}
    part = fill(make, digests, expected[:3], file, settings, float("inf"))
    monkeypatch.setattr(Bench, "cells", recorded(asked := [], Bench.cells))
    results = fill(make, digests, expected, file, settings, float("inf"))
    assert asked == expected[3:]
    assert results["cells"][:3] == json.loads(json.dumps(part["cells"]))
    assert json.loads(file.read_text()) == json.loads(json.dumps(results))
    outcomes = {tuple(c[k] for k in ("method", "drafter", "mode")): c["outcome"] for c in results["cells"]}
    for mode in ("bitwise", "fast"):
        assert outcomes["joint", "mamba2", mode] in ("identical", "near ties")[: 1 + (mode == "fast")]
        assert outcomes["tree", "tree", mode] in ("identical", "near ties")[: 1 + (mode == "fast")]
        assert outcomes["joint", "tree", mode] == outcomes["tree", "mamba2", mode] == "inapplicable"
    assert problems(results, expected, lossless.kernels_hash(), digests) == []
    assert fill(make, digests, expected, file, settings | {"tokens": 9}, 0.0)["cells"] == []
    shown = table(results)
    assert "| mamba2 | joint | mamba2 | identical |" in shown
    assert "- joint with tree: the drafter proposes trees, but joint verifies chains" in shown


def recorded(asked: list[Any], cells: Any) -> Any:
    def recording(self: Bench, group: Any) -> Any:
        asked.extend(group)
        return cells(self, group)

    return recording


@pytest.mark.parametrize("mode", ["bitwise", "fast"])
def test_a_planted_method_that_forgets_what_was_accepted_differs(
    mode: str, make: Callable[[], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    bench.decode("mamba2", mode)
    monkeypatch.setattr(ActivationReplay, "commit", lambda *_: None)
    (cell,) = bench.cells((("mamba2", "activation-replay", "mamba2", mode),))
    assert isinstance(cell, Cell)
    assert cell.outcome == "differs"
    assert cell.reason.startswith("prompt ")


@pytest.mark.parametrize("mode", ["bitwise", "fast"])
def test_plain_decoding_is_compared_with_transformers(mode: str, make: Callable[[], Bench]) -> None:
    """And another model's output, planted in its place, differs."""
    bench, key = make(), ("mamba2", "plain", "transformers", mode)
    assert bench(needs((key,))) == [None]  # type: ignore[arg-type]
    (cell,) = bench((key,))
    assert isinstance(cell, Cell)
    assert cell.outcome in ("identical", "near ties")
    assert cell.compared == len(PROMPTS) * 16 or cell.ties
    assert cell.beside == f"transformers {transformers.__version__}"
    bench.decode("mamba2-drafter", mode)
    bench.file("mamba2-drafter", mode).replace(bench.file("mamba2", mode))
    bench.plain.cache_clear()
    (found,) = bench((key,))
    assert isinstance(found, Cell)
    assert found.outcome == "differs"


@pytest.mark.parametrize("graphs", [False, TapeRecorder()], ids=["launched", "replayed"])
def test_the_logits_of_a_trace_are_those_that_its_tokens_were_chosen_from(graphs: Any, trained: Path) -> None:
    """One of the prompts joins when another has left."""
    given = {"drafter": trained / "mamba2-drafter", "method": "joint", "dtype": "float32", "graphs": graphs, "slots": 3}
    spoken = run(trained / "mamba2", PROMPTS, 12, **given)
    for prompt, tokens, logits in zip(PROMPTS, spoken.tokens, spoken.logits, strict=True):
        assert len(tokens) == 12
        assert tuple(logits.argmax(1)) == tokens
        assert len(logits) == 12
        wide = Exact(trained / "mamba2")(prompt, tokens)
        assert wide.dtype == np.float64
        # fp32 against float64 through two layers of widths below 100: far below 2^-24 times the roundings of a token.
        assert np.max(np.abs(logits - wide)) <= 2**-24 * 10_000 * np.max(np.abs(wide))
        assert np.max(np.abs(logits - wide)) > 0


@pytest.mark.parametrize("together", [1, 3])
def test_every_cell_has_its_turn_no_mode_waits_for_the_other_and_plain_decoding_comes_before(together: int) -> None:
    order = ordered(list(keys(cells.MODELS, cells.METHODS, tuple(cells.DRAFTERS), cells.MODES)), together)
    spoken = [group for group in order if needs(group) is not None]
    assert sorted(key for group in order for key in group) == sorted({key for group in order for key in group})
    for end in range(len(spoken)):
        begun = [key[3] for group in spoken[:end] for key in group]
        assert abs(2 * begun.count("fast") - len(begun)) <= together
    assert len(begun) + len(spoken[-1]) == (1 + 6 * 13) * 4 * 2
    assert {key[2] for group in spoken for key in group if key[1] == "plain"} == {"transformers"}
    assert all(order.index(needs(group)) < order.index(group) for group in spoken)  # type: ignore[arg-type]
    assert all(len({(key[0], key[3]) for key in group}) == 1 for group in spoken)
    alone = [len(group) == 1 for group in spoken]
    assert max(map(len, spoken)) == together
    slow = 7 * 4 * 2  # plain and 6 methods by text, 4 models, 2 modes
    assert together == 1 or alone == [True] * slow + [False] * (len(alone) - slow)


def timeless(found: Any) -> list[Any]:
    return [replace(cell, seconds=0) for cell in found]


def test_cells_side_by_side_are_those_of_each_alone_and_one_that_fails_leaves_the_others(
    make: Callable[[], Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    bench.decode("mamba2", "fast")
    group = tuple(("mamba2", method, "lookup", "fast") for method in ("joint", "tree", "snapshots", "activation-replay"))
    alone = [bench.cells((key,))[0] for key in group]
    assert timeless(bench.cells(group)) == timeless(alone)
    monkeypatch.setattr(ActivationReplay, "commit", raising)
    found = bench.cells(group)
    assert timeless(found[:3]) == timeless(alone[:3])
    assert found[3] == Failed("RuntimeError: planted", broken=True)


def raising(*_: Any) -> None:
    raise RuntimeError("planted\nwith more")


def test_a_failure_is_a_cell_that_does_not_pass_and_is_run_again(
    make: Callable[[], Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, digests = list(keys(["mamba2"], ["joint"], ["mamba2"], ["fast"])), make().digests
    arguments = (digests, expected, tmp_path / "table.json", {"device": "cpu"}, float("inf"))
    monkeypatch.setattr(lossless, "answers", lambda *_: [((expected[0],), Failed("its process ended with -9"))])
    results = fill(make, *arguments)
    assert problems(results, expected, lossless.kernels_hash(), digests)[0].endswith("error, its process ended with -9")
    asked = []
    monkeypatch.setattr(lossless, "answers", lambda _, tasks, *__: asked.extend(tasks) or [])
    fill(make, *arguments)
    assert asked == [(("mamba2", "plain", "", "fast"),), *((key,) for key in expected)]
