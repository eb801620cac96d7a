"""`--ray`: one run on a cluster that loses a node, and what is refused before any task. More in `test_losses`."""

import re
from pathlib import Path

import pytest

from conformance.on_ray import shipping
from conformance.on_ray.driver import places
from conformance.refusal import FAILED, REFUSED
from tests.robust.on_ray import runs
from tests.robust.on_ray.clusters import cluster


@pytest.mark.timeout(1800)
def test_a_run_that_loses_a_node_ends_with_the_report_of_one_process(tmp_path: Path) -> None:
    """The line for line of verdicts, cases, errors, diagnoses and failures, of one right adapter and one wrong; a node dies
    while a shard runs there. Adapters and ssmspec itself are the ones that the driver sent."""
    names = [runs.adapter(tmp_path, "right", subjects=2), runs.adapter(tmp_path, "wrong", wrong=True)]
    runs.ended(FAILED, tmp_path, runs.conform(tmp_path / "alone", names))
    runs.forget(tmp_path)
    with cluster(tmp_path / "cluster") as nodes, runs.running(tmp_path, *runs.on(nodes, tmp_path, names)) as run:
        with runs.held(tmp_path):
            runs.called(tmp_path, 2, "right")  # a shard on each node, and neither ends
            nodes.kill(0)
            runs.died(tmp_path, "right")  # with its node, while its call still waits
        assert run.wait(600) == FAILED, (tmp_path / "run.log").read_text()
    log = (tmp_path / "run.log").read_text()
    assert "lost its worker" in log
    assert re.search(r"[1-3]/3 shards, \d+/\d+ cases, about \d+ s left", log), log
    head, *found = runs.lines(tmp_path / "ray")
    before, *expected = runs.lines(tmp_path / "alone")
    assert found == expected
    assert set(head["adapters"].values()) == {"shipped"}
    assert {**head, "adapters": before["adapters"]} == before
    noted = runs.tasks(tmp_path / "ray")
    assert all(task["versions"]["sources"] == shipping.digest() and task["host"] for task in noted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray", "ray://127.0.0.1:10001"], "is a Ray client address"),
        (
            ["--ray", "127.0.0.1:6379", "--jobs", "2"],
            "--jobs 2 has no use: --ray runs each shard as a task of the cluster; omit it",
        ),
        (["--ray-gpus", "1"], "--ray-gpus 1.0 has no use: no cluster is named; omit it, or give --ray ADDRESS"),
        (["--ray", "127.0.0.1:6379", "--ray-ship", "nowhere"], "--ray-ship nowhere does not exist"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_before_any_task(tmp_path: Path, words: list[str], said: str) -> None:
    runs.ended(REFUSED, tmp_path, runs.conform(tmp_path / "out", ["reference"], *words), said)
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('No module named ray')\n")
    words = runs.conform(tmp_path / "out", ["reference"], "--ray", "auto")
    runs.ended(REFUSED, tmp_path, words, "pip install '../ssmspec[ray]'")


def test_a_node_takes_as_many_tasks_as_it_has_of_everything() -> None:
    assert places({"CPU": 4.0, "GPU": 2.0, "memory": 8e9}, {"CPU": 1.0, "GPU": 0.5, "memory": 3e9}) == 2
    assert places({"CPU": 4.0}, {"CPU": 1.0, "GPU": 1.0}) == 0
    assert places({}, {}) == 1
