"""Steps of the engine as gates read them: every name is a step's, each kind runs, on small models and the host's clock."""

import time
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch

from perf_gates.gpu import rehearsal
from perf_gates.gpu.engine import bench, engines, equality, peer_models, work
from perf_gates.gpu.engine.named import FORCED, Step, beam_tree, named
from perf_gates.gpu.engine.trained import runs
from perf_gates.verdicts import gates

from .gates_results import GATES, PLACES


def host_us(step: Callable[[], object]) -> list[float]:
    """The time of a step, twice: one run is enough to see that it runs."""
    began = time.perf_counter()
    step()
    return [1e6 * (time.perf_counter() - began)] * 2


def of(model: str, operation: str, batch: int = 1) -> Step:
    step = named(model, operation, batch)
    assert step is not None
    return step


# --- names ---


def test_every_step_that_gates_read_is_timed_under_its_name() -> None:
    timed = {(step.model, step.operation, step.batch // step.leaves) for step in bench.steps()}
    assert timed == bench.asked()
    assert len(bench.steps()) > 150


def test_every_run_that_gates_read_with_checkpoints_is_timed() -> None:
    assert {p.operation for p in PLACES if p.part == "trained"} <= runs().keys()


def test_every_kernel_that_gates_read_of_the_papers_part_is_timed() -> None:
    timed = {(t.model, t.operation, t.batch) for timings, _ in rehearsal.rehearse("papers") for t in timings}
    assert {(p.shape, p.operation, p.batch) for p in PLACES if p.part == "papers"} <= timed


def test_a_name_of_no_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "asked", lambda: {("mamba2-2.7b", "guess, window of 3", 1)})
    with pytest.raises(gates.GateError, match="no step is called"):
        bench.steps()


def test_plain_steps_come_first_and_models_one_after_the_other() -> None:
    steps = bench.steps()
    models = [step.model for step in steps]
    assert [m for i, m in enumerate(models) if i == 0 or m != models[i - 1]] == list(dict.fromkeys(models))
    first = {step.model: step for step in reversed(steps)}
    plain = {step.model for step in steps if step.method == "plain"}
    assert all(first[model].method == "plain" for model in plain)


def test_names_say_what_is_meant() -> None:
    assert of("tiny", "replay, window of 7, 2 drafts").drafts == 2
    assert of("tiny", "tree, tree of 13, 5 emitted").emitted == 5
    assert of("tiny", "plain, window of 1, context 8k").context == 8192
    assert (of("tiny", "end to end PNG(6,2)").method, of("tiny", "end to end PNG(6,1)").method) == ("joint", "replay")
    assert of("pythia-6.9b", "end to end tree 3,2,2,1,1").tokens == 1 + 3 + 6 + 12 + 12 + 12
    lagging = of("tiny", "joint-by-lag, window of 7, 3 emitted", 2)
    assert (lagging.method, lagging.rows, of("tiny", "joint, window of 7", 2).rows) == ("joint-by-lag", 2 * 9, 2 * 13)
    merged = of("tiny", "end to end PNG(3,2) as a tree")
    assert (merged.method, merged.tokens, merged.parents) == ("tree", 7, (-1, 0, 1, 2, 0, 4, 5))
    assert named("tiny", "guess", 1) is None


def test_a_beam_tree_unrolled_has_a_row_for_each_leaf() -> None:
    parents = beam_tree(3, 4)
    leaves = set(range(13)) - set(parents)
    unrolled = of("tiny", "unrolled 3x4")
    assert len(parents) == 13 == of("tiny", "packed 3x4").tokens
    assert (unrolled.batch, unrolled.tokens) == (len(leaves), 5)
    assert all((i - 1) // 3 == (p - 1) // 3 + 1 for i, p in enumerate(parents) if i > 3)


@pytest.mark.parametrize(("model", "shape"), [("mamba-in-llama-8b", "tree A"), ("pythia-6.9b", "tree 3,2,2,1,1")])
def test_the_floor_counts_as_many_forwards_as_drafting_makes(model: str, shape: str) -> None:
    assert engines.forwards(of(model, f"end to end {shape}")) == GATES.dims[model].forwards


def test_every_dims_of_a_gate_is_described_and_as_large_as_it_is_said_to_be() -> None:
    assert {model for model, _, _ in bench.asked()} <= GATES.dims.keys()
    for name in {model for model, _, _ in bench.asked()}:
        model = engines.engine("bench.models", "random_model")(name, torch.bfloat16, "meta")
        assert engines.engine("bench.models", "weight_bytes")(model) / 1e9 == pytest.approx(
            GATES.dims[name].target_gb, rel=0.02
        )


# --- what is timed ---


@pytest.mark.parametrize(
    "operation",
    ["PNG(6,2)", "PNG(6,2) as a tree", "chain of 4", "tree A", "beam 3x4", "tree 3,2,1", "chain of 4, context 1k"],
)
def test_a_step_with_drafting_runs_and_emits_what_is_forced(operation: str) -> None:
    step = of("tiny-hybrid", f"end to end {operation}", 2)
    (timing,) = bench.timings(step, "cpu", host_us)
    assert (timing.model, timing.operation, timing.batch) == ("tiny-hybrid", step.operation, 2)
    made = engines.built(step, "cpu", engines.operations_of(step, "cpu"), None)
    before = made.sequences.length.clone()
    engines.stepping(step, made, "cpu")()
    assert (made.sequences.length - before).tolist() == [FORCED] * 2


@pytest.mark.parametrize(
    "operation", ["replay, window of 3, 2 drafts", "joint, window of 3", "unrolled 2x4", "draft chain of 5"]
)
def test_a_step_is_timed_under_its_name(operation: str) -> None:
    (timing,) = bench.timings(of("tiny", operation), "cpu", host_us)
    assert (timing.operation, timing.batch, timing.us > 0) == (operation, 1, True)


def test_a_ring_holds_the_papers_tokens_where_rows_are_many() -> None:
    step = of("tiny", "buffer, window of 4", 64)
    made = engines.built(step, "cpu", engines.operations_of(step, "cpu"), None)
    assert made.target.method.capacity == 16 + 4
    for _ in range(3):
        engines.stepping(step, made, "cpu")()


def test_a_step_of_transformers_is_timed_over_the_weights_of_ours_and_refused_over_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = of("tiny", "transformers, window of 1", 2)
    (timing,) = bench.timings(step, "cpu", host_us)
    assert (timing.operation, timing.batch, timing.bytes > 0) == ("transformers, window of 1", 2, True)
    drawn = peer_models.Kept.read

    def other(self: peer_models.Kept, name: str, *args: Any) -> torch.Tensor:
        found = drawn(self, name, *args)
        self.kept[name] = found * 2.0 if name.endswith("0.mixer.out_proj.weight") else found
        return found

    monkeypatch.setattr(peer_models.Kept, "read", other)
    with pytest.raises(RuntimeError, match="logits differ from ours"):
        bench.timings(step, "cpu", host_us)


# --- what it has to do ---


def test_the_least_work_of_a_step_is_what_its_states_and_weights_say() -> None:
    model = engines.model_of("tiny", "cpu")
    state = 4 * prod(model.config.mixers[0].state_shape)
    layers = len(model.config.mixers)
    for operation, states in (("plain, window of 1", 2), ("snapshots, window of 4", 5), ("tree, tree of 13", 2)):
        step = of("tiny", operation, 3)
        found = work.of(step, model, 1000)
        assert (found.weights, found.moved, found.products) == (1000, layers * 3 * state * states, 1000 * step.rows)
    buffered = of("tiny", "buffer, window of 4", 3)
    assert work.period(buffered) == 13
    assert work.of(buffered, model, 1000).moved > layers * 3 * state * (1 + 1 / 13)
    assert of("tiny", "joint, window of 4").rows == 7


# --- equality at full size ---


@pytest.mark.parametrize("method", equality.METHODS)
def test_speculation_is_compared_with_plain_decoding_over_windows_of_all_kinds(method: str) -> None:
    (found,) = equality.timings("tiny", method, "cpu")
    assert isinstance(found, equality.Equality)
    assert (found.compared, found.differing) == (equality.ROWS * equality.TOKENS, 0)
    assert min(found.windows) > 0


def test_a_target_that_changes_under_speculation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = equality.results, engines.engine("bench.models", "random_model")("tiny", torch.float32, "cpu", seed=1)
    monkeypatch.setattr(
        equality, "results", lambda model, method, *rest: whole(model if method == "plain" else other, method, *rest)
    )
    (found,) = equality.timings("tiny", "replay", "cpu")
    assert isinstance(found, equality.Equality)
    assert found.differing > 0
