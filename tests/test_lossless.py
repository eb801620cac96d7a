"""The table that says whether speculation is plain decoding: what it excuses, what it refuses, when it stands."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.losslessness import first_difference, near_tie
from perf_gates import lossless
from perf_gates.lossless import Bench, Cell, compare, fill, judge, keys, problems, table
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.traces import exact, run

from .fast_trained import pair

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


def float64(n: int, output: Any) -> np.ndarray:
    return (near(1e-3), EXACT)[n][: len(output)]


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


EXPECTED = list(keys(["mamba2"], ["joint", "tree"], ["lookup", "mamba2"], ["fast"]))
DIGESTS = {"mamba2": "aa", "mamba2-drafter": "bb"}


def whole() -> list[Cell]:
    held = [Cell(*key, "identical", windows=(1, 1, 1), kernels="k", checkpoints="aa") for key in EXPECTED]
    held = [replace(c, checkpoints="aa bb") if c.drafter == "mamba2" else c for c in held]
    return [replace(c, outcome="inapplicable", reason="why") if c.method == "tree" else c for c in held]


def found(cells: list[Cell], kernels: str = "k", digests: dict[str, str] = DIGESTS) -> list[str]:
    written = json.loads(json.dumps({"cells": [asdict(cell) for cell in cells]}))
    return problems(written, EXPECTED, kernels, digests)


def test_a_table_stands_with_every_cell_passed_on_these_kernels_and_checkpoints() -> None:
    cells = whole()
    assert found(cells) == []
    assert found(cells[1:]) == ["mamba2 / joint / lookup / fast: missing", "mamba2 / lookup: no method takes it"]
    assert len(found(cells, kernels="other")) == len(cells)
    assert len(found(cells, digests=DIGESTS | {"mamba2-drafter": "cc"})) == 2
    for outcome in ("differs", "starved"):
        assert found([replace(cells[0], outcome=outcome, reason="why"), *cells[1:]])[0].endswith(f"{outcome}, why")
    idle = [replace(c, outcome="inapplicable") for c in cells]
    assert found(idle) == ["mamba2 / lookup: no method takes it", "mamba2 / mamba2: no method takes it"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair(tmp_path_factory.mktemp("trained"))


def bench(trained: Path, tokens: int = 16) -> Bench:
    return Bench(lossless.ENGINE, trained, PROMPTS, tokens, "cpu", "float32")


def test_cells_are_run_written_and_not_run_again(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lossless, "SHARE", 0.0)  # so few windows need not hold all three kinds
    monkeypatch.setitem(lossless.DRAFTERS, "tree", {"drafter": "mamba2-drafter", "tree": "2,1"})
    expected = list(keys(["mamba2"], ["joint", "tree"], ["mamba2", "tree"], ["bitwise", "fast"]))
    file, settings = tmp_path / "table.json", {"tokens": 16}
    part = fill(bench(trained), expected[:3], file, settings, float("inf"))
    monkeypatch.setattr(Bench, "cell", recorded(asked := [], Bench.cell))
    results = fill(bench(trained), expected, file, settings, float("inf"))
    assert asked == expected[3:]
    assert results["cells"][:3] == json.loads(json.dumps(part["cells"]))
    assert json.loads(file.read_text()) == json.loads(json.dumps(results))
    outcomes = {tuple(c[k] for k in ("method", "drafter", "mode")): c["outcome"] for c in results["cells"]}
    for mode in ("bitwise", "fast"):
        assert outcomes["joint", "mamba2", mode] in ("identical", "near ties")[: 1 + (mode == "fast")]
        assert outcomes["tree", "tree", mode] in ("identical", "near ties")[: 1 + (mode == "fast")]
        assert outcomes["joint", "tree", mode] == outcomes["tree", "mamba2", mode] == "inapplicable"
    assert problems(results, expected, lossless.kernels_hash(), bench(trained).digests) == []
    assert fill(bench(trained), expected, file, {"tokens": 9}, 0.0)["cells"] == []
    shown = table(results)
    assert "| mamba2 | joint | mamba2 | identical |" in shown
    assert "- joint with tree: the drafter proposes trees, but joint verifies chains" in shown


def recorded(asked: list[Any], cell: Any) -> Any:
    def recording(self: Bench, key: Any) -> Cell:
        asked.append(key)
        return cell(self, key)

    return recording


@pytest.mark.parametrize("mode", ["bitwise", "fast"])
def test_a_planted_method_that_forgets_what_was_accepted_differs(
    mode: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ActivationReplay, "replay", lambda *_: None)
    cell = bench(trained).cell(("mamba2", "activation-replay", "mamba2", mode))
    assert cell.outcome == "differs"
    assert cell.reason.startswith("prompt ")


def test_the_logits_of_a_trace_are_those_that_its_tokens_were_chosen_from(trained: Path) -> None:
    spoken = run(trained / "mamba2", PROMPTS, 12, drafter=trained / "mamba2-drafter", method="joint", dtype="float32")
    for prompt, tokens, logits in zip(PROMPTS, spoken.tokens, spoken.logits, strict=True):
        assert len(tokens) == 12
        assert tuple(logits.argmax(1)) == tokens
        wide = exact(trained / "mamba2", prompt, tokens)
        assert wide.dtype == np.float64
        # fp32 against float64 through two layers of widths below 100: far below 2^-24 times the roundings of a token.
        assert np.max(np.abs(logits - wide)) <= 2**-24 * 10_000 * np.max(np.abs(wide))
        assert np.max(np.abs(logits - wide)) > 0
