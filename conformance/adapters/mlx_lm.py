"""mlx-lm on a CPU: its recurrent layers over its own cache, and the two functions that all of them share.

`ssm_update` takes the logarithm of -A, so that the A it computes with is reported. `gated_delta_ops` takes decays after their
exponential and does not scale: every layer folds the scale into q by `normalize_qk`; without a norm it is multiplied into q
here. On a GPU of Apple, Metal kernels take the place of both; no CPU runs them.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject, WithWeights
from ssmspec_ref.shapes import Array

from .peer_kernels.mlx_layers import (
    CachedLayer,
    DeltaRule,
    Family,
    ShortConvolution,
    array,
    back,
    bailing,
    kimi_linear,
    lfm2,
    logarithm,
    mamba1,
    mamba2,
    of_delta,
    of_lfm2,
    of_mamba1,
    of_mamba2,
    olmo_hybrid,
    qwen3_5,
    qwen3_next,
)
from .peer_kernels.sources import importable, mapped, module, one, version_of

SEQUENTIAL = NumericContract()
CHUNKS = NumericContract(order="chunked", chunk=256)
"""Every prompt comes in steps of 256 tokens, within which all are computed at once."""
PADS = ("layer.left_pad", "layer.right_pad")
LAYER = ("layer.prefill", "layer.step", "layer.continue", *PADS)

MAMBA2 = {"kind": ("mamba2",), "norm": ("gate_first",), "norm_groups": ("one",), "D": ("head",), "conv_act": ("on",)}
MAMBA2 |= {"multipliers": ("off",)}
NEMOTRON = MAMBA2 | {"norm_groups": ("g",)}
FALCON_H1 = MAMBA2 | {"norm": ("gate_first", "norm_first", "none"), "dt_limit": ("off",)}
ONE_NORM = ("mamba2", "granitemoehybrid", "falcon_h1")
"""Layers whose norm is over all channels, whatever the number of groups."""
MAMBA1 = {"kind": ("mamba1",), "D": ("head",), "conv_act": ("on",)}
NO_BIAS = {"conv_bias": ("off",), "conv_act": ("on",), "proj_bias": ("off",)}
DELTA = NO_BIAS | {"kind": ("delta",), "gate": ("silu",), "beta": ("one",)}
KDA = NO_BIAS | {"kind": ("kda",), "gate": ("sigmoid",), "beta": ("one",)}
KIMI, BAILING = KDA | {"low_rank": ("on",), "safe_gate": ("off",)}, KDA | {"low_rank": ("off",), "safe_gate": ("on",)}
SHORT = {"kind": ("shortconv",), "conv_bias": ("off",), "proj_bias": ("off",)}
FAMILIES: dict[type[CachedLayer], tuple[Family, ...]] = {
    CachedLayer: (
        Family(
            "mamba",
            "MambaBlock",
            of_mamba1,
            mamba1,
            Limits(MAMBA1 | {"inner_norm": ("off", "unit")}),
            unpadded=PADS,
            masked=False,
        ),
        Family(
            "jamba",
            "JambaMambaMixer",
            of_mamba1,
            mamba1,
            Limits(MAMBA1 | {"inner_norm": ("on",)}),
            unpadded=PADS,
            masked=False,
        ),
        Family("mamba2", "Mamba2Block", of_mamba2, mamba2, Limits(MAMBA2), (0,)),
        Family("nemotron_h", "NemotronHMamba2Mixer", of_mamba2, mamba2, Limits(NEMOTRON), unpadded=PADS[1:]),
        Family("granitemoehybrid", "GraniteMoeHybridMamba2Mixer", of_mamba2, mamba2, Limits(MAMBA2)),
        Family("falcon_h1", "FalconH1Mixer", of_mamba2, mamba2, Limits(FALCON_H1)),
    ),
    DeltaRule: (
        Family("qwen3_next", "Qwen3NextGatedDeltaNet", of_delta, qwen3_next, Limits(DELTA)),
        Family("qwen3_5", "GatedDeltaNet", of_delta, qwen3_5, Limits(DELTA)),
        Family("olmo_hybrid", "GatedDeltaNet", of_delta, olmo_hybrid, Limits(DELTA | {"beta": ("one", "two")}), (), 4, PADS),
        Family("kimi_linear", "KimiDeltaAttention", of_delta, kimi_linear, Limits(KIMI), (0,), 4),
        Family("bailing_moe_v3", "BailingKDA", of_delta, bailing, Limits(BAILING), arrays=4),
    ),
    ShortConvolution: (
        Family("lfm2", "ShortConv", of_lfm2, lfm2, Limits(SHORT), (0,), 1),
        Family("lfm2_moe", "ShortConv", of_lfm2, lfm2, Limits(SHORT), (0,), 1),
    ),
}
CONTRACTS = {"mamba2": CHUNKS}
"""By the kind of a layer; the others go token by token."""
NORMED = Limits({"l2_norm": ("on",), "scale": ("default",)}, reason="normalize_qk has both, and the scale is k^-1/2")
BARE = Limits({"l2_norm": ("off",)}, reason="the norm is another function")
NARROW = Limits(
    {"l2_norm": ("off",), "scale": ("default",)},
    {"k": (16, 16)},
    "the norm is another function, which rounds to the format of its inputs, as does a scale that is no power of two",
)
SSM = Limits(
    {
        "D": ("head",),
        "z": ("off",),
        "dt_bias": ("on",),
        "softplus": ("on",),
        "live": ("tail", "head"),
        "dead": ("finite", "plausible"),
    },
    reason="ssm_update always takes D per head, a bias and softplus, pads a row on one side, and multiplies padding by 0",
)
IN_STEPS = Limits(
    {**SSM.options, "live": ("tail",), "dt_limit": ("off",)},
    {"b": (3, 4096), "t": (33, 4096)},
    "rows that go on for many steps, and dt without limits",
)
STEP = 3
"""Tokens that are fed at once where a padded prompt comes in steps."""
ABSENT = {
    "": "mlx-lm has no function for it that is called alone, and verifies no drafts on these layers",
    "layer.rollback": "its caches of recurrent layers cannot be trimmed",
}


def ssm(S: Array, window: Any, params: Any, live: Array | None = None) -> WithWeights:
    """Tokens after the real ones are padding that `lengths` counts; before them a mask is enough."""
    mx = module("mlx.core")
    padded: dict[str, Any] = {}
    if live is not None:
        count = live.sum(axis=1)
        tail = np.array_equal(live, np.arange(live.shape[1]) < count[:, None])
        padded = {"mask": mx.array(live)} | ({"lengths": mx.array(count)} if tail and not live.all() else {})
    return updated(S, window, params, padded)


def updated(S: Array, window: Any, params: Any, padded: dict[str, Any]) -> WithWeights:
    A_log, A = logarithm(params.A)
    given = [array(a) for a in (window.B, window.C, params.D, window.dt, params.dt_bias, S)]
    update = module("mlx_lm.models.ssm").ssm_update
    y, after = update(array(window.x), A_log, *given, time_step_limit=params.dt_limit, **padded)
    return WithWeights((back(y), back(after)), replace(params, A=A))


def ssm_in_steps(S: Array, window: Any, params: Any, live: Array) -> WithWeights:
    """A padded prompt in steps of three tokens, as generation feeds it in steps of `prefill_step_size`: what is left of the
    lengths of all rows goes with every step."""
    mx, tokens = module("mlx.core"), live.shape[1]
    left, outputs, found = live.sum(axis=1), [], WithWeights((None, S), params)
    for first in range(0, tokens, STEP):
        part = slice(first, first + STEP)
        piece = SimpleNamespace(**{name: None if a is None else a[:, part] for name, a in vars(window).items()})
        padded = {"mask": mx.array(live[:, part]), "lengths": mx.array(left)}
        found = updated(found.outputs[1], piece, params, padded)
        outputs.append(found.outputs[0])
        left = left - piece.x.shape[1]
    return WithWeights((np.concatenate(outputs, axis=1), found.outputs[1]), found.params)


def ssm_step(S: Array, token: Any, params: Any) -> WithWeights:
    found = ssm(S, mapped(lambda a: a[:, None], token), params)
    y, after = found.outputs
    return WithWeights((y[:, 0], after), found.params)


def delta(S: Array, window: Any, params: Any, live: Array | None = None, form: str = "float32") -> tuple[Array, Array]:
    mx, home = module("mlx.core"), module("mlx_lm.models.gated_delta")
    width = window.k.shape[3]
    scale = width**-0.5 if params.scale is None else params.scale
    q, k, v = (array(a, form) for a in (window.q, window.k, window.v))
    if params.l2_norm:
        q, k = home.normalize_qk(q, k, inv_scale=width**-0.5, eps=params.eps)
    else:
        q = q * array(np.array(scale), form)
    mask = None if live is None else mx.array(live)
    state = array(S.swapaxes(2, 3))
    y, after = home.gated_delta_ops(q, k, v, mx.exp(array(window.g)), array(window.beta), state, mask)
    return back(y), back(after).swapaxes(2, 3)


def layer(cached: type[CachedLayer], family: Family) -> Subject:
    (kind,) = family.limits.options["kind"]
    contract = CONTRACTS.get(kind, SEQUENTIAL)
    run = partial(cached, family)
    limits = {name: padded(family.limits) if name in family.unpadded else family.limits for name in LAYER}
    return Subject(family.name, {name: Capability(run, contract, limits[name]) for name in LAYER}, ABSENT)


def padded(limits: Limits) -> Limits:
    """Prompts that are long enough to have padding, which is known to be read."""
    return replace(limits, sizes={"t": (2, 4096)}, reason="a prompt of one token has no padding")


def by_group(family: Family) -> Subject:
    """The same layer where the norm of its gated output is over each group, as transformers and mamba-ssm have it."""
    options = {**family.limits.options, "norm_groups": ("g",), "norm": ("gate_first",)}
    grouped = replace(family, limits=Limits(options, {"g": (2, 1024)}, "with several groups"))
    prefill = Capability(partial(CachedLayer, grouped), CHUNKS, grouped.limits)
    absent = ABSENT | {"layer": "tested with one norm over all channels"}
    return Subject(f"{family.name}, a norm of each group", {"layer.prefill": prefill}, absent)


def ruled(name: str, form: str, contract: NumericContract, limits: Limits) -> Subject:
    run = partial(delta, form=form)
    found: dict[str, Any] = {"delta.step": one(run), "delta.scan": run, "delta.scan_masked": run}
    return Subject(name, {o: Capability(call, contract, limits) for o, call in found.items()}, ABSENT)


def adapter() -> Adapter:
    """The adapter of the installed mlx-lm. Raises: ImportError, Unsupported."""
    importable("mlx_lm.models")
    mx = module("mlx.core")
    mx.set_default_device(mx.cpu)
    functions: dict[str, Any] = {"ssd.step": ssm_step, "ssd.scan": ssm, "ssd.scan_masked": ssm}
    updates = {o: Capability(run, CHUNKS, SSM) for o, run in functions.items()}
    in_steps = Capability(ssm_in_steps, CHUNKS, IN_STEPS)
    subjects = (
        Subject("ssm_update", updates, ABSENT),
        Subject("ssm_update, a padded prompt in steps of 3", {"ssd.scan_masked": in_steps}, ABSENT),
        ruled("gated_delta_ops, normalize_qk", "float32", SEQUENTIAL, NORMED),
        ruled("gated_delta_ops", "float32", SEQUENTIAL, BARE),
        ruled("gated_delta_ops, bf16", "bfloat16", replace(SEQUENTIAL, io="bf16"), NARROW),
        *(layer(cached, family) for cached, families in FAMILIES.items() for family in families),
        *(by_group(family) for family in FAMILIES[CachedLayer] if family.name in ONE_NORM),
    )
    return Adapter("mlx_lm", version_of("mlx-lm"), subjects, "https://github.com/ml-explore/mlx-lm/issues")
