"""What docs/found.md says of transformers: the suite finds it without being told, finds its cause, and nothing beside it.

A repair that makes a failing case pass shows that the cause is the one named, and that the suite does not refuse what is
right.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from conformance.adapters.transformers import adapter, guard
from conformance.adapters.transformers.cache import CachedLayer
from conformance.adapters.transformers.families import FAMILIES
from conformance.adapters.transformers.short_conv import LAYERS, CachedShortConv
from conformance.judge.verdict import Judgement, judge
from conformance.run.known import read_known
from conformance.suite import SPECIFICATIONS, find
from ssmspec_ref.contract import Verdict

from .judging import passes

DOCUMENT = (Path(__file__).parents[2] / "docs" / "found.md").read_text(encoding="utf-8")
FAMILY = {family.name: family for family in FAMILIES} | LAYERS
SUBJECT = {subject.name: subject for subject in adapter().subjects}

Repair = Callable[[CachedLayer], None]


def judged(name: str, identity: str, repair: Repair | None = None) -> Judgement:
    """The judgement of a family on a case, as it is or with its module repaired."""
    specification, case = find(identity)
    capability = SUBJECT[name].capabilities[case.operation]

    def run(layer: Any, rows: int) -> CachedLayer:
        cached = CachedShortConv if name in LAYERS else CachedLayer
        made = cached(FAMILY[name], layer, rows, recording=case.operation == "layer.rollback")
        if repair is not None:
            repair(made)
        return made

    return judge(specification, replace(capability, run=run), case)


FOUND = {
    "T1 floor under dt in one path": ("nemotron_h", "layer.prefill"),
    "T1 in the other family": ("zamba2", "layer.continue"),
    "T2 upper limit of dt in one path": ("mamba2", "layer.step"),
    "T3 rollback, SSD": ("bamba", "layer.rollback"),
    "T3 rollback, delta rule": ("qwen3_5", "layer.rollback"),
    "T4 continuation of Mamba-1": ("mamba", "layer.continue"),
    "T5 padding after the prompt": ("mamba2", "layer.right_pad"),
    "T5 padding after the prompt, short convolution": ("lfm2", "layer.right_pad"),
    "T6 padding before the prompt, with a bias": ("falcon_h1", "layer.left_pad"),
    "T6 with a bias, short convolution": ("lfm2_biased", "layer.left_pad"),
    "T7 recorded window": ("kimi_linear", "layer.rollback"),
}


@pytest.mark.parametrize("finding", FOUND)
def test_the_suite_finds_by_itself_what_the_list_names_and_nothing_else(finding: str) -> None:
    name, operation = FOUND[finding]
    capability = SUBJECT[name].capabilities[operation]
    entries = read_known("transformers").entries
    failing, listed = set(), set()
    for specification in SPECIFICATIONS:
        if specification.operation == operation and specification.fixed["kind"] in capability.limits.options["kind"]:
            for case in specification.cases("smoke", capability.limits):
                identity = specification.identify(case)
                if judge(specification, capability, case).verdict is not Verdict.PASS:
                    failing.add(identity)
                if any(entry.matches(name, str(capability.contract), identity) for entry in entries):
                    listed.add(identity)
    assert failing
    assert failing == listed


LINES = re.findall(r"--subject (\S+) --case (\S+)", DOCUMENT)


@pytest.mark.parametrize(("name", "identity"), LINES)
def test_every_line_of_the_document_shows_a_failure(name: str, identity: str) -> None:
    assert judged(name, identity).verdict is Verdict.FAIL


def test_every_finding_that_the_list_links_stands_in_the_document() -> None:
    assert len(LINES) >= len(set(FOUND.values()))
    for entry in read_known("transformers").entries:
        target = entry.link.removeprefix("docs/found.md#")
        assert f'id="{target}"' in DOCUMENT if target != entry.link else entry.link in DOCUMENT


def no_floor(made: CachedLayer) -> None:
    made.module.time_step_limit = (0.0, float("inf"))


def configured(made: CachedLayer) -> None:
    """The limit of the configuration, put where the module reads it."""
    made.module.time_step_limit = tuple(made.config.time_step_limit)


def copied(made: CachedLayer) -> None:
    """The state is put back by a copy from before the calls, of one token each."""
    forward, crop, kept = made.forward, made.rollback, []

    def remember(*inputs: Any) -> Any:
        held = made.held.recurrent_states[0]
        kept.append(None if held is None else held.clone())
        return forward(*inputs)

    def restore(tokens: int) -> None:
        crop(tokens)
        made.held.recurrent_states[0].copy_(kept[-tokens])
        del kept[-tokens:]

    made.forward, made.rollback = remember, restore  # type: ignore[method-assign]


def masked(made: CachedLayer) -> None:
    """Padding is masked behind the projection too."""
    forward = made.forward

    def run(u: np.ndarray, live: Any = None) -> np.ndarray:
        import torch

        mask = 1.0 if live is None else torch.as_tensor(live)[:, :, None].float()
        hook = made.module.in_proj.register_forward_hook(lambda module, inputs, output: output * mask)
        out = forward(u, live)
        hook.remove()
        return out

    made.forward = run  # type: ignore[method-assign]


SIZES = "b2,t6,j3,g2,h4,p4,n5,w4"
FLOORED = "layer.prefill/b1,t1,g1,h1,p2,n1,w2/kind=mamba2/gentle/s0", f"layer.step/{SIZES}/kind=mamba2/gentle/s0"
LIMITED = [f"/dt_limit={limit},kind=mamba2/normal/s0" for limit in ("floor", "finite")]
WRONG: list[tuple[str, str, str, Repair | None]] = [
    *(("T1", name, case, no_floor) for name in ("nemotron_h", "zamba2") for case in FLOORED),
    ("T1", "nemotron_h", f"layer.prefill/b2,t6,g2,h4,p4,n5,w4{LIMITED[1]}", configured),
    *(("T2", "mamba2", f"layer.step/{SIZES}{limited}", None) for limited in LIMITED),
    ("T3", "mamba2", "layer.rollback/b2,t6,j1,g2,h4,p4,n5,w4/kind=mamba2/normal/s0", copied),
    ("T3", "qwen3_5", "layer.rollback/b2,t6,j1,g2,h4,k5,v3,w4/conv_bias=off,kind=delta/normal/s0", copied),
    ("T4", "mamba", "layer.continue/b2,t6,j3,d6,n4,r2,w4/kind=mamba1/normal/s0", None),
    ("T5", "mamba2", f"layer.right_pad/{SIZES}/kind=mamba2/normal/s0", None),
    ("T6", "mamba", "layer.left_pad/b1,t2,j1,d2,n1,r1,w2/conv_bias=off,proj_bias=on,kind=mamba1/normal/s0", masked),
    ("T6", "mamba2", "layer.left_pad/b1,t2,j1,g1,h1,p2,n1,w2/conv_bias=off,proj_bias=on,kind=mamba2/normal/s0", masked),
]
"""Cases that fail, and a repair with which they pass: what it changes is the whole difference."""
RIGHT = [
    *(("mamba2", f"layer.prefill/b2,t6,g2,h4,p4,n5,w4{limited}") for limited in LIMITED),
    *(("mamba2", f"layer.continue/{SIZES}{limited}") for limited in LIMITED),
    ("mamba", "layer.step/b2,t6,j3,d6,n4,r2,w4/kind=mamba1/normal/s0"),
    ("mamba2", f"layer.left_pad/{SIZES}/kind=mamba2/normal/s0"),
]
"""Cases beside them that pass: a limit of dt in prefill, Mamba-1 token by token, padding before the prompt."""


@pytest.mark.parametrize(("finding", "name", "identity", "repair"), WRONG)
def test_a_finding_fails_and_its_repair_passes(finding: str, name: str, identity: str, repair: Repair | None) -> None:
    """T3, T4: the window of the convolution is restored, and the state is not."""
    found = judged(name, identity)
    assert found.verdict is Verdict.FAIL
    if finding in ("T3", "T4"):
        outputs = {measured.name: measured.utilisation for measured in found.outputs}
        assert outputs["M"] <= 1
        assert outputs["S"] > 1e3
    if repair:
        passes(judged(name, identity, repair))


@pytest.mark.parametrize(("name", "identity"), RIGHT)
def test_what_stands_beside_a_finding_passes(name: str, identity: str) -> None:
    passes(judged(name, identity))


@pytest.mark.parametrize("name", ["kimi_linear", "glm5_next", "bailing_hybrid"])
def test_single_tokens_are_not_recorded_for_rollback(name: str) -> None:
    """T7. Four tokens, three drafted one by one, two undone: the window keeps two of its four columns."""
    low_rank = "" if name == "bailing_hybrid" else "low_rank=on,"
    specification, case = find(
        f"layer.rollback/b2,t6,j3,g2,h2,k4,v4,w4/gate=sigmoid,conv_bias=off,{low_rank}kind=kda/normal/s0"
    )
    layer, script = specification.draw(case, SUBJECT[name].capabilities["layer.rollback"].contract)
    columns = {}
    for feed in ((3,), (1, 1, 1)):
        made = CachedLayer(FAMILY[name], layer, 2, recording=True)
        for begin, end in zip((0, *np.cumsum((4, *feed))), np.cumsum((4, *feed)), strict=False):
            made.forward(script.u[:, begin:end])
        made.rollback(2)
        columns[feed] = made.held.conv_states[0].shape[-1]
    assert columns == {(3,): 4, (1, 1, 1): 2}
    made = CachedLayer(FAMILY[name], layer, 2, recording=True)
    made.forward(script.u[:, :2])
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        made.forward(script.u[:, 2:3])


def test_softplus_of_kda_in_float32_loses_small_steps_entirely() -> None:
    """T8. Judged under the contract that says so; under log1p, which the other families keep, it would fail."""
    import torch

    module = guard.modeling("kimi_linear")
    gate = module.KimiLinearForgetGate.__new__(module.KimiLinearForgetGate)
    torch.nn.Module.__init__(gate)
    gate.head_dim = 1
    gate.f_a_proj = gate.f_b_proj = torch.nn.Identity()
    gate.dt_bias, gate.A_log = torch.zeros(3), torch.zeros(1, 1, 1, 1)
    x = np.array([-8.0, -12.0, -17.0])
    with torch.no_grad():
        g = gate(torch.tensor(x).float()[None, None]).double().numpy().reshape(3)
    error = np.abs(-g / np.logaddexp(0.0, x) - 1)
    assert error[0] > 100 * 2.0**-24
    assert error[1] > 10000 * 2.0**-24
    assert error[2] == 1.0
    assert SUBJECT["kimi_linear"].capabilities["layer.prefill"].contract.softplus == "log"
    assert SUBJECT["bailing_hybrid"].capabilities["layer.prefill"].contract.softplus == "log1p"


def test_the_module_of_falcon_mamba_cannot_be_built_by_itself() -> None:
    """T9."""
    module = guard.modeling("falcon_mamba")
    with guard.quiet(), pytest.raises(AttributeError, match="dt_layernorm"):
        module.FalconMambaMixer(module.FalconMambaConfig(hidden_size=4, num_hidden_layers=1), layer_idx=0)


def test_calling_conventions_that_a_caller_must_know() -> None:
    """Notes: Bamba counts positions from 0 unless told; a cache without attention has no length."""
    import torch

    bamba = guard.modeling("bamba")
    small = {"vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "pad_token_id": None}
    config = bamba.BambaConfig(
        **small, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1, attn_layer_indices=[1], mamba_n_heads=4,
        mamba_d_head=4, mamba_n_groups=2, mamba_d_state=3, mamba_expand=2, mamba_chunk_size=4, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad(), guard.quiet():
        model, tokens = bamba.BambaForCausalLM(config).eval(), torch.randint(0, 13, (1, 8))
        whole = model(tokens).logits[:, 4:]
        prompt = partial(model, tokens[:, :4], use_cache=True)
        counted = model(tokens[:, 4:], past_key_values=prompt().past_key_values, position_ids=torch.arange(4, 8)[None]).logits
        plain = model(tokens[:, 4:], past_key_values=prompt().past_key_values).logits
        mamba2 = guard.modeling("mamba2")
        alone = mamba2.Mamba2ForCausalLM(
            mamba2.Mamba2Config(**small, num_heads=4, head_dim=4, n_groups=2, state_size=3)
        ).eval()
        cache = alone(tokens, use_cache=True).cache_params
    rounding, shifted = ((logits - whole).abs().max() for logits in (counted, plain))
    assert rounding <= 1e-3 * shifted
    with pytest.raises(ValueError, match="get_seq_length"):
        cache.get_seq_length()
