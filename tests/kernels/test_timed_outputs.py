"""What is timed on a GPU has written every output of its graph: tried in the interpreter on small shapes.

A graph is stood in for by its launches, made one after the other; tensors of the device are the host's. Kernels and all else
of a measurement are real. A planted fault leaves out a row of the output at one place of the graph only.
"""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from perf_gates.gpu import clock, core
from perf_gates.gpu import output_guard as looking
from perf_gates.gpu.kernels import buffered, buffered_delta, linear, papers, peers, prefill, steps, unrolled
from perf_gates.gpu.output_guard import check_written, finite, numbered, own_outputs, pieces
from perf_gates.gpu.paired_timing import WrongOutputError
from perf_gates.static.launch_traffic import PACKED, PRIVATE, SHARED
from perf_gates.static.shapes import ATTENTION, DELTA, SSD

pytestmark = pytest.mark.interpreter

COPIES, BATCH = 2, 2
REAL = steps.kernel


class OnHost(TorchFunctionMode):
    """Tensors of the device lie on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return args[0] if func is torch.Tensor.cuda else func(*args, **kwargs)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small model of each kind, two sets of arguments, and no graphs."""

    def recorded(launches: Sequence[Callable[[], object]], warm: int) -> Callable[[], None]:
        def replay() -> None:
            for launch in launches:
                launch()

        for launch in launches[:warm]:
            launch()
        return replay

    def replays_us(replay: Callable[[], None], _: int) -> list[float]:
        replay()
        return [10.0, 10.0]

    monkeypatch.setattr(clock, "recorded", recorded)
    monkeypatch.setattr(clock, "_replays_us", replays_us)
    monkeypatch.setattr(core, "recorded", lambda launches: recorded(launches, 0))
    for module in (buffered, buffered_delta, core, papers, peers, prefill, steps, unrolled):
        monkeypatch.setattr(module, "copies_for", lambda *_, **__: COPIES)
    monkeypatch.setitem(SSD, "small", (2, 16, 16, 1))
    monkeypatch.setitem(buffered.LAYERS, "small", 2)
    monkeypatch.setitem(DELTA, "small delta", (1, 2, 16, 16))
    monkeypatch.setitem(ATTENTION, "small attention", (2, 1, 16))
    monkeypatch.setattr(prefill, "TOKENS", 70)
    torch.manual_seed(0)
    with OnHost():
        yield


Where = Callable[[Sequence[Any], dict[str, Any]], bool]


def skipping(where: Where, name: str) -> Callable[..., Any]:
    """Launchers, of which the one of this name leaves out the last row of its output where it is told to."""

    def kernel(module: str, function: str | None = None) -> Any:
        real = REAL(module, function)
        if (function or module) != name:
            return real

        def launcher(*args: Any, out: torch.Tensor, **rest: Any) -> torch.Tensor:
            left_out = where(args, rest)
            held = out[-1].clone()
            real(*args, out=out, **rest)
            if left_out:
                out[-1] = held
            return out

        return launcher

    return kernel


def plant(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, where: Where) -> None:
    monkeypatch.setattr(module, "kernel", skipping(where, name))


def nth(n: int, of: int) -> Where:
    """Every launch number n of so many."""
    calls = iter(range(10**9))
    return lambda *_: next(calls) % of == n


# --- flush cycles ---

PLANS = [
    buffered.Plan(4),
    buffered.Plan(4, staggered=True),
    buffered.Plan(4, output_only=False),
    buffered.Plan(8, 3, 2),
    buffered.Plan(8, 3, 2, staggered=True),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_layer_that_leaves_out_a_row_at_one_position_of_a_flush_cycle_is_caught(
    plan: buffered.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, name = buffered.Model("small", BATCH, plan.capacity), "ssd_buffered" if plan.window else "ssd_buffered_step"
    assert buffered.buffered(model, plan)[0] == pytest.approx(10 / (len(plan.cycle) * model.groups * 3) * 1.5)
    pools = [S.data_ptr() for S, _ in model.pools]
    row = BATCH - 1
    for at in range(len(plan.cycle)):
        phase = row % len(plan.cycle) if plan.staggered else 0
        due = plan.cycle[(at + phase) % len(plan.cycle)]

        def where(args: Sequence[Any], _: Any, due: int = due) -> bool:
            return bool(args[1].held[row] == due) and args[0].data_ptr() == pools[1]

        plant(monkeypatch, buffered, name, where)
        fresh = "and those of" if model.groups > 1 else "; no time"
        with pytest.raises(
            WrongOutputError, match=f"step {at} of {len(plan.cycle)}, rows 0, layer 1 was not written.*{fresh}"
        ):
            buffered.buffered(model, plan)


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("cycle", [buffered_delta.Cycle(1, 1, 3), buffered_delta.Cycle(2, 2, 6)], ids=str)
def test_a_layer_of_the_delta_rule_that_leaves_out_a_row_at_one_position_is_caught(
    cycle: buffered_delta.Cycle, staggered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "small delta", BATCH, cycle, torch.bfloat16, staggered
    name, positions = "delta_buffered_step" if cycle.tokens == 1 else "delta_buffered", len(cycle.held)
    assert buffered_delta.cycle_us(*given) == 10 / (positions * COPIES)
    for at in range(positions):
        layer = at % COPIES
        plant(monkeypatch, buffered_delta, name, replayed(nth(at * COPIES + layer, positions * COPIES)))
        with pytest.raises(WrongOutputError, match=f"step {at} of {positions}, layer {layer} was not written.*; no time"):
            buffered_delta.cycle_us(*given)


def replayed(where: Where) -> Where:
    """The same behind the two launches that are made ahead of a recording."""
    first = iter(range(10**9))
    return lambda args, rest: next(first) >= 2 and where(args, rest)


# --- launches over rotating states ---


@pytest.mark.parametrize(("model", "name"), [("small", "ssd_scan"), ("small delta", "delta_scan")])
def test_a_step_over_one_of_the_rotating_states_that_leaves_out_a_row_is_caught(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {t.us for t in steps.timings(model, BATCH, 0)} == {5.0}
    assert [t.operation for t in steps.timings(model, BATCH, 7)] == ["tree of 7"]
    plant(monkeypatch, steps, name, lambda _, rest: int(rest["slots"][0]) == BATCH)
    with pytest.raises(WrongOutputError, match="the output of launch 1 of 2 was not written"):
        steps.timings(model, BATCH, 0)


def test_a_state_that_is_no_number_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted behind the very last launch, so that no output shows it."""
    calls = iter(range(10**9))

    def kernel(module: str, function: str | None = None) -> Any:
        def launcher(S: torch.Tensor, *args: Any, **rest: Any) -> None:
            REAL(module, function)(S, *args, **rest)
            if next(calls) == 5:  # two ahead of the recording, two that are timed, two that are looked at
                S[rest["slots"][1], 0, 0, 0] = float("inf")

        return launcher if module == "ssd_scan" and function is None else REAL(module, function)

    monkeypatch.setattr(steps, "kernel", kernel)
    with pytest.raises(WrongOutputError, match="state 0 of 1 is not finite"):
        steps.timings("small", BATCH, 0)


def test_the_plain_steps_beside_buffers_are_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert buffered._plain("small", BATCH)[0] == buffered_delta.plain_us("small delta", BATCH) == 5.0
    plant(monkeypatch, buffered_delta, "delta_scan", nth(1, 2))
    with pytest.raises(WrongOutputError, match="launch 1 of 2"):
        buffered_delta.plain_us("small delta", BATCH)
    plant(monkeypatch, buffered, "ssd_scan", nth(1, 2))
    with pytest.raises(WrongOutputError, match="launch 1 of 2"):
        buffered._plain("small", BATCH)


@pytest.mark.parametrize("model", ["small", "small delta"])
def test_states_after_every_token_are_looked_at(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert papers.snapshots(model, BATCH, 3, 0)[0].us == 5.0
    plant(monkeypatch, papers, "delta_snapshots" if model in DELTA else "ssd_snapshots", nth(1, 2))
    with pytest.raises(WrongOutputError, match="launch 1 of 2"):
        papers.snapshots(model, BATCH, 3, 0)


def test_a_product_that_leaves_out_its_last_outputs_is_caught() -> None:
    Ws = [torch.randn(o, i).bfloat16() for o, i in (linear.IN[::-1], linear.OUT[::-1])]
    Ws = [W[:4, : i[1]].contiguous() for W, i in zip([Ws[1].T, Ws[0].T], (linear.IN, linear.OUT), strict=True)]

    def product(x: torch.Tensor, W: torch.Tensor, y: torch.Tensor) -> None:
        torch.mm(x, W.T, out=y)

    def short(x: torch.Tensor, W: torch.Tensor, y: torch.Tensor) -> None:
        y[:, : len(W) - (W is Ws[1])] = (x @ W.T)[:, : len(W) - (W is Ws[1])]

    assert linear.timed(product, 2, Ws) == 10.0
    with pytest.raises(WrongOutputError, match="the output of product 1 of 2"):
        linear.timed(short, 2, Ws)


@pytest.mark.parametrize(("model", "name"), [("small", "ssd_scan"), ("small delta", "delta_scan")])
def test_a_launch_of_the_core_set_that_leaves_out_a_row_is_caught_before_it_is_timed(
    model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.side(model, "step", BATCH).check()
    plant(monkeypatch, core, name, lambda _, rest: int(rest["slots"][0]) == BATCH)
    with pytest.raises(WrongOutputError, match="the output of launch 1 of 2 was not written"):
        core.side(model, "step", BATCH).check()


# --- trees and their paths ---


@pytest.mark.parametrize(("model", "name"), [("small", "ssd_window"), ("small delta", "delta_chunked")])
@pytest.mark.parametrize("wrong", [PRIVATE, SHARED])
def test_rows_that_are_not_the_paths_of_the_tree_are_caught_with_states_of_their_own_and_with_one(
    wrong: str, model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a window reads the state of the slot behind the last row's, over private states only, or over shared ones."""
    found = unrolled.timings(model, BATCH, 7)
    assert [t.operation for t in found] == [PACKED, PRIVATE, SHARED]
    assert all(t.bytes for t in found)

    def kernel(module: str, function: str | None = None) -> Any:
        real = REAL(module, function)

        def window(*args: Any, slots: torch.Tensor, **rest: Any) -> Any:
            is_private = len(slots.unique()) == len(slots)
            slots = slots.clone()
            slots[-1] += (is_private == (wrong == PRIVATE)) * (1 if wrong == PRIVATE else BATCH)
            return real(*args, slots=slots, **rest)

        return window if (function or module) == name else real

    monkeypatch.setattr(unrolled, "kernel", kernel)
    with pytest.raises(WrongOutputError, match=f"{wrong} differs from the packed tree"):
        unrolled.timings(model, BATCH, 7)


def test_a_row_that_one_launch_of_unrolled_paths_leaves_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, unrolled, "ssd_window", lambda _, rest: int(rest["slots"][0]) == BATCH * 4)
    with pytest.raises(WrongOutputError, match="the output of launch 1 of 2"):
        unrolled.timings("small", BATCH, 7)


# --- prompts and peers ---

PROMPTS = [
    (prefill.ssd, "small", "ssd_chunk_scan"),
    (prefill.delta, "small delta", "delta_chunk_scan"),
    (prefill.attention, "small attention", "causal_attention"),
]


@pytest.mark.parametrize(("timed", "model", "name"), PROMPTS)
def test_a_prompt_of_the_graph_whose_last_token_is_left_out_is_caught(
    timed: Any, model: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = timed({}, model, True)
    assert {"ours", "ours in bf16"} <= found.keys()
    assert set(found.values()) == {5.0}
    prompts = iter(range(10**9))
    plant(monkeypatch, prefill, name, lambda *_: next(prompts) in (2, 4, 6))  # behind the first, the second of each two
    with pytest.raises(WrongOutputError, match="the output of launch 1 of 2"):
        timed({}, model, True)


def test_the_bytes_of_our_prompts_are_written_down() -> None:
    assert (
        prefill.bytes_of_ours("qwen3.5-4b", "delta_chunk_scan, ours")
        > prefill.bytes_of_ours("qwen3.5-4b", "delta_chunk_scan, fla")
        == 0
    )


def test_prompts_of_a_graph_share_nothing() -> None:
    prompts = prefill.several(lambda: (torch.randn(2), torch.randn(3)))
    assert len({u.data_ptr() for prompt in prompts for u in prompt}) == 2 * len(prompts) == 2 * COPIES


@pytest.mark.parametrize("broken", [None, "output", "state"])
def test_what_a_peer_returns_is_looked_at(broken: str | None) -> None:
    """A peer of the delta rule that is our scan; its second state, or its output, holds something that is no number."""
    scan, calls = REAL("delta_scan"), iter(range(10**9))

    def update(
        q: Any, k: Any, v: Any, g: Any, *, beta: Any, initial_state: Any, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = initial_state.clone()
        found = scan(state, q, k, v, g, beta)
        if next(calls) > 1 and broken:
            (found if broken == "output" else state).view(-1)[-1] = float("nan")
        return found, state

    fla: Any = {"fla": SimpleNamespace(fused_recurrent_gated_delta_rule=update)}
    if broken is None:
        assert [t.operation for t in peers.delta(fla, "small delta", BATCH, 1)] == ["step, ours", "step, fla"]
        return
    said = {"output": "the output of launch 0", "state": "state 0 of 2 is not finite"}[broken]
    with pytest.raises(WrongOutputError, match=said):
        peers.delta(fla, "small delta", BATCH, 1)


# --- what looks ---


def test_launches_that_share_an_output_and_graphs_without_one_are_refused() -> None:
    out = torch.zeros(2)
    for outputs in ({}, {"a": out, "b": out}):
        with pytest.raises(ValueError, match="give each launch its own"):
            check_written(lambda: None, outputs)


def test_what_was_written_before_the_last_replay_does_not_count() -> None:
    outputs = {name: torch.zeros(2, 3) for name in "ab"}
    check_written(lambda: [out.zero_() for out in outputs.values()], outputs)
    with pytest.raises(WrongOutputError, match="the output of b was not written, or is not finite; no time"):
        check_written(lambda: (outputs["a"].zero_(), outputs["b"][0].zero_()), outputs)


def test_outputs_are_looked_at_in_as_few_pieces_as_they_fill_and_no_neighbour_is_filled() -> None:
    outputs = own_outputs(torch.zeros(2, 3), numbered(4))
    (piece,) = pieces(outputs.values())
    assert piece.shape == (4, 2, 3)
    assert [out.shape for out in pieces([*outputs.values()][1:])] == [(2, 3)] * 3
    alone = torch.zeros(3)
    assert [out is alone for out in pieces([alone, alone.clone()])] == [True, False]
    beside = torch.zeros(4)
    check_written(lambda: beside[:2].zero_(), {"a": beside[:2]})
    assert beside.tolist() == [0.0] * 4


@pytest.mark.parametrize("at", [0, 3, 4, 9])
def test_every_slab_of_a_large_tensor_is_looked_at(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SLAB", 4)
    x = torch.zeros(5, 2)
    assert finite(x)
    x.view(-1)[at] = float("inf")
    assert not finite(x)


def test_outputs_begin_as_no_numbers_and_are_apart() -> None:
    outputs = own_outputs(torch.zeros(2, 3), numbered(2))
    assert [*outputs] == ["launch 0 of 2", "launch 1 of 2"]
    assert all(bool(out.isnan().all()) for out in outputs.values())
    first, second = outputs.values()
    first.zero_()
    assert bool(second.isnan().all())
