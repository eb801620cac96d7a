"""Latent attention by keys and values of heads, and over the compressed cache: the same outputs, and what each must catch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref.attention import latent
from ssmspec_ref.attention.latent import LatentLayer
from ssmspec_ref.errors import ShapeMismatch
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.shapes import Array
from tests.families import TOLERANCE, deviation, seeds

from .refusals import refused

WIDTH = 9


def drawn(seed: int, heads: int = 3, own: int = 4, shared: int = 2, rank: int = 5, values: int = 7) -> LatentLayer:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> Array:
        return rng.normal(size=shape) * shape[-1] ** -0.5 * 2

    maps = matrix(heads, own, rank), matrix(heads, values, rank)
    q, kv = Linear(matrix(heads * (own + shared), WIDTH)), Linear(matrix(rank + shared, WIDTH))
    return LatentLayer(q, kv, Norm(rng.uniform(0.5, 1.5, rank)), *maps, Linear(matrix(WIDTH, heads * values)))


def sequence(seed: int, rows: int = 2, tokens: int = 6) -> Array:
    return np.random.default_rng(seed + 1).normal(size=(rows, tokens, WIDTH))


@given(seeds, st.integers(1, 3), st.integers(0, 3), st.integers(1, 6))
def test_the_compressed_form_is_that_of_heads(seed: int, heads: int, shared: int, tokens: int) -> None:
    layer, u = drawn(seed, heads=heads, shared=shared), sequence(seed, tokens=tokens)
    assert deviation(latent.scan(u, layer), latent.compressed(u, layer)) <= TOLERANCE


def test_a_token_reads_itself_and_those_before_it() -> None:
    layer, u = drawn(1), sequence(1)
    later = u.copy()
    later[:, 4:] += 1.0
    whole, other = latent.scan(u, layer), latent.scan(later, layer)
    assert np.array_equal(whole[:, :4], other[:, :4])
    assert not np.array_equal(whole[:, 4], other[:, 4])


def test_one_token_alone_is_its_value() -> None:
    """The softmax over one token is 1, whatever its score: out_proj of the maps V of its normed latent."""
    layer, u = drawn(2), sequence(2, tokens=1)
    c = u @ layer.kv_proj.weight[:5].T
    c = c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-6) * layer.norm.weight
    wanted = np.concatenate([c @ V.T for V in layer.values], axis=-1) @ layer.out_proj.weight.T
    assert deviation(latent.scan(u, layer), wanted) <= TOLERANCE


FAULTS: dict[str, Callable[[LatentLayer], LatentLayer]] = {
    "keys of another head": lambda layer: replace(layer, keys=np.roll(layer.keys, 1, axis=0)),
    "values of another head": lambda layer: replace(layer, values=np.roll(layer.values, 1, axis=0)),
    "a latent that is not normed": lambda layer: replace(layer, norm=Norm(layer.norm.weight, 1e3)),
    "shared keys before the latent": lambda layer: replace(
        layer, kv_proj=Linear(np.roll(layer.kv_proj.weight, layer.shared, axis=0))
    ),
    "queries by channel, not by head": lambda layer: replace(
        layer, q_proj=Linear(layer.q_proj.weight.reshape(3, -1, WIDTH).swapaxes(0, 1).reshape(-1, WIDTH))
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_of_the_weights_is_seen(fault: str) -> None:
    layer, u = drawn(3), sequence(3)
    assert deviation(latent.compressed(u, FAULTS[fault](layer)), latent.scan(u, layer)) > 1e-3


PLANTED: list[tuple[str, Callable[[Any], Any]]] = [
    ("scale", lambda p: type(p)(p.scale * 1.1)),
    ("positions", lambda p: type(p)(p.scale, np.array([1.0]))),
]


@pytest.mark.parametrize(("name", "change"), PLANTED)
def test_a_planted_fault_of_the_scores_is_seen(name: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = latent.dense.scan
    monkeypatch.setattr(latent.dense, "scan", lambda window, params: whole(window, change(params)))
    layer, u = drawn(4), sequence(4)
    assert deviation(latent.compressed(u, layer), latent.scan(u, layer)) > 1e-4


@pytest.mark.parametrize("field", ["norm", "q_proj"])
def test_maps_that_do_not_fit_are_refused(field: str) -> None:
    wrong: dict[str, Any] = {"norm": Norm(np.ones(4)), "q_proj": Linear(np.ones((17, WIDTH)))}
    refused(ShapeMismatch, "latent attention", replace, drawn(5), **{field: wrong[field]})
