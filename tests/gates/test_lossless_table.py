"""The committed losslessness table: whole, of this code and these weights, and left out only what the engine refuses.

Cells that the last run did not reach are named in the table (`lacking`), and are those of the kernels before.
"""

import copy
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perf_gates.digest import record
from perf_gates.lossless import ENGINE
from perf_gates.losslessness.cells import CARRIED, DRAFTERS, METHODS, MODELS, MODES, PASSED, PLAIN, Key, keys, problems, read
from perf_gates.losslessness.runs import Bench
from perf_gates.machine import kernels_hash
from ssmspec_fast.engine.traces import digest
from ssmspec_fast.models.build import Parts
from ssmspec_fast.models.checkpoint import open_checkpoint
from ssmspec_ref.errors import Unsupported

ROOT = Path(__file__).parents[2]
CHECKPOINTS = ROOT / "ssmspec_fast" / "checkpoints"
TABLE = json.loads((ROOT / "perf_gates" / "results" / "lossless.json").read_text(encoding="utf-8"))
EXPECTED = list(keys(MODELS, METHODS, tuple(DRAFTERS), MODES))
PROMPTS, TOKENS = 200, 256


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return Bench(ENGINE, CHECKPOINTS, [], 0, 0, "cpu", "float32", tmp_path_factory.mktemp("none")).digests


def merged(config: dict[str, Any], was: dict[str, Any]) -> dict[str, Any]:
    """A config with some fields, and fields of fields, set to other values; the order of the file is kept."""
    return {k: (merged(v, was[k]) if isinstance(v, dict) else was[k]) if k in was else v for k, v in config.items()}


@pytest.mark.parametrize(
    "row", tomllib.loads(CARRIED.read_text(encoding="utf-8"))["carried"], ids=lambda row: row["checkpoint"]
)
def test_a_carried_checkpoint_has_the_weights_and_the_model_of_the_old_one(row: dict[str, Any], tmp_path: Path) -> None:
    """Config and weights with the old values give the old digest; what the engine reads is what it read."""
    now = CHECKPOINTS / row["checkpoint"]
    config = json.loads((now / "config.json").read_text(encoding="utf-8"))
    folder = tmp_path / row["checkpoint"]
    shutil.copytree(now, folder)
    assert digest(folder) == row["new"]
    (folder / "config.json").write_text(json.dumps(merged(config, row["was"]), indent=1) + "\n", encoding="utf-8")
    assert digest(folder) == row["old"]
    rope = {"rope_parameters": row["was"]["rope_parameters"]}
    unread = merged({k: v for k, v in config.items() if k != "partial_rotary_factor"}, rope)
    (folder / "config.json").write_text(json.dumps(unread), encoding="utf-8")
    assert open_checkpoint(folder).config == open_checkpoint(now).config


def cell(table: dict[str, Any], key: Key) -> dict[str, Any]:
    found = [c for c in table["cells"] if (c["model"], c["method"], c["drafter"], c["mode"]) == key]
    assert len(found) == 1, f"{key}: {len(found)} cells"
    return dict(found[0])


def test_every_cell_is_there_and_was_made_with_these_kernels_and_checkpoints(digests: dict[str, str]) -> None:
    said = "make it anew: python -m perf_gates.lossless --device cuda --jobs 12 --out perf_gates/results/lossless.json"
    found = [line.partition(": ") for line in problems(TABLE, EXPECTED, kernels_hash(), digests)]
    assert [line for *_, line in found if record.AGAIN not in line] == [], said
    other = [cell.key for cell in map(read, TABLE["cells"]) if record.revision_fault(cell.kernels)]
    assert [name for name, *_ in found] == [" / ".join(key) for key in other], said
    assert len(TABLE["cells"]) == len(EXPECTED)


def test_it_was_made_on_a_gpu_with_all_prompts_that_join_and_leave() -> None:
    wanted = {"prompts": PROMPTS, "tokens": TOKENS, "device": "cuda", "dtype": "float32", "graphs": True, "slots": 160}
    assert TABLE["settings"] == wanted
    assert TABLE["machine"]["gpu"] not in ("", "none", "unknown")


@pytest.mark.parametrize("mode", MODES)
def test_every_token_was_compared(mode: str) -> None:
    """Up to a near tie, behind which the prefixes differ."""
    for c in TABLE["cells"]:
        if c["mode"] == mode and c["outcome"] != "inapplicable":
            plain = c["method"] == PLAIN  # beside transformers, whose sums have other orders
            assert c["outcome"] in ("identical", "near ties")[: 1 + (mode == "fast" or plain)]
            whole = PROMPTS * TOKENS
            assert c["compared"] == whole if not c["ties"] else whole - c["ties"] * TOKENS <= c["compared"] < whole
            assert plain or min(c["windows"]) >= 0.05 * sum(c["windows"]) > 0
            assert c["beside"].startswith("transformers 5.") == plain


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_is_left_out_is_what_the_engine_refuses_and_for_the_same_reason(drafter: str) -> None:
    given = dict(DRAFTERS[drafter])
    if (CHECKPOINTS / str(given["drafter"])).is_dir():
        given["drafter"] = CHECKPOINTS / str(given["drafter"])
    for method in METHODS[1:]:
        reason = None
        try:
            Parts(CHECKPOINTS / "mamba2", method=method, slots=1, cache=64, **given)
        except Unsupported as error:
            reason = str(error)
        for model in MODELS:
            for mode in MODES:
                held = cell(TABLE, (model, method, drafter, mode))
                assert (held["reason"] if held["outcome"] == "inapplicable" else None) == reason


@pytest.mark.parametrize("planted", ["missing", "kernels", "checkpoints", "differs", "starved", "error"])
def test_a_planted_gap_is_named(planted: str, digests: dict[str, str]) -> None:
    table = copy.deepcopy(TABLE)
    held = next(c for c in table["cells"] if c["outcome"] in PASSED[:2] and not record.revision_fault(c["kernels"]))
    name = " / ".join(held[part] for part in ("model", "method", "drafter", "mode"))
    if planted == "missing":
        table["cells"].remove(held)
    elif planted in ("kernels", "checkpoints"):
        held[planted] = "0" * 16
    else:
        held["outcome"] = planted
    found = problems(table, EXPECTED, kernels_hash(), digests)
    assert name not in TABLE.get("lacking", [])
    assert [line for line in found if line.startswith(f"{name}: ")]
