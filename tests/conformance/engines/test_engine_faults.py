"""Faults planted in the whole engine are caught in their configuration, and the engine without one is not.

The plain output is that of an engine without the fault, asked for once for all of them. `tox run -e engine-faults` plants
every one, CI those of `QUICK`.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from conformance.engines import judge, small
from conformance.engines.checkpoint import read
from conformance.engines.cli import Tier, configurations

from .direct import Direct
from .faults import CONVERTED, FAULTS

QUICK = (
    "drafts_all_counted_and_slot_0_overwritten", "a_reused_slot_keeps_its_state", "no_end_at_a_bonus_token",
    "state_of_the_drafter_stale", "fewer_drafts_than_were_accepted_before", "drafts_of_the_request_before",
    "the_second_drafter_for_all",
)  # fmt: skip
SCHEDULES, SHRINKING = 25, 0.5
MORE = {"recurrent_drafter_not_rewound": 150}
"""Schedules of a fault that costs drafts, and not often."""
Answers = dict[str, dict[tuple[tuple[int, ...], float, int], tuple[int, ...]]]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("small")
    return {family: small.pair(family, folder) for family in ("mamba2", "llama", "bamba", "qwen3_5", "kimi_linear")}


@pytest.fixture(scope="module")
def known() -> Answers:
    """The plain output of the engine without a fault, by family."""
    return {}


def judged(pair: tuple[Path, Path], configuration: str, schedules: int, model: bool, known: Answers | None = None) -> Any:
    """One configuration, with the oracle or without."""
    target, drafter = pair
    recurrent = target.with_name(f"{target.name}-recurrent")
    chosen = {configuration: configurations(drafter, Tier.smoke, "float32", recurrent)[configuration]}
    weights = read(target) if model else None
    one = judge.Judge(Direct, str(target), weights, schedules, open_plain=lambda: Direct(right=True), shrinking=SHRINKING)
    if known is not None:
        one.known = known.setdefault(target.name, {})
    return one.run(chosen)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.robust,)) for name in FAULTS]
)
def test_a_planted_fault_is_caught(
    name: str, pairs: dict[str, tuple[Path, Path]], known: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, configuration, plant = FAULTS[name]
    plant(monkeypatch)
    log = name.startswith("log_")
    found = judged(pairs[family], configuration, 3 if log else MORE.get(name, SCHEDULES), log, None if log else known)
    assert not found.green
    if name == "log_probabilities_0_of_accepted_drafts":
        assert found.outcome(configuration, "log-probabilities kept") == "not judged"
        assert found.outcome(configuration, "speculation") == "passed"
        assert re.search(r": expected -0\.0\d*, got 0\.0", found.failures[0].finding)
        assert len(found.failures[0].schedule) == 1, "the smallest case: one prompt"
    assert found.red
    assert found.failures[0].configuration == configuration
    assert found.failures[0].law in LAW.get(name, (found.failures[0].law,))


LAW = {
    "log_probabilities_0_of_accepted_drafts": ("log-probabilities of drafted tokens",),
    "state_of_the_drafter_stale": ("drafter followed",),
    "recurrent_drafter_not_rewound": ("drafter followed",),
    "no_end_at_a_bonus_token": ("stop",),
    "log_probabilities_of_the_token_before": ("log-probabilities kept",),
    "a_waiting_request_replaces_a_running_state": ("batch", "join", "cancel"),
    "the_first_requests_drafts_for_all": ("drafts", "drafter followed"),
    "no_drafts_are_as_many_as_by_default": ("drafts",),
    "drafts_of_the_request_before": ("drafts", "drafter followed"),
    "drafter_of_the_request_before": ("drafter", "drafter followed"),
    "the_first_drafter_for_all": ("drafter",),
    "the_second_drafter_for_all": ("drafter followed",),
    "a_drafter_that_goes_on_behind_a_request_of_another": ("drafter followed",),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_another_model_is_not_the_same_and_its_difference_is_explained(
    name: str, pairs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    family, change = CONVERTED[name]
    target, _ = pairs[family]
    other = shutil.copytree(target, tmp_path / "converted")
    config, weights = json.loads((other / "config.json").read_text()), load_file(other / "model.safetensors")
    change(config, weights)
    (other / "config.json").write_text(json.dumps(config))
    save_file(weights, other / "model.safetensors")
    found = judge.Judge(Direct, str(other), read(target), 1).run(
        {"plain": configurations(None, Tier.smoke, "float32")["plain"]}
    )
    assert found.red
    assert {failure.law for failure in found.failures} <= {"tokens", "log-probabilities"}
    assert any(WORDS[name] in failure.explained for failure in found.failures), found.failures


WORDS = {
    "norms_rounded_to_bf16": "norms rounded to bf16",
    "rotary_positions_of_the_whole_head": "rotary positions of 1 of a head",
    "a_decay_that_was_dropped": "a decay that was dropped",
    "one_decay_for_a_head": "one decay for all key channels of a head",
    "scores_scaled_without_the_shared_key": "latent attention scaled by a head's own channels",
}


def test_the_page_tells_how_many_faults_are_planted() -> None:
    page = (Path(__file__).parents[3] / "docs" / "evidence" / "engines.md").read_text(encoding="utf-8")
    assert f"plants {len(FAULTS) + len(CONVERTED)} faults" in page


@pytest.mark.parametrize("family", ["mamba2", "kimi_linear"])
@pytest.mark.parametrize("configuration", ["model-3"])
def test_our_engine_is_lossless_and_the_model_of_its_checkpoint(
    configuration: str, family: str, pairs: dict[str, tuple[Path, Path]]
) -> None:
    found = judged(pairs[family], configuration, 3, True)
    assert not found.red, found.failures
    assert found.outcome("plain", "tokens") == found.outcome("plain", "log-probabilities") == "passed"
    assert found.outcome(configuration, "speculation") == found.outcome(configuration, "drafter followed") == "passed"
    assert found.green
