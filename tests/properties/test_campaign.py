"""Campaigns: the same seed, the same examples; parts that resume and merge; failures that other workers try first."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from redis import Redis

from conformance.faults.decoding import sequences
from conformance.refusal import REFUSED
from property_tests.campaigns.campaign import TARGETED, read
from property_tests.campaigns.database import open_database
from property_tests.cli import app
from property_tests.drawing.profiles import PROFILES
from property_tests.sessions.hunt import hunt
from property_tests.sessions.machine import machine
from ssmspec_ref.contract import FLOAT64, Adapter, Decoding
from tests.commands import ends

from .campaigns import NONE, campaign, module, started
from .servers import redis_server


def parts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "parts.jsonl").read_text().splitlines()]


def test_two_campaigns_of_one_seed_have_the_same_examples(tmp_path: Path) -> None:
    """Over four parts, the last of which climbs, and with a database that the first campaign has written to."""
    shared = str(tmp_path / "shared")
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        assert campaign(tmp_path / name, seed=seed, database=shared).run(9, most=TARGETED) is None
    one, two, three = ([part["digest"] for part in parts(tmp_path / name)] for name in ("one", "two", "three"))
    assert one == two
    assert not set(one) & set(three)
    assert len(set(one)) == TARGETED


def test_a_campaign_goes_on_behind_its_last_whole_part(tmp_path: Path) -> None:
    campaign(tmp_path).run(9, most=1)
    whole = (tmp_path / "parts.jsonl").read_text()
    (tmp_path / "parts.jsonl").write_text(whole + whole[:50])
    assert next(campaign(tmp_path).numbers()) == 1
    assert next(campaign(tmp_path, seed=7).numbers()) == 0


def test_shards_share_the_parts_and_their_reports_merge(tmp_path: Path) -> None:
    workers = [campaign(tmp_path / str(i), shard=(i, 2)) for i in range(2)]
    assert [list(islice(worker.numbers(), 3)) for worker in workers] == [[0, 2, 4], [1, 3, 5]]
    for worker in workers:
        worker.run(9, most=1)
    folders = [worker.folder for worker in workers]
    both = read(folders)
    assert both["examples"] == sum(part["examples"] for folder in folders for part in parts(folder))
    assert both["reached"]["rule prefill"] == sum(p["reached"]["rule prefill"] for f in folders for p in parts(f))
    with pytest.raises(ValueError, match="the same batch is in two folders"):
        read([folders[0], folders[0]])
    with pytest.raises(ValueError, match="has no finished batch"):
        read([tmp_path / "none"])


def test_no_part_begins_behind_the_time(tmp_path: Path) -> None:
    ticks = iter([0.0, *([61.0] * 9)])
    assert campaign(tmp_path, clock=lambda: next(ticks)).run(1.0) is None
    assert not (tmp_path / "parts.jsonl").exists()


def test_two_workers_share_a_failure_through_a_real_redis_server(tmp_path: Path) -> None:
    """The second one, with another seed, fails at its first example, and not later; the server holds Hypothesis' examples."""
    adapter, held = module(tmp_path, "one_fault"), list[bytes]()
    with redis_server(tmp_path) as address, Redis.from_url(address) as server:
        for name, seed in (("first", 1), ("second", 2)):
            with started(tmp_path / name, adapter, database=address, seed=seed) as worker:
                _, errors = worker.communicate(timeout=300)
            assert worker.returncode == 1, errors
            held = held or server.keys()
    assert [key for key in held if b"one_fault:adapter ci cpu" in key], held
    found, again = parts(tmp_path / "first")[0]["failure"], parts(tmp_path / "second")[0]["failure"]
    assert again["at"] == 1 < found["at"]
    assert "Deviation: faulty:" in again["message"]
    (program,) = (tmp_path / "second" / "failures").glob("*.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert "Deviation: faulty:" in done.stderr


def test_a_folder_is_shared_in_the_same_way_until_the_failure_is_mended(tmp_path: Path) -> None:
    """Hypothesis' own folder: what fails is tried first under another seed; what passes then is deleted."""
    shared, profile, at = open_database(str(tmp_path / "shared"), tmp_path), PROFILES["ci"], []
    how = profile.settings(max_examples=60, derandomize=False, database=shared)
    for seed in (1, 2):
        failure = hunt(machine(only(sequences.LosesLastToken), "one", profile.sizes), how, seed, b"key")
        assert failure is not None
        at.append(failure.examples)
    assert at[1] == 1 < at[0]
    assert list(shared.fetch(b"key"))
    mended = machine(only(sequences.Right), "one", profile.sizes)
    assert hunt(mended, profile.settings(max_examples=3, derandomize=False, database=shared), 3, b"key") is None
    assert not list(shared.fetch(b"key"))


def only(fault: type[sequences.Right]) -> Adapter:
    return Adapter("one", "1", decodings=(Decoding("one", fault, FLOAT64, trees=True),))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--adapter", "no_decodings:adapter"], "MalformedAdapter: faulty declares no decodings"),
        (["--device", "cuda"], "--device cuda needs a GPU"),
    ],
)
def test_what_cannot_be_fuzzed_is_refused_before_an_example_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    """The module lies in the working folder, where `ssmspec conform run` finds it too."""
    module(tmp_path, "no_decodings", given=NONE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ends(REFUSED, *words, "--parts", 1, said=said, app=app)
