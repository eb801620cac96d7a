"""The checks at the shapes of models, tried in the interpreter at sizes that it can take, and what they must catch."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.main import run_command
from perf_gates.gpu import model_shapes
from perf_gates.gpu.judge import call, layer, projections, recurrences, rings, ssd_gated, tokens
from perf_gates.gpu.judge.call import Check, Plan
from perf_gates.gpu.model_shapes import Verdict
from perf_gates.machine import kernels_hash
from perf_gates.report.kernel_table import NOT_RUN
from perf_gates.static.kernel_modules import homes
from ssmspec_kernels.oracles import ORACLES
from tests.kernels import planted_worker

pytestmark = pytest.mark.interpreter

PLAN = Plan(batches=(3,), windows=(5,), nodes=(7,), rings=((3, 7),), tiny=True, rare=True)
CHECKS = {check.name: check for check in model_shapes.checks(PLAN)}


RECURRENCES = ("ssd", "delta", "kda", "selective", "mamba3", "shortconv", "conv")
NEVER_RUN = {"ssd_coded_step"}
"""Kernels without a check at the shapes of models: they were not run on a GPU yet, as `docs/evidence/not-tested.md` says."""


def test_every_kernel_has_a_check_and_every_check_a_name() -> None:

    from perf_gates.static import catalogue

    kernels = {entry.kernel for entry in catalogue.entries()} - NEVER_RUN
    flushes = {f"{name}_flush" for name in ("ssd", "delta", "shortconv", "mamba3")}
    inside = flushes | {"commit_halves", "commit_window"}  # judged with what they serve
    assert kernels - inside == {check.kernel for check in CHECKS.values()} - inside
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "not-tested.md").read_text(encoding="utf-8")
    assert {name for name in NEVER_RUN if f"`{name}`" not in page} == set()
    assert homes().keys() > {check.kernel for check in CHECKS.values()}
    assert len(CHECKS) == len(model_shapes.checks(PLAN))


@pytest.mark.parametrize("name", [n for n, c in CHECKS.items() if "L=16" not in n and "u=bf16" not in n])
def test_every_check_passes(name: str) -> None:
    verdict = model_shapes.judge(CHECKS[name], "cpu", 64)
    assert verdict.passed, verdict.message


def after(change: Callable[..., None]) -> Callable[[Any], Any]:
    """A launcher that does something more behind the kernel."""

    def planted(kernel: Any) -> Any:
        @wraps(kernel)
        def launch(*args: Any, **kwargs: Any) -> Any:
            result = kernel(*args, **kwargs)
            change(*args, **kwargs)
            return result

        return launch

    return planted


def last_head(S: Any, *_: Any, out: Any, **__: Any) -> None:
    out[0, -1, -1, -1] *= 1.001


def unwritten(S: Any, *_: Any, out: Any, **__: Any) -> None:
    out[1, 0, 1, 0] = float("nan")


def padding(S: Any, *_: Any, out: Any, **__: Any) -> None:
    out[-1] = 0.0


def beside(S: Any, *_: Any, out: Any, **__: Any) -> None:
    out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(0.0)


def other_slot(S: Any, *_: Any, slots: Any, **__: Any) -> None:
    free = next(s for s in range(len(S)) if s not in slots.tolist())
    S[free, 0, 0, 0] = 0.0


def state(S: Any, *_: Any, slots: Any, **__: Any) -> None:
    S[slots[0].long()] = S[slots[0].long()].bfloat16().float()


def an_input(S: Any, x: Any = None, *_: Any, **rest: Any) -> None:
    given: Any = rest.get("x") if x is None else x
    given[0] += 1


def of_a_layer(S: Any, *_: Any, slots: Any, **__: Any) -> None:
    S[-1, slots[0].long()] *= 1.001


def last_channel(*_: Any, out: Any, **__: Any) -> None:
    out[0, ..., -1] *= 1.5


def column(S: Any = None, *_: Any, M: Any = None, slots: Any, **__: Any) -> None:
    pool = M if S is None else S
    pool[slots[0].long(), -1, -1] += 1


CHANGES: tuple[Any, ...] = (last_head, unwritten, padding, beside, other_slot, state, an_input)
FAULTS: list[tuple[str, str, Any]] = [
    *(("ssd_scan", "ssd_scan/tiny/T=5/b3", change) for change in CHANGES),
    ("delta_chunked", "delta_chunked/tiny/T=5 verify/b3", state),
    ("ssd_buffered", "ssd_buffered/tiny/T=3 L=7/b3", state),
    ("ssd_buffered_step", "ssd_buffered_step/tiny/L=5/b3", last_head),
    ("ssd_tree_scan", "ssd_tree_scan/tiny/T=7/b3", last_head),
    ("delta_tree", "delta_tree/tiny/T=7/b3", other_slot),
    ("kda_scan", "kda_scan/tiny by channel/T=5/b3", last_head),
    ("kda_snapshots", "kda_snapshots/tiny by channel/T=6/b3", other_slot),
    ("kda_tree", "kda_tree/tiny by channel/T=7/b3", unwritten),
    ("kda_commit", "kda_commit/tiny by channel/T=5/b3", of_a_layer),
    ("delta_buffered", "delta_buffered/tiny by channel/T=3 L=7/b3", state),
    ("delta_chunked", "delta_chunked/tiny by channel/T=5 verify/b3", unwritten),
    ("mamba3_scan", "mamba3_scan/tiny/T=5/b3", state),
    ("mamba3_snapshots", "mamba3_snapshots/tiny/T=6/b3", an_input),
    ("mamba3_tree", "mamba3_tree/tiny of rank 2/T=7/b3", unwritten),
    ("mamba3_packed", "mamba3_packed/tiny/packed/b3", state),
    ("mamba3_buffered", "mamba3_buffered/tiny/T=3 L=7/b3", state),
    ("mamba3_commit", "mamba3_commit/tiny of rank 2/tree of 7/b3", of_a_layer),
    ("ssd_commit", "ssd_commit/tiny/tree of 7/b3", of_a_layer),
    ("ssd_gated", "ssd_gated/tiny/T=1/b3", last_head),
    ("ssd_gated_window", "ssd_gated_window/tiny/T=5/b3", last_head),
    ("conv_window", "conv_window/tiny/T=5 replay/b3", last_channel),
    ("conv_window", "conv_window/tiny/T=5/b3", column),
    ("conv_tree", "conv_tree/tiny/T=7/b3", column),
    ("conv_commit", "conv_commit/tiny/tree of 7/b3", column),
    ("conv_packed", "conv_packed/tiny/packed/b3", last_channel),
    ("selective_scan", "selective_scan/tiny/T=5/b3", column),
    ("selective_tree", "selective_tree/tiny/T=7/b3", last_channel),
    ("shortconv_snapshots", "shortconv_snapshots/tiny/T=6/b3", last_channel),
    ("shortconv_packed", "shortconv_packed/tiny/packed/b3", column),
    ("shortconv_buffered", "shortconv_buffered/tiny/T=3 L=7/b3", column),
    ("shortconv_flush", "shortconv_buffered/tiny/T=3 L=7/b3", column),
    ("mamba3_flush", "mamba3_buffered/tiny/T=3 L=7/b3", state),
]  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, kernel: str, change: Callable[[Any], Any]) -> None:
    """Every check launches a change of the launchers that a pattern matches."""

    def launcher(module: str, function: str | None = None) -> Any:
        found = call.launcher(module, function)
        return wraps(found)(change(found)) if function is None and re.fullmatch(kernel, module) else found

    for family in (layer, recurrences, ssd_gated, rings, tokens, projections):
        monkeypatch.setattr(family, "launcher", launcher)


def check_caught(name: str) -> None:
    verdict = model_shapes.judge(CHECKS[name], "cpu", 64)
    assert not verdict.passed
    assert verdict.message.startswith("AssertionError")


@pytest.mark.parametrize(("kernel", "name", "change"), FAULTS)
def test_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch, kernel: str, name: str, change: Any) -> None:
    plant(monkeypatch, kernel, after(change))
    check_caught(name)


@pytest.mark.parametrize("name", [n for n, c in CHECKS.items() if c.kernel.startswith("kda")])
def test_gates_without_their_lower_bound_are_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant(monkeypatch, "kda_.*", lambda found: lambda **given: found(**given | {"lower_bound": None}))
    check_caught(name)


@pytest.mark.parametrize("name", [n for n, c in CHECKS.items() if "by channel" in n and c.kernel.startswith("delta")])
def test_gates_of_another_channel_are_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant(monkeypatch, CHECKS[name].kernel, lambda found: lambda **given: found(**given | {"g": given["g"].roll(1, -1)}))
    check_caught(name)


WITH_BOUNDS = sorted({c.kernel for c in CHECKS.values()} & {name for name in ORACLES if name.startswith(RECURRENCES)})
OTHERS = [
    (name, draw.choice([other for other in WITH_BOUNDS if ORACLES[other].function != ORACLES[name].function]))
    for draw in [random.Random(11)]
    for name in draw.sample(WITH_BOUNDS, 10)
]


@pytest.mark.parametrize(("kernel", "other"), OTHERS)
def test_a_planted_oracle_of_another_launcher_is_caught(monkeypatch: pytest.MonkeyPatch, kernel: str, other: str) -> None:
    name = next(name for name, check in CHECKS.items() if check.kernel == kernel)
    monkeypatch.setitem(ORACLES, kernel, ORACLES[other])
    assert not model_shapes.judge(CHECKS[name], "cpu", 64).passed


def test_what_fails_counts_in_the_table_and_in_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Verdict("norm", "m", "T=1", 1, True, 0.5), Verdict("norm", "m", "T=2", 1, False, None, "no")]
    found.append(Verdict("rotary", "m", "T=1", 1, True, None))
    monkeypatch.setattr(model_shapes, "verdicts", lambda *_: iter(found))
    monkeypatch.setattr(model_shapes, "need_gpu", lambda: None)
    monkeypatch.setattr(model_shapes, "fingerprint", dict)
    assert run_command(model_shapes.main, ["--out", str(tmp_path / "x.json")]) == 1
    assert "T=2" in (tmp_path / "x.json").read_text()
    said = capsys.readouterr().out
    assert "| norm | m | 2 | 0.50 | 1 |" in said
    assert "| rotary | m | 1 | bits | 0 |" in said


def test_processes_judge_every_check_and_one_that_breaks_or_ends_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_shapes, "worker", planted_worker.worker)
    only = "tree_mask|accept_greedy|commit_tokens|kv_compact"
    found = list(model_shapes.verdicts(PLAN, only, "cpu", 64, 2, 200.0))
    names = [f"{v.kernel}/{v.model}/{v.variant}/b{v.batch}" for v in found]
    assert sorted(names) == sorted(check.name for check in model_shapes.checks(PLAN, only))
    assert {v.kernel for v in found if v.passed} == {"tree_mask", "kv_compact"}
    assert {v.message for v in found if v.kernel == planted_worker.BREAKS} == {planted_worker.ERROR}
    assert {v.message for v in found if v.kernel == planted_worker.ENDS} == {"its process ended with 3"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_check_that_has_no_time_left_is_no_pass(jobs: int) -> None:
    found = list(model_shapes.verdicts(PLAN, "tree_mask", "cpu", 64, jobs, 0.0))
    assert {(v.passed, v.message) for v in found} == {(False, NOT_RUN)}


def test_of_each_check_the_last_verdict_on_the_present_code_counts(tmp_path: Any) -> None:
    here = kernels_hash()
    lost = asdict(Verdict("norm", "m", "T=1", 1, False, None, "not run: no time left", here))
    ran = asdict(Verdict("norm", "m", "T=1", 1, True, 0.5, "", here))
    again = asdict(Verdict("norm", "m", "T=1", 1, True, 0.4, "", here))
    older = asdict(Verdict("norm", "m", "T=2", 1, True, 0.5, "", "of another code"))
    machine = {"gpu": "G", "torch": "1", "triton": "2"}
    parts = (("x", [ran, older], "G"), ("y", [lost], "G"), ("z", [again], "G"), ("w", [ran], "other"))
    for name, found, gpu in parts:
        (tmp_path / name).write_text(json.dumps({"machine": machine | {"gpu": gpu}, "verdicts": found}))
    assert model_shapes.merged([tmp_path / "x", tmp_path / "y"])["verdicts"] == [ran]
    assert model_shapes.merged([tmp_path / "y", tmp_path / "x"])["verdicts"] == [ran]
    assert model_shapes.merged([tmp_path / "x", tmp_path / "z"])["verdicts"] == [again]
    assert model_shapes.merged([tmp_path / "y"])["verdicts"] == [lost]
    with pytest.raises(ValueError, match="one kind of machine"):
        model_shapes.merged([tmp_path / "x", tmp_path / "w"])


def test_a_bound_that_zeros_would_pass_says_nothing() -> None:
    from ssmspec_ref import error_bounds as eb

    with pytest.raises(AssertionError, match="zeros would pass"):
        call.within(
            "y",
            torch.ones(3).double().numpy(),
            eb.exact(torch.ones(3).double().numpy(), call.declared(), torch.full((3,), 2.0).double().numpy()),
        )


def test_a_check_of_which_no_row_is_judged_fails() -> None:
    class NoRows(call.Call):
        def rows(self, b: int) -> Any:
            return super().rows(b)[:0]

    assert CHECKS["ssd_scan/tiny/T=5/b3"].run(call.Call("cpu", 0)) > 0
    with pytest.raises(call.NothingJudgedError, match="y: no element is compared"):
        CHECKS["ssd_scan/tiny/T=5/b3"].run(NoRows("cpu", 0))


def test_an_error_is_a_verdict() -> None:
    verdict = model_shapes.judge(Check("k", "m", "v", 1, lambda _: 1 / 0), "cpu", 0)
    assert (verdict.passed, verdict.message) == (False, "ZeroDivisionError: division by zero")
