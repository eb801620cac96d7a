"""Kimi Delta Attention of the engine over the kernels: each operation beside the oracle, with gates as projections."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_fast.operations import DeltaInputs, KDAParams
from ssmspec_fast.operations import triton_recurrences as engine
from ssmspec_kernels.kda import kda_commit, kda_tree
from ssmspec_kernels.kda.kda_inputs import formed_gates
from ssmspec_ref import error_bounds as eb
from tests.kernels import delta_plot as delta
from tests.kernels import delta_rings
from tests.kernels.delta_plot import Options, kda
from tests.kernels.kda_subjects import COMMIT, SCAN, SNAPSHOTS, TREE
from tests.kernels.laws import Subject, check_bound
from tests.kernels.mutants import mutated
from tests.kernels.plot import Call
from tests.kernels.tensors import check_within, doubles

FORMS = [
    kda(t=4, raw=True, bias=True, lower=-5.0, io="bf16", spare=14),
    kda(t=3, raw=True, bias=True, lower=-0.5, gentle=True, g=4, spare=14, seed=1),
    kda(t=4, raw=True, bias=True, io="bf16", spare=14, seed=2),
]
FAST = engine.KDA(bitwise=False)


def of(call: Call) -> tuple[DeltaInputs, KDAParams]:
    """A call as the engine has it."""
    _, inputs, params = given(**call.given)
    return inputs, params


def given(**named: Any) -> tuple[Tensor, DeltaInputs, KDAParams]:
    """What a test of the kernels calls a launcher with, as the engine has it."""
    params = KDAParams(named["A"], named["dt_bias"], named["l2_norm"], named["scale"], 1e-6, named.get("lower_bound"))
    return named["S"], DeltaInputs(*(named[x] for x in delta.TOKENS)), params


def into(out: Tensor, slots: Tensor, y: Tensor) -> Tensor:
    """The outputs of the live rows in the tensor that the test gave."""
    out[slots >= 0] = y[slots >= 0]
    return out


def check(subject: Subject, o: Options, run: Callable[..., Any]) -> None:
    """The bound of a launcher, of what the engine runs instead of it."""
    check_bound(subject, SimpleNamespace(**{subject.name: run}), o)  # type: ignore[arg-type]


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_window_lies_within_the_bound(o: Options, bitwise: bool) -> None:
    def run(slots: Tensor, out: Tensor, **named: Any) -> Tensor:
        S, inputs, params = given(**named)
        return into(out, slots, engine.KDA(bitwise).scan(S, inputs, params, slots=slots))

    check(SCAN, o, run)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_every_state_of_a_window_lies_within_the_bound(o: Options) -> None:
    def run(places: Tensor, slots: Tensor, out: Tensor, **named: Any) -> Tensor:
        S, inputs, params = given(**named)
        return into(out, slots, FAST.snapshots(S, inputs, params, places, slots=slots))

    check(SNAPSHOTS, o, run)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_tree_lies_within_the_bound(o: Options) -> None:
    def run(ancestors: Tensor, slots: Tensor, out: Tensor, **named: Any) -> Tensor:
        S, inputs, params = given(**named)
        return into(out, slots, FAST.tree(S, inputs, params, ancestors[:, :, 0], ancestors, slots=slots))

    check(TREE, replace(o, tree="several"), run)


TREE_FAULTS = [("BOUNDED=lower_bound is not None", "BOUNDED=False"), ("x * tl.reshape(both, x.shape)", "x")]


@pytest.mark.parametrize(("old", "new"), TREE_FAULTS)
def test_a_planted_fault_of_the_tree_kernel_is_caught(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.KDA, "kernels", {**engine.KDA.kernels, "tree": mutated(kda_tree, old, new).kda_tree})
    with pytest.raises(AssertionError):
        test_a_tree_lies_within_the_bound(FORMS[1])


def committed(
    S: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, l2_norm: bool, lower_bound: Any, **named: Any
) -> None:
    """What a test of the kernel calls it with, as the engine calls it: gates are projections there."""
    params = KDAParams(named.pop("A"), named.pop("dt_bias"), l2_norm, None, 1e-6, lower_bound)
    FAST.commit(S, DeltaInputs(k, k, v, g, beta), params, **named)


COMMITS = [o for o in COMMIT.cover if o.raw]


@pytest.mark.parametrize("o", COMMITS, ids=str)
def test_a_commit_lies_within_the_bound(o: delta.Commits) -> None:
    check(COMMIT, o, committed)


@pytest.mark.parametrize("name", ["lower_bound", "path", "rows", "dt_bias"])
def test_an_argument_that_a_commit_forgets_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @wraps(kda_commit.kda_commit)
    def forgetful(*inputs: Tensor, **given: Any) -> None:
        if name == "path" and given["path"] is not None:
            given["advanced"] = (given["path"] >= 0).sum(1)
        if name == "rows" and given["rows"] is not None:
            given["rows"] = torch.zeros_like(given["rows"])
        kda_commit.kda_commit(*inputs, **given | ({} if name == "rows" else {name: None}))

    monkeypatch.setattr(engine.KDA, "kernels", {**engine.KDA.kernels, "commit": forgetful})
    o = next(o for o in COMMITS if o.path and o.drafts > 1 and o.lower is not None)
    with pytest.raises(AssertionError):
        test_a_commit_lies_within_the_bound(o)


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_packed_run_lies_within_the_bound(o: Options, bitwise: bool) -> None:
    call = SCAN.draw(replace(o, padding=False))
    y, S = delta.scanned(call) if bitwise else delta.scanned(call, order="chunked", chunk=32)
    inputs, params = of(call)
    run = DeltaInputs(*(x.flatten(0, 1)[None].contiguous() for x in inputs))
    bounds = torch.arange(0, o.b * o.t + 1, o.t)
    found = engine.KDA(bitwise).packed(call["S"], run, params, bounds, slots=call["slots"])
    check_within(doubles(found[0].view(call["out"].shape)), y)
    check_within(call.state(), S)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_window_in_a_ring_and_its_flush_lie_within_the_bound(o: Options) -> None:
    call = SCAN.draw(replace(o, padding=False))
    y, S = delta.scanned(call, order="output_only", ring="fp32")
    ring = delta_rings.ring_of(o, 3 * o.t, torch.float32)
    inputs, params = of(call)
    found = FAST.buffered(call["S"], ring, inputs, params, window=o.t, slots=call["slots"], lengths=None)
    check_within(doubles(found), y)
    ring.held[call["slots"].long()] = o.t
    FAST.flush(call["S"], ring, params, slots=call["slots"])
    check_within(call.state(), S)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_gates_that_are_formed_before_a_kernel_lie_within_the_bound(o: Options) -> None:
    call = SCAN.draw(o)
    inputs, params = of(call)
    g, beta = formed_gates(inputs.g, inputs.beta, params.A, params.dt_bias, params.lower_bound)
    window, inexact = delta.window(call)
    for name, x in (("g", g), ("beta", beta)):
        comparison = eb.compare(doubles(x)[call.rows], getattr(window, name), inexact[name])
        assert comparison.passed, f"{name}: {comparison}"
    assert formed_gates(inputs.g, inputs.beta, None, None, None) == (inputs.g, inputs.beta)


def test_gates_are_formed_before_a_kernel_only_for_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Any) -> Any:
        raise ArithmeticError

    monkeypatch.setattr(engine, "formed_gates", unexpected)
    test_a_window_in_a_ring_and_its_flush_lie_within_the_bound(FORMS[2])
    with pytest.raises(ArithmeticError):
        test_a_window_in_a_ring_and_its_flush_lie_within_the_bound(FORMS[0])


GATED = {
    "prompt": lambda: test_a_packed_run_lies_within_the_bound(FORMS[1], bitwise=False),
    "ring": lambda: test_a_window_in_a_ring_and_its_flush_lie_within_the_bound(FORMS[1]),
}
"""Where gates with a bound are formed before a kernel."""


@pytest.mark.parametrize("where", GATED)
@pytest.mark.parametrize("wrong", ["clamped", "no bound", "another sign"])
def test_planted_gates_are_caught(wrong: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A softplus that is clamped at the bound, the gate without one, and A taken as its negative; in prompts and in rings."""

    def planted(g: Tensor, beta: Tensor, A: Tensor, dt_bias: Tensor, lower_bound: float) -> tuple[Tensor, Tensor]:
        plain, strength = formed_gates(g, beta, A, dt_bias, None)
        others = {"clamped": plain.clamp_min(lower_bound), "another sign": formed_gates(g, beta, -A, dt_bias, lower_bound)[0]}
        return others.get(wrong, plain), strength

    monkeypatch.setattr(engine, "formed_gates", planted)
    with pytest.raises(AssertionError):
        GATED[where]()
