"""Norms, linear maps, layers and the language model, against what is written down a second time by loops."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import model as lm
from ssmspec_ref.attention import KVState
from ssmspec_ref.attention import layer as attention_layer
from ssmspec_ref.attention.layer import AttentionLayer
from ssmspec_ref.delta import DeltaWindow
from ssmspec_ref.errors import ParameterError, PrecisionError, ShapeMismatch
from ssmspec_ref.layers import layer, mixer, norm
from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import GatedNorm, Norm
from ssmspec_ref.model import tiny
from ssmspec_ref.selective import SelectiveWindow
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDWindow

from ..decoding import deviation, one_row
from ..families import TOLERANCE, examples
from .loops import LOOPS
from .refusals import copied, refused, unchanged

KINDS = list(tiny.KINDS)
each_kind = pytest.mark.parametrize("kind", KINDS)
SOME = examples(5)
SEEDS = st.integers(0, 2**32 - 1)


def close(a: Array, b: Array) -> bool:
    """Within TOLERANCE of max|b|; false on NaN."""
    return bool(np.max(np.abs(a - b), initial=0.0) <= TOLERANCE * np.max(np.abs(b), initial=0.0))


# Scalars, written down again


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def applied(linear: Linear, x: Array) -> Array:
    """A linear map of one token."""
    inner = x if linear.down is None else np.array([math.fsum(row * x) for row in linear.down])
    return np.array([math.fsum(row * inner) for row in linear.weight]) + (0.0 if linear.bias is None else linear.bias)


def normed(x: Array, weight: Array, eps: float) -> Array:
    return weight * x / math.sqrt(math.fsum(x * x) / len(x) + eps)


# Norms


def looped(y: Array, z: Array, by: GatedNorm) -> Array:
    """A gated norm of one token, group by group."""
    act = np.array([(silu if by.gate == "silu" else sigmoid)(value) for value in z])
    size = len(y) // by.groups
    x = y if by.norm_first else y * act
    parts = [normed(x[i : i + size], by.weight[i : i + size], by.eps) for i in range(0, len(y), size)]
    return np.concatenate(parts) * (act if by.norm_first else 1.0)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_a_gated_norm_is_the_norm_of_each_group_and_the_gate_in_its_order(norm_first: bool, gate: Any, groups: int) -> None:
    rng = np.random.default_rng(groups)
    y, z = rng.normal(0, 3, (2, 4, 6)), rng.normal(0, 3, (2, 4, 6))
    by = GatedNorm(rng.uniform(0.5, 2, 6), 0.1, groups, norm_first, gate)
    want = np.array([[looped(y[b, t], z[b, t], by) for t in range(4)] for b in range(2)])
    assert close(norm.gated(y, z, by), want)
    for wrong in (replace(by, norm_first=not norm_first), replace(by, groups=groups % 3 + 1), replace(by, eps=0.0)):
        assert not close(norm.gated(y, z, wrong), want)


def test_a_norm_keeps_its_direction_and_has_mean_square_one() -> None:
    x = np.random.default_rng(0).normal(0, 50, (3, 5, 7))
    y = norm.rms(x, Norm(np.ones(7), 0.0))
    assert close(np.mean(y * y, axis=-1), np.ones((3, 5)))
    assert close(y * np.sqrt(np.mean(x * x, axis=-1, keepdims=True)), x)


# Layers: one token from a state, by loops over heads and channels


def conv_token(M: Array, pre: Array, conv: Any) -> Array:
    out = np.zeros(len(pre))
    for c in range(len(pre)):
        taps = [*M[c, 1:], pre[c]]
        x = math.fsum(w * u for w, u in zip(conv.weight[c], taps, strict=True))
        x += 0.0 if conv.bias is None else conv.bias[c]
        out[c] = silu(x) if conv.activation else x
    return out


def mamba2_token(state: Any, u: Array, by: Mamba2Layer) -> Array:
    """One row, one token; the order of the projection is z, x, B, C, dt."""
    p, n, g, params = by.mixer.channels, by.mixer.state, by.mixer.groups, by.mixer.params
    h = len(params.A)
    projected = applied(by.in_proj, by.input_multiplier * u) * (1.0 if by.multipliers is None else by.multipliers)
    z, dt = projected[: h * p], projected[-h:]
    c = conv_token(state.M[0], projected[h * p : -h], by.mixer.conv)
    x, B, C = c[: h * p].reshape(1, 1, h, p), c[h * p : -g * n].reshape(1, 1, g, n), c[-g * n :].reshape(1, 1, g, n)
    y = LOOPS["ssd"](state.S, SSDWindow(x, dt[None, None], B, C), params)[0].ravel()
    if by.norm is None:
        return applied(by.out_proj, y * np.array([silu(value) for value in z]))
    return applied(by.out_proj, looped(y, z, by.norm))


def mamba1_token(state: Any, u: Array, by: Mamba1Layer) -> Array:
    """One row, one token; the order of the projection is x, z, and of the second r, B, C."""
    m, params = by.mixer, by.mixer.params
    d, n = params.A.shape
    rank = m.dt_proj.shape[1]
    projected = applied(by.in_proj, u)
    x = conv_token(state.M[0], projected[:d], m.conv)
    second = np.array([math.fsum(row * x) for row in m.x_proj])
    parts = second[:rank], second[rank : rank + n], second[rank + n :]
    norms = m.dt_norm, m.B_norm, m.C_norm
    r, B, C = (a if one is None else normed(a, one.weight, one.eps) for a, one in zip(parts, norms, strict=True))
    dt = np.array([math.fsum(row * r) for row in m.dt_proj])
    window = SelectiveWindow(*(a[None, None] for a in (x, dt, B, C, projected[d:])))
    return applied(by.out_proj, LOOPS["selective"](state.S, window, params)[0].ravel())


def delta_token(state: Any, u: Array, by: DeltaLayer) -> Array:
    """One row, one token; the order of the projection is q, k, v."""
    m = by.mixer
    g, h, k, v = m.key_heads, m.value_heads, m.key_channels, m.value_channels
    c = conv_token(state.M[0], applied(by.qkv_proj, u), m.conv)
    z, b = applied(by.z_proj, u).reshape(h, v), applied(by.b_proj, u)
    a = applied(by.a_proj, u).reshape(by.dt_bias.shape)
    gate = np.zeros_like(a)
    for i in np.ndindex(a.shape):
        biased, rate = a[i] + by.dt_bias[i], by.A[i[0]]
        gate[i] = rate * softplus(biased)
        if by.lower_bound is not None:  # between it and 0, the stronger the larger |A| and the projection are
            gate[i] = by.lower_bound / (1 + math.exp(rate * biased))
    beta = np.array([by.beta_scale * sigmoid(value) for value in b])
    q, key, value = c[: g * k].reshape(g, k), c[g * k : 2 * g * k].reshape(g, k), c[2 * g * k :].reshape(h, v)
    window = DeltaWindow(*(array[None, None] for array in (q, key, value, gate, beta)))
    o = LOOPS["delta"](state.S, window, m.params)[0][0, 0]
    return applied(by.out_proj, np.concatenate([looped(o[i], z[i], by.norm) for i in range(h)]))


SECOND = {Mamba2Layer: mamba2_token, Mamba1Layer: mamba1_token, DeltaLayer: delta_token}


def recurrent_layers(seed: int) -> list[Any]:
    blocks = [block.layer for kind in ("mamba1", "mamba2", "delta") for block in tiny.model(kind, seed).blocks]
    assert len(blocks) == 6
    return blocks


@SOME
@given(seed=SEEDS)
def test_a_layer_is_its_projections_and_recurrence_written_down_by_loops(seed: int) -> None:
    rng, layers = np.random.default_rng(seed), recurrent_layers(seed)
    safe = [replace(by, lower_bound=bound) for by, bound in zip(layers[-2:], (-0.5, -5.0), strict=True)]
    for by in layers + safe:
        zero = mixer.new_state(by.mixer, 1)
        state = replace(zero, M=rng.normal(0, 1, zero.M.shape), S=rng.normal(0, 3, zero.S.shape))
        u = rng.normal(0, 1, (1, 1, tiny.CHANNELS))
        out, _ = layer.scan(state, u, by)
        assert close(out[0, 0], SECOND[type(by)](state, u[0, 0], by))


def test_planted_order_of_the_projections_is_caught() -> None:
    rng = np.random.default_rng(3)
    for by in recurrent_layers(4):
        zero = mixer.new_state(by.mixer, 1)
        state = replace(zero, S=rng.normal(0, 3, zero.S.shape))
        u = rng.normal(0, 1, (1, 1, tiny.CHANNELS))
        name = "qkv_proj" if isinstance(by, DeltaLayer) else "in_proj"
        linear = getattr(by, name)
        bias = None if linear.bias is None else np.roll(linear.bias, 3)
        rolled = replace(by, **{name: replace(linear, weight=np.roll(linear.weight, 3, axis=0), bias=bias)})
        out, _ = layer.scan(state, u, rolled)
        assert not close(out[0, 0], SECOND[type(by)](state, u[0, 0], by))


def test_every_option_of_a_layer_is_drawn_by_the_tiny_models() -> None:
    m1, m1_normed, m2, m2_plain, gdn, kda = recurrent_layers(0)
    assert m1.mixer.dt_norm is None
    assert isinstance(m1_normed.mixer.dt_norm, Norm)
    assert m2.norm is not None
    assert 1 < m2.norm.groups == m2.mixer.groups < len(m2.mixer.params.A)
    assert m2_plain.norm is None
    assert m2.mixer.params.D.ndim == 1
    assert m2_plain.mixer.params.D.ndim == 2
    assert m2.multipliers is None
    assert m2_plain.multipliers is not None
    assert m2_plain.input_multiplier != 1
    assert m2_plain.mixer.params.dt_limit == (0.01, 1.5)
    assert gdn.mixer.key_heads < gdn.mixer.value_heads
    assert gdn.beta_scale == 2
    assert gdn.norm.gate == "silu"
    assert kda.dt_bias.ndim == 2
    assert kda.norm.gate == "sigmoid"
    assert kda.a_proj.down is not None
    rotary, bare = (block.layer for block in tiny.model("attention", 0).blocks)
    assert 1 < rotary.groups < rotary.heads
    assert 2 * len(rotary.params.frequencies) < rotary.channels
    assert bare.params.frequencies is None
    assert bare.params.scale is not None


# Laws of the whole model


def drawn(kind: str, seed: int, tokens: int = 9) -> tuple[lm.Model, Array, np.random.Generator]:
    rng = np.random.default_rng(seed)
    model = tiny.model(kind, seed % 83)
    return model, rng.integers(0, model.vocabulary, (3, tokens)), rng


@each_kind
@SOME
@given(seed=SEEDS)
def test_a_model_is_its_layers_and_mlps_added_to_the_stream_and_read_by_the_head(kind: str, seed: int) -> None:
    model, tokens, _ = drawn(kind, seed, tokens=3)
    logits, _ = lm.scan(lm.new_state(model, 3), tokens, model)
    stream = model.embedding[tokens]
    for block, state in zip(model.blocks, lm.new_state(model, 3), strict=True):
        u = np.apply_along_axis(normed, 2, stream, block.norm.weight, block.norm.eps)
        module = attention_layer if isinstance(block.layer, AttentionLayer) else layer
        stream = stream + module.scan(state, u, block.layer)[0]
        if block.mlp is not None:
            for x in stream.reshape(-1, tiny.CHANNELS):
                v = normed(x, block.mlp_norm.weight, block.mlp_norm.eps)
                act = np.array([silu(value) for value in applied(block.mlp.gate, v)])
                x += applied(block.mlp.down, act * applied(block.mlp.up, v))
    head = lambda x: applied(model.head, normed(x, model.norm.weight, model.norm.eps))  # noqa: E731
    assert close(logits, np.apply_along_axis(head, 2, stream))


@each_kind
@SOME
@given(seed=SEEDS, cut=st.integers(1, 8))
def test_a_scan_in_two_parts_is_the_scan(kind: str, seed: int, cut: int) -> None:
    model, tokens, _ = drawn(kind, seed)
    start = lm.new_state(model, 3)
    whole, end = lm.scan(start, tokens, model)
    first, middle = lm.scan(start, tokens[:, :cut], model)
    second, last = lm.scan(middle, tokens[:, cut:], model)
    assert close(np.concatenate([first, second], axis=1), whole)
    assert all(deviation(one_row(last, b), one_row(end, b)) <= TOLERANCE for b in range(3))


@each_kind
@SOME
@given(seed=SEEDS)
def test_tokens_that_are_not_live_are_as_if_they_had_not_been(kind: str, seed: int) -> None:
    model, tokens, rng = drawn(kind, seed)
    live = rng.random(tokens.shape) < 0.6
    live[0] = False
    logits, state = lm.scan(lm.new_state(model, 3), tokens, model, live)
    for b in range(3):
        alone = lm.new_state(model, 1)
        if live[b].any():
            want, alone = lm.scan(alone, tokens[b : b + 1, live[b]], model)
            assert close(logits[b, live[b]], want[0])
        assert deviation(one_row(state, b), alone) <= TOLERANCE


@each_kind
def test_a_row_sees_nothing_of_the_others_and_no_token_behind_it(kind: str) -> None:
    model, tokens, _ = drawn(kind, 17)
    logits, _ = lm.scan(lm.new_state(model, 3), tokens, model)
    changed = tokens.copy()
    changed[1:] = (tokens[1:] + 1) % model.vocabulary
    changed[0, 5:] = (tokens[0, 5:] + 1) % model.vocabulary
    other, _ = lm.scan(lm.new_state(model, 3), changed, model)
    assert np.array_equal(logits[0, :5], other[0, :5])
    assert not np.array_equal(logits[0, 5], other[0, 5])
    assert not np.array_equal(logits[1], other[1])


@each_kind
def test_planted_state_that_is_not_carried_is_caught(kind: str) -> None:
    model, tokens, _ = drawn(kind, 23)
    start = lm.new_state(model, 3)
    whole, _ = lm.scan(start, tokens, model)
    _, middle = lm.scan(start, tokens[:, :4], model)
    for i in range(len(model.blocks)):
        forgotten = (*middle[:i], start[i], *middle[i + 1 :])
        assert not close(lm.scan(forgotten, tokens[:, 4:], model)[0], whole[:, 4:])


def test_the_output_of_a_token_that_is_not_live_is_zero() -> None:
    u, live = np.random.default_rng(0).normal(0, 1, (2, 3, tiny.CHANNELS)), np.array([[True, False, True]] * 2)
    for by in (*recurrent_layers(1), *(block.layer for block in tiny.model("attention", 1).blocks)):
        if isinstance(by, AttentionLayer):
            out, _ = attention_layer.scan(attention_layer.new_state(by, 2), u, by, live)
        else:
            out, _ = layer.scan(mixer.new_state(by.mixer, 2), u, by, live)
        assert np.all(out[:, 1] == 0)
        assert np.all(out[:, 0] != 0)


# What is refused


def test_wrong_parameters_are_refused() -> None:
    refused(ParameterError, "3 groups do not divide 4 channels", GatedNorm, np.ones(4), groups=3)
    refused(ParameterError, "eps of a norm is nan", Norm, np.ones(4), float("nan"))
    refused(ParameterError, "gate of a norm is 'gelu'", GatedNorm, np.ones(4), gate="gelu")  # type: ignore[arg-type]
    refused(ShapeMismatch, "2 outputs and a bias of 3", Linear, np.ones((2, 4)), np.ones(3))
    refused(ShapeMismatch, "their ranks must be equal", Linear, np.ones((2, 4)), down=np.ones((3, 5)))
    refused(PrecisionError, r"Norm\.weight is float32", Norm, np.ones(4, dtype=np.float32))
    narrow, rotary = Linear(np.ones((6, 4))), tiny.model("attention", 0).blocks[0].layer
    assert isinstance(rotary, AttentionLayer)
    refused(ShapeMismatch, "channels of the query", replace, rotary, k_proj=narrow, v_proj=narrow)


def test_wrong_arguments_are_refused_and_none_is_written() -> None:
    model, tokens, _ = drawn("hybrid", 3)
    state = lm.new_state(model, 3)
    refused(ParameterError, "there is a token 11, but the vocabulary is 0 to 10", lm.scan, state, tokens + 11 - tokens, model)
    refused(
        ShapeMismatch,
        "5 channels, but the linear map reads 10",
        layer.scan,
        state[0],
        np.zeros((3, 2, 5)),
        model.blocks[0].layer,
    )  # type: ignore[arg-type]
    refused(ShapeMismatch, "its gate z has", norm.gated, np.zeros((1, 4)), np.zeros((1, 3)), GatedNorm(np.ones(4)))
    _, held = lm.scan(state, tokens, model)
    before = copied(held)
    lm.scan(held, tokens, model)
    assert unchanged(before, held)
    assert any(isinstance(one, KVState) for one in held)
