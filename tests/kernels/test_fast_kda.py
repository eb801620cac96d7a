"""Kimi Delta Attention of the engine over the kernels: each operation beside the oracle, with gates as projections."""

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
from tests.kernels import delta_cases as cases
from tests.kernels import delta_rings
from tests.kernels import test_delta_snapshots as snapshots
from tests.kernels import test_delta_tree as trees
from tests.kernels import test_kda_commit as commits
from tests.kernels.delta_cases import Case, Options
from tests.kernels.mutants import mutated

FORMS = [
    Options(t=4, channel=True, raw=True, bias=True, lower=-5.0, io="bf16", spare=14),
    Options(t=3, channel=True, raw=True, bias=True, lower=-0.5, gentle=True, g=4, spare=14, seed=1),
    Options(t=4, channel=True, raw=True, bias=True, io="bf16", spare=14, seed=2),
]
FAST = engine.KDA(bitwise=False)


def of(case: Case) -> tuple[DeltaInputs, KDAParams]:
    """A case as the engine has it."""
    named = case.extra
    params = KDAParams(named["A"], named["dt_bias"], case.options.l2_norm, case.options.scale, 1e-6, named.get("lower_bound"))
    return DeltaInputs(case.q, case.k, case.v, case.g, case.beta), params


def given(**named: Any) -> tuple[Tensor, DeltaInputs, KDAParams]:
    """What a test of the kernels calls a launcher with, as the engine has it."""
    params = KDAParams(named["A"], named["dt_bias"], named["l2_norm"], named["scale"], 1e-6, named.get("lower_bound"))
    return named["S"], DeltaInputs(*(named[x] for x in ("q", "k", "v", "g", "beta"))), params


def into(out: Tensor, slots: Tensor, y: Tensor) -> Tensor:
    """The outputs of the live rows in the tensor that the test gave."""
    out[slots >= 0] = y[slots >= 0]
    return out


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_window_lies_within_the_bound(o: Options, bitwise: bool) -> None:
    case = cases.draw(o)
    y, S = case.bound()
    inputs, params = of(case)
    found = engine.KDA(bitwise).scan(case.S, inputs, params, slots=case.slots)
    cases.assert_within("o", found, y, case.rows)
    cases.assert_within("S", case.S, S, case.slots.numpy()[case.rows])


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_every_state_of_a_window_lies_within_the_bound(o: Options) -> None:
    def run(places: Tensor, slots: Tensor, out: Tensor, **named: Any) -> Tensor:
        S, inputs, params = given(**named)
        return into(out, slots, FAST.snapshots(S, inputs, params, places, slots=slots))

    snapshots.check(run, o)


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_tree_lies_within_the_bound(o: Options) -> None:
    def run(ancestors: Tensor, slots: Tensor, out: Tensor, **named: Any) -> Tensor:
        S, inputs, params = given(**named)
        return into(out, slots, FAST.tree(S, inputs, params, ancestors[:, :, 0], ancestors, slots=slots))

    trees.check(run, o, 1)


TREE_FAULTS = [("BOUNDED=lower_bound is not None", "BOUNDED=False"), ("xs += (x * tl.exp(G),)", "xs += (x,)")]


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


COMMITS = [o for o in commits.CASES if o.raw]


@pytest.mark.parametrize("o", COMMITS, ids=str)
def test_a_commit_lies_within_the_bound(o: commits.Options) -> None:
    commits.check(SimpleNamespace(kda_commit=committed), o)  # type: ignore[arg-type]


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
    case = cases.draw(o, padding=False)
    y, S = case.bound() if bitwise else case.bound(order="chunked", chunk=32)
    inputs, params = of(case)
    run = DeltaInputs(*(x.flatten(0, 1)[None].contiguous() for x in inputs))
    bounds = torch.arange(0, o.b * o.t + 1, o.t)
    found = engine.KDA(bitwise).packed(case.S, run, params, bounds, slots=case.slots)
    cases.assert_within("o", found[0].view(case.out.shape), y)
    cases.assert_within("S", case.S, S, case.slots.numpy())


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_a_window_in_a_ring_and_its_flush_lie_within_the_bound(o: Options) -> None:
    case = cases.draw(o, padding=False)
    y, S = case.bound(order="output_only", ring="fp32")
    ring = delta_rings.ring_of(o, 3 * o.t, torch.float32)
    inputs, params = of(case)
    found = FAST.buffered(case.S, ring, inputs, params, window=o.t, slots=case.slots, lengths=None)
    cases.assert_within("o", found, y)
    ring.held[case.slots.long()] = o.t
    FAST.flush(case.S, ring, params, slots=case.slots)
    cases.assert_within("S", case.S, S, case.slots.numpy())


@pytest.mark.parametrize("o", FORMS, ids=str)
def test_gates_that_are_formed_before_a_kernel_lie_within_the_bound(o: Options) -> None:
    case = cases.draw(o)
    inputs, params = of(case)
    g, beta = formed_gates(inputs.g, inputs.beta, params.A, params.dt_bias, params.lower_bound)
    window, inexact = case.window()
    for name, x in (("g", g), ("beta", beta)):
        comparison = eb.compare(cases.doubles(x)[case.rows], getattr(window, name), inexact[name])
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
