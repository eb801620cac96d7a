"""Conformance runs on clusters that lose nodes, heads, workers and drivers: nothing lost, nothing green by default."""

import os
import time
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from conformance.refusal import BROKEN, FAILED, REFUSED
from tests.properties.servers import redis_server
from tests.robust.on_ray import runs
from tests.robust.on_ray.clusters import Nodes, cluster

pytestmark = [pytest.mark.robust, pytest.mark.timeout(1800)]
UNFINISHED = "conformance: unfinished"


def alone(folder: Path, names: list[str]) -> list[dict[str, object]]:
    """What one undisturbed process finds."""
    runs.ran(folder, *runs.conform(folder / "alone", names))
    runs.forget(folder)
    return runs.lines(folder / "alone")


def same(folder: Path, expected: list[dict[str, object]]) -> None:
    """But for the adapters' versions, which say how their modules came to the node."""
    found = runs.lines(folder / "ray")
    assert found[1:] == expected[1:]


def test_a_driver_that_is_killed_leaves_no_worker_and_nothing_green_and_is_resumed(tmp_path: Path) -> None:
    names = [runs.adapter(tmp_path, "quick"), runs.adapter(tmp_path, "slow", wait=1.0, subjects=6)]
    expected = alone(tmp_path, names)
    with cluster(tmp_path / "cluster") as nodes:
        words = runs.on(nodes, tmp_path, names)
        moments = Random(20)
        for again in range(8):
            runs.forget(tmp_path)
            with runs.running(tmp_path, *words, *(["--resume"] if again else [])) as run:
                runs.called(tmp_path, 1, "slow")
                time.sleep(moments.uniform(0, 2))
                run.kill()
                run.wait(600)
        assert UNFINISHED in (tmp_path / "ray" / "badge.svg").read_text()
        until = time.monotonic() + 10
        while (left := runs.workers(tmp_path)[1]) and time.monotonic() < until:
            time.sleep(0.2)
        assert not left
        runs.ended(0, tmp_path, [*words, "--resume"])
    same(tmp_path, expected)


def test_a_cluster_that_is_gone_ends_the_run_unfinished_and_another_goes_on(tmp_path: Path) -> None:
    """The head dies, and comes back without its state."""
    names = [runs.adapter(tmp_path, "quick"), runs.adapter(tmp_path, "slow", wait=1.0, subjects=2)]
    expected = alone(tmp_path, names)
    with cluster(tmp_path / "cluster") as nodes:
        with runs.running(tmp_path, *runs.on(nodes, tmp_path, names)) as run:
            runs.called(tmp_path, 1, "slow")
            nodes.kill_head()
            assert run.wait(600) == BROKEN, (tmp_path / "run.log").read_text()
        assert "is gone" in (tmp_path / "run.log").read_text()
        assert UNFINISHED in (tmp_path / "ray" / "badge.svg").read_text()
    with cluster(tmp_path / "another") as nodes:
        runs.ended(0, tmp_path, runs.on(nodes, tmp_path, names, "--resume"))
    same(tmp_path, expected)


def on_redis(folder: Path, address: str) -> AbstractContextManager[Nodes]:
    """A cluster whose head has its state on a server."""
    place = {"RAY_REDIS_ADDRESS": address.removeprefix("redis://").removesuffix("/0")}
    return cluster(folder / "cluster", environment=place)


def test_a_head_that_is_restarted_with_its_state_on_redis_ends_no_run(tmp_path: Path) -> None:
    names = [runs.adapter(tmp_path, "slow", wait=1.0, subjects=3)]
    expected = alone(tmp_path, names)
    with (
        redis_server(tmp_path) as address,
        on_redis(tmp_path, address) as nodes,
        runs.running(tmp_path, *runs.on(nodes, tmp_path, names)) as run,
    ):
        runs.called(tmp_path, 2, "slow")
        nodes.kill_head()
        time.sleep(2)
        nodes.restart_head()
        assert run.wait(600) == 0, (tmp_path / "run.log").read_text()
    same(tmp_path, expected)


def test_a_poisoned_shard_is_unknown_and_the_others_are_judged(tmp_path: Path) -> None:
    """It kills each process that judges it; it is tried so often, and never green."""
    names = [runs.adapter(tmp_path, "right"), runs.adapter(tmp_path, "poison", dies=True)]
    with cluster(tmp_path / "cluster") as nodes:
        runs.ended(FAILED, tmp_path, runs.on(nodes, tmp_path, names, "--ray-tries", "2"))
    cases = [line for line in runs.lines(tmp_path / "ray") if line.get("case")]
    assert {line["verdict"] for line in cases if line["adapter"] == "right"} == {"pass"}
    lost = [line for line in cases if line["adapter"] == "poison"]
    assert {(line["verdict"], line["failing"]) for line in lost} == {("unknown", "lost")}
    assert "2 workers and 0 nodes died while running it" in lost[0]["message"]


def test_nodes_that_die_one_after_the_other_end_no_run(tmp_path: Path) -> None:
    """Spot nodes: each is lost at a random moment of its work, the last one comes late."""
    moments = Random(21)
    names = [runs.adapter(tmp_path, "slow", wait=0.4, subjects=2)]
    expected = alone(tmp_path, names)
    with (
        cluster(tmp_path / "cluster", nodes=1) as nodes,
        runs.running(tmp_path, *runs.on(nodes, tmp_path, names)) as run,
    ):
        for node in range(6):
            runs.called(tmp_path, 1, "slow")
            time.sleep(moments.uniform(0, 1.5))
            nodes.kill(node)
            runs.forget(tmp_path)
            time.sleep(1)
            nodes.add()
        assert run.wait(600) == 0, (tmp_path / "run.log").read_text()
    same(tmp_path, expected)


def test_twenty_adapters_wait_for_two_cpus(tmp_path: Path) -> None:
    names = [runs.adapter(tmp_path, f"tiny{i:02}") for i in range(20)]
    expected = alone(tmp_path, names)
    with cluster(tmp_path / "cluster") as nodes:
        runs.ended(0, tmp_path, runs.on(nodes, tmp_path, names), timeout=900)
    same(tmp_path, expected)
    ran = sorted((task["node"], task["began"], task["seconds"]) for task in runs.tasks(tmp_path / "ray"))
    assert len(ran) == 20
    for (node, began, seconds), (other, after, _) in pairwise(ran):
        assert node != other or began + seconds <= after, "a node of one CPU ran two tasks at once"


def test_a_task_has_the_gpu_it_asks_for_and_waits_where_there_is_none(tmp_path: Path) -> None:
    """The GPU is declared by the node, and faked: what Ray hands out is seen, nothing computes on it."""
    names = [runs.adapter(tmp_path, "right")]
    with cluster(tmp_path / "cluster", nodes=1) as nodes:
        words = runs.on(nodes, tmp_path, names, "--ray-gpus", "1", "--ray-wait", "5")
        runs.ended(REFUSED, tmp_path, words, "none of 2 nodes had 1 CPU, 1 GPU for a task")
        nodes.add(num_gpus=1)
        runs.ended(0, tmp_path, words)
    assert {task["visible"] for task in runs.tasks(tmp_path / "ray")} == {"0"}


def test_nodes_of_unequal_versions_are_an_error_unless_allowed(tmp_path: Path) -> None:
    names = [runs.adapter(tmp_path, "right", wait=0.3, subjects=4)]
    fake = tmp_path / "fake" / "numpy-99.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 99.0\n")
    with cluster(tmp_path / "cluster", nodes=1) as nodes:
        nodes.add(env_vars={"PYTHONPATH": str(tmp_path / "fake")})
        words = runs.on(nodes, tmp_path, names)
        made = runs.ran(tmp_path, *words)
        assert made.returncode == REFUSED, made.stderr
        assert "numpy 99.0 beside" in made.stderr or "beside 99.0" in made.stderr
        runs.ended(0, tmp_path, [*words, "--ray-mixed"])
    found = {task["versions"]["numpy"] for task in runs.tasks(tmp_path / "ray")}
    assert "99.0" in found
    assert len(found) == 2


def test_a_cluster_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    words = runs.conform(tmp_path / "out", ["reference"], "--ray", "127.0.0.1:1")
    runs.ended(REFUSED, tmp_path, words, "no Ray cluster answers at 127.0.0.1:1")


def test_a_local_cluster_is_started_where_it_is_asked_for(tmp_path: Path) -> None:
    names = [runs.adapter(tmp_path, "right"), runs.adapter(tmp_path, "wrong", wrong=True)]
    expected = alone(tmp_path, names)
    runs.ended(FAILED, tmp_path, runs.conform(tmp_path / "ray", names, "--ray", "local", "--ray-parts", "2"))
    same(tmp_path, expected)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
