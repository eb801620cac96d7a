"""The adapter of transformers: what it loads is what is judged, and what it loads wrongly is caught."""

import ast
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from conformance.adapters.transformers import adapter, guard
from conformance.adapters.transformers.cache import CachedLayer
from conformance.adapters.transformers.families import FAMILIES, Family
from conformance.judge.verdict import Judgement, judge
from conformance.suite import find
from conformance.suite.weights_used import check_used
from ssmspec_ref.contract import Capability, Verdict

FAMILY = {family.name: family for family in FAMILIES}
SUBJECT = {subject.name: subject for subject in adapter().subjects}
CASES = {
    "mamba": "layer.prefill/b2,t6,d6,n4,r2,w4/proj_bias=on,kind=mamba1/normal/s0",
    "mamba2": "layer.prefill/b2,t6,g2,h4,p4,n5,w4/proj_bias=on,kind=mamba2/normal/s0",
    "qwen3_next": "layer.prefill/b2,t6,g2,h4,k5,v3,w4/conv_bias=off,kind=delta/normal/s0",
    "kimi_linear": "layer.prefill/b2,t6,g2,h2,k4,v4,w4/gate=sigmoid,conv_bias=off,low_rank=on,kind=kda/normal/s0",
}


def judged(name: str, run: Callable[..., Any] | None = None) -> Judgement:
    """The judgement on a family's plain case, with its own runner or another."""
    specification, case = find(CASES[name])
    capability = SUBJECT[name].capabilities["layer.prefill"]
    return judge(specification, replace(capability, run=run) if run else capability, case)


def spoiled(name: str, spoil: Callable[[Any], None]) -> Judgement:
    """The judgement on a family whose module is spoiled after its weights were loaded."""

    def run(layer: Any, rows: int) -> CachedLayer:
        import torch

        made = CachedLayer(FAMILY[name], layer, rows)
        with torch.no_grad():
            spoil(made.module)
        return made

    return judged(name, run)


@pytest.mark.parametrize("name", CASES)
def test_loaded_weights_are_judged_right(name: str) -> None:
    assert judged(name).verdict is Verdict.PASS


def _swap_B_and_C(module: Any) -> None:
    d, n = module.intermediate_size, module.n_groups * module.ssm_state_size
    rows = module.in_proj.weight[2 * d : 2 * d + 2 * n].clone()
    module.in_proj.weight[2 * d : 2 * d + 2 * n] = rows.roll(n, dims=0)


def _reverse_taps(module: Any) -> None:
    module.conv1d.weight.copy_(module.conv1d.weight.flip(-1))


def _swap_groups(module: Any) -> None:
    d, n = module.intermediate_size, module.ssm_state_size
    module.in_proj.weight[2 * d : 2 * d + 2 * n] = module.in_proj.weight[2 * d : 2 * d + 2 * n].roll(n, dims=0)


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "B and C swapped": ("mamba2", _swap_B_and_C),
    "groups of B swapped": ("mamba2", _swap_groups),
    "taps reversed": ("mamba2", _reverse_taps),
    "D left at one": ("mamba2", lambda m: m.D.fill_(1.0)),
    "norm weight left at one": ("mamba2", lambda m: m.norm.weight.fill_(1.0)),
    "norm over all channels": ("mamba2", lambda m: setattr(m.norm, "group_size", m.intermediate_size)),
    "conv bias lost": ("mamba2", lambda m: m.conv1d.bias.zero_()),
    "dt bias lost": ("mamba", lambda m: m.dt_proj.bias.zero_()),
    "A of another head": ("mamba2", lambda m: m.A_log.copy_(m.A_log.roll(1))),
    "weights of half precision": ("mamba2", lambda m: m.in_proj.weight.copy_(m.in_proj.weight.half())),
    "gates not interleaved": ("qwen3_next", lambda m: m.in_proj_ba.weight.copy_(m.in_proj_ba.weight.roll(2, 0))),
    "eps of another layer": ("qwen3_next", lambda m: setattr(m.norm, "variance_epsilon", 1e-3)),
    "decay of another channel": ("kimi_linear", lambda m: m.forget_gate.dt_bias.copy_(m.forget_gate.dt_bias.roll(1))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_in_a_module_is_caught(fault: str) -> None:
    judgement = spoiled(*FAULTS[fault])
    assert judgement.verdict is Verdict.FAIL
    assert judgement.kind == "bound"


def test_planted_report_of_other_weights_is_caught() -> None:
    def run(layer: Any, rows: int) -> CachedLayer:
        made = CachedLayer(FAMILY["mamba2"], layer, rows)
        made.used = replace(made.used, input_multiplier=2.0)
        return made

    assert judged("mamba2", run).kind == "used"


def test_every_listed_subject_runs_or_says_why_not() -> None:
    for subject in adapter().subjects:
        assert subject.capabilities or all(subject.absent.values()), subject.name


def _functions(family: str) -> dict[str, str]:
    source = Path(guard.modeling(family).__file__).read_text(encoding="utf-8")
    return {node.name: ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


SHARED = {
    "mamba": (("falcon_mamba", "jamba", "zamba"), ("mamba_selective_scan", "mamba_selective_state_update")),
    "mamba2": (
        ("bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2"),
        ("mamba2_chunk_scan", "mamba2_selective_state_update", "segment_sum", "causal_conv1d_fn", "causal_conv1d_update"),
    ),
    "qwen3_next": (
        ("qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"),
        ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "l2norm"),
    ),
    "kimi_linear": (
        ("glm5_next", "bailing_hybrid"),
        ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention", "l2norm"),
    ),
}


@pytest.mark.parametrize("source", SHARED)
def test_the_functions_judged_once_are_the_same_text_in_every_family(source: str) -> None:
    families, names = SHARED[source]
    own = _functions(source)
    for family in families:
        copies = _functions(family)
        for name in names:
            assert copies[name] == own[name], f"{name} of {family} differs from that of {source}; judge it by itself"


def test_kernel_packages_are_hidden_before_a_modeling_file_is_imported() -> None:
    guard.modeling("qwen3_5")
    for name in guard.KERNEL_PACKAGES:
        assert sys.modules.get(name) is None


def test_a_module_of_another_precision_than_declared_is_caught() -> None:
    def run(layer: Any, rows: int) -> CachedLayer:
        return CachedLayer(FAMILY["mamba2"], layer, rows, dtype="bfloat16")

    assert judged("mamba2", run).verdict is Verdict.FAIL


def test_families_are_built_at_the_sizes_of_the_record() -> None:
    specification, case = find(CASES["mamba2"])
    capability: Capability = SUBJECT["mamba2"].capabilities["layer.prefill"]
    layer, _ = specification.draw(case, capability.contract)
    family: Family = FAMILY["mamba2"]
    import torch

    module, _, loaded = family.build(layer, torch.float32)
    assert module.in_proj.weight.shape == layer.in_proj.weight.shape
    assert module.conv1d.weight.shape == (*layer.mixer.conv.weight.shape[:1], 1, layer.mixer.conv.width)
    check_used(layer, loaded, capability.contract)
