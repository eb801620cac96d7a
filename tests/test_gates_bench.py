"""Steps of the engine as gates read them: what is asked for is named as it is timed, on small models and the host's clock."""

import time
from collections.abc import Callable

import pytest
import torch

from perf_gates import gates
from perf_gates.gpu import bench


def host_us(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return 1e6 * (time.perf_counter() - began)


def test_what_gates_read_and_the_engine_has_is_timed_under_the_same_name() -> None:
    timed = {
        (s.model, s.operation if isinstance(s, bench.Drafted) else bench.operation(s), s.batch) for s in bench.subjects()
    }
    assert timed <= bench.asked()
    assert len(timed) > 60
    assert {("mamba2-2.7b", "plain, window of 1", 1), ("mamba2-23b", "tree, tree of 13", 1)} <= timed
    assert {("mamba2-2.7b", "end to end PNG(6,2)", 1), ("mamba-in-llama-8b", "end to end tree 13", 1)} <= timed


def test_plain_steps_come_first() -> None:
    first = {}
    for subject in bench.subjects():
        first.setdefault(subject.model, subject)
    assert all(subject.method == "plain" for subject in first.values())


@pytest.mark.parametrize("operation", bench.DRAFTED)
def test_a_step_with_drafting_runs_and_emits_what_is_forced(operation: str) -> None:
    drafted = bench.Drafted("tiny-hybrid", operation, 2)
    (timing,) = bench.timings(drafted, "cpu", host_us)
    assert (timing.model, timing.operation, timing.batch) == ("tiny-hybrid", operation, 2)
    assert timing.us > 0
    model = bench.model_of("tiny-hybrid", "cpu")
    engine = bench.with_drafting(drafted, model, bench.engine("bench.steps", "operations_of")(torch.device("cpu")), None)
    before = engine.sequences.length.clone()
    bench.engine("bench.steps", "stepping")(engine, torch.arange(2))()
    assert (engine.sequences.length - before).tolist() == [bench.FORCED] * 2


@pytest.mark.parametrize(("method", "rows"), [("replay", 2), ("joint", 1), ("buffer", 1)])
def test_a_step_of_the_benchmark_is_timed_under_its_name(method: str, rows: int) -> None:
    subject = bench.engine("bench.subjects", "Subject")("tiny", method, 3, 1, rows)
    (timing,) = bench.timings(subject, "cpu", host_us)
    assert timing.operation == f"{method}, window of 3" + (", 2 drafts" if rows == 2 else "")
    assert timing.bytes > 0


def test_every_dims_of_a_gate_is_described() -> None:
    assert {model for model, _, _ in bench.asked()} <= gates.load().dims.keys() | {
        f"mamba-in-llama-8b-{n}" for n in (50, 25, 0)
    }
