"""The error bounds of mixers and of whole layers, in float64 and in low precision."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import error_bounds, tree
from ssmspec_ref.contract import FLOAT64, NumericContract
from ssmspec_ref.layers import layer, mixer
from ssmspec_ref.model import tiny_layers
from tests import families
from tests.families import FAMILIES, Family, Sizes, drawn_sizes, each_kind, examples, seeds
from tests.low_precision import FP32, SUMS, Machine, stored, within


@each_kind
@examples(10)
@given(seed=seeds, sizes=drawn_sizes(), family=st.sampled_from(FAMILIES))
def test_the_bound_of_a_mixer_holds_for_windows_and_trees(kind: Any, seed: int, sizes: Sizes, family: Family) -> None:
    made, state, inputs = families.layer(kind, seed, sizes, family)
    live = np.random.default_rng(seed).random((sizes.b, sizes.t)) < 0.7
    y, after = mixer.scan(state, inputs, made, live)
    bounds = error_bounds.mixer.scan(state, inputs, made, FLOAT64, live)
    for got, pair in zip((y, after.M, after.S), bounds, strict=True):
        assert within(got, pair.value, pair, pair)
    rng = np.random.default_rng(seed)
    parents = np.array([[-1, *(rng.integers(0, i) for i in range(1, sizes.t))]] * sizes.b)
    every = np.ones((sizes.b, sizes.t), dtype=bool)
    y_tree, _ = mixer.verify_window(state, inputs, made, every, parents)
    pair = error_bounds.mixer.tree(state, inputs, made, tree.ancestors(parents), FLOAT64)
    assert within(y_tree, pair.value, pair, pair)


LAYERS = {
    "ssd": tiny_layers.mamba2,
    "selective": tiny_layers.mamba1,
    "delta": lambda rng, odd: tiny_layers.delta(rng, False),
    "delta_channel": lambda rng, odd: tiny_layers.delta(rng, True),
}


def drawn_layer(kind: str, seed: int, family: Family) -> Any:
    """A tiny layer with the decays of a family, and in some with what tiny layers have not."""
    rng = np.random.default_rng([seed, 9])
    made: Any = LAYERS[kind](rng, seed % 2 == 0)
    if "delta" in kind:
        rates = families.decay_rates(rng, family, made.A.shape), families.dt_bias(rng, made.dt_bias.shape)
        return replace(made, A=rates[0], dt_bias=rates[1], lower_bound=-5.0 if seed % 3 == 0 else None)
    params = made.mixer.params
    rates = families.decay_rates(rng, family, params.A.shape), families.dt_bias(rng, params.dt_bias.shape)
    made = replace(made, mixer=replace(made.mixer, params=replace(params, A=rates[0], dt_bias=rates[1])))
    norm = getattr(made, "norm", None)
    return made if norm is None else replace(made, norm=replace(norm, norm_first=seed == 2))


@pytest.mark.parametrize("kind", ["ssd", "delta", "delta_channel", "selective"])
@pytest.mark.parametrize("contract", [FP32, replace(FP32, io="bf16", state="bf16", dot="bf16")], ids=["fp32", "bf16"])
def test_a_layer_in_low_precision_stays_within_its_bound_and_a_leak_does_not(kind: str, contract: NumericContract) -> None:
    for seed in range(6):
        family, order = FAMILIES[seed % 3], ("sequential", "chunked")[seed % 2]
        made = stored(drawn_layer(kind, seed, family))
        state = stored(families.state(made.mixer, seed, 2, family), contract.io)
        u = stored(np.random.default_rng(seed).normal(size=(2, 6, tiny_layers.CHANNELS)), contract.io)
        declared = replace(contract, order=order, chunk=4)
        out, after = layer.scan(state, u, made)
        bounds = error_bounds.layer.scan(state, u, made, declared)
        for sums in SUMS:
            got = Machine(declared, sums, variant=seed % 2).layer(state, u, made)
            for name, value, ref, pair in zip(("out", "M", "S"), got, (out, after.M, after.S), bounds, strict=True):
                result = error_bounds.compare(value, ref, pair.error)
                assert result.passed, f"{name}, seed {seed}: {result}"
        if contract is FP32 and family != "hard":
            leaked = replace(state, S=state.S + 0.01 * np.random.default_rng(seed).normal(size=state.S.shape))
            got = Machine(declared).layer(leaked, u, made)
            assert not all(
                error_bounds.compare(value, ref, pair.error).passed
                for value, ref, pair in zip(got, (out, after.M, after.S), bounds, strict=True)
            )
