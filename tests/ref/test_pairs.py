"""Pairs in place of arrays: what they refuse, and that each rule covers every way to compute it in low precision."""

from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import functions
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.error_bounds import exact
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.error_bounds.inputs import paired
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams
from tests.low_precision import FP32, SUMS, Machine, low, rounded, stored, used

from .refusals import refused

BF16 = replace(FP32, state="bf16", io="bf16", dot="bf16", stored_every_token=True)


def drawn(seed: int, *shape: int, contract: NumericContract = FP32) -> tuple[Array, Approx]:
    """Numbers that float32 holds, and the same as a pair."""
    x = stored(np.random.default_rng(seed).normal(size=shape))
    return x, exact(x, contract)


def assigned(pair: Approx) -> None:
    np.zeros(pair.shape)[:] = pair


def added_in_place(pair: Approx) -> None:
    total = np.zeros(pair.shape)
    total += pair


def written(pair: Any) -> None:
    pair[0] = 1.0


REFUSED: dict[str, tuple[Any, str]] = {
    "as an array": (np.asarray, "no number and no array"),
    "as a number": (lambda p: float(p[0]), "no number and no array"),
    "as an integer": (lambda p: int(p[0]), "no number and no array"),
    "as a truth": (lambda p: bool(p[0]), "no number and no array"),
    "compared": (lambda p: p == 0, "no number and no array"),
    "ordered": (lambda p: p <= 0, "no number and no array"),
    "ordered by NumPy": (lambda p: np.zeros(3) < p, "no rule for the error of"),
    "written to": (written, "no number and no array"),
    "written into a plain array": (assigned, "no number and no array"),
    "added to a plain array in place": (added_in_place, "add (__call__, out) of pairs is not known"),
    "reduced": (np.add.reduce, "add (reduce"),
    "an unknown function of elements": (np.arctan, "no rule for the error of arctan; give it one in"),
    "an unknown function of arrays": (np.cumsum, "no rule for the error of cumsum"),
    "an unknown name of the reference": (functions.named(lambda p: p), "no rule for the error of <lambda>"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_pairs_refuse_what_they_do_not_know(what: str) -> None:
    function, why = REFUSED[what]
    refused(Unsupported, why.replace("(", r"\(").replace(")", r"\)"), function, drawn(1, 3)[1])


def test_over_arrays_every_name_is_the_identity_and_numbers_must_have_a_rule() -> None:
    x = np.array([-0.0, 1.5, np.nan])
    for name in (functions.stored, functions.kept, functions.passed, functions.product):
        assert name(x) is x
    refused(NotImplementedError, "", functions.Numbers().named, "stored")


def test_records_hold_pairs_and_checks_see_their_shapes() -> None:
    A = np.array([-1.0, -2.0])
    S, params = paired(FP32, {"S": np.full((1, 2), 0.5)}, SSDParams(A), S=np.ones((1, 2)))
    assert isinstance(params, SSDParams)
    assert np.array_equal(params.A.value, A)
    assert np.array_equal(S.error, [[0.5, 0.5]])
    assert not params.A.error.any()


# ---------------------------------------------------------------------------------------------------------------- rules

MOVES: dict[str, Any] = {
    "repeat": lambda x: np.repeat(x, 2, axis=-2),
    "stack": lambda x: np.stack([x, x[:, ::-1]], axis=1),
    "concatenate": lambda x: np.concatenate([x[:, 1:], x[:, :1]], axis=1),
    "where": lambda x: np.where(np.arange(3) > 0, x, 0.0),
    "zeros_like": np.zeros_like,
    "index": lambda x: x[:, None, 1],
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_numbers_moves_their_errors(name: str) -> None:
    x, error = drawn(2, 4, 3)[0], np.abs(drawn(3, 4, 3)[0])
    pair = MOVES[name](exact(x, FP32, error))
    assert np.array_equal(pair.value, MOVES[name](x))
    assert np.array_equal(pair.error, MOVES[name](error))


def test_a_number_beside_pairs_is_as_exact_as_its_literal() -> None:
    pair = np.where(np.array([True, False]), drawn(2, 2)[1], 0.7)
    assert pair.error[0] == 0 < pair.error[1] <= 2.0**-24


def test_a_product_of_three_covers_every_association_and_counts_exact_factors_less() -> None:
    arrays, pairs = zip(*(drawn(n, *shape) for n, shape in enumerate([(40, 3), (40, 3, 5), (40, 5)])), strict=True)
    pair = np.einsum("bh, bhp, bp -> bhp", *pairs)
    a, b, c = low(arrays[0])[:, :, None], low(arrays[1]), low(arrays[2])[:, None]
    worst = max(used((x * y) * z, pair) for x, y, z in permutations((a, b, c)))
    assert 0.8 < worst <= 1
    one = np.einsum("bh, bhp, bp -> bhp", exact(np.ones((40, 3)), FP32), *pairs[1:])
    assert used(b * c, one) > 0.9
    turned = np.einsum("bhp, bp -> bph", *pairs[1:])
    assert np.array_equal(turned.value, np.einsum("bhp, bp -> bph", *arrays[1:]))


@pytest.mark.parametrize("contract", [FP32, replace(FP32, dot="tf32"), BF16], ids=str)
def test_a_product_covers_a_sum_in_every_order_with_what_is_added_first_or_last(contract: NumericContract) -> None:
    (S, s), (C, c), (x, d) = (drawn(n, *shape, contract=contract) for n, shape in enumerate([(50, 9), (50, 9), (50,)]))
    pair = functions.product(np.einsum("bn, bn -> b", s, c) + d * 1.5)
    for sums in SUMS:
        for variant in (0, 1):
            assert used(Machine(contract, sums, variant).dot(low(S), low(C), low(1.5 * x)), pair) <= 1
    strict = np.einsum("bn, bn -> b", s, c) + d * 1.5  # the sum first, operands as they are
    assert np.all(strict.error < pair.error)
    if contract.dot != "ieee":
        assert used(Machine(contract).dot(low(S), low(C), low(1.5 * x)), strict) > 1


def test_a_sum_is_remembered_through_sums_and_products_until_it_is_stored() -> None:
    """a (b + c) in any association; what was stored, indexed or moved is one number."""
    a, b, c = (drawn(n, 60)[1] for n in range(3))
    pair = functions.product(a * (b + c) - b)
    wide = low(a.value) * low(b.value), low(a.value) * low(c.value)
    assert 0.3 < max(used(x - low(b.value) + y, pair) for x, y in permutations(wide)) <= 1
    for plain in (functions.stored(a * b), functions.passed(a * b), functions.kept(a * b), (a * b)[:], replace(a * b)):
        assert np.array_equal(functions.product(plain).error, (a * b).error)


FORMATS: dict[str, Any] = {"stored": functions.stored, "kept": functions.kept, "passed": functions.passed}


@pytest.mark.parametrize("name", FORMATS)
def test_storing_rounds_once_where_the_contract_says_so(name: str) -> None:
    x, pair = drawn(5, 500, contract=BF16)
    assert 0.9 < used(rounded(low(x), "bf16"), FORMATS[name](pair)) <= 1
    once = FORMATS[name](replace(pair, contract=replace(BF16, stored_every_token=False)))
    assert once.error.any() == (name != "stored")


NAMED: dict[str, tuple[Any, Any]] = {
    "decay": (functions.decay, lambda m, x: m.exp(x)),
    "softplus": (functions.softplus, lambda m, x: m.softplus(x)),
    "sigmoid": (functions.sigmoid, lambda m, x: m.sigmoid(x)),
    "silu": (functions.silu, lambda m, x: m.silu(x)),
    "l2_normed": (partial(functions.l2_normed, eps=1e-6), lambda m, x: x * (1 / np.sqrt(m.sum(x * x) + 1e-6))[..., None]),
    "clip": (lambda x: np.clip(x, -2.0, -0.7), lambda m, x: np.clip(x, -2, low(np.array(-0.7)))),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_function_covers_what_a_machine_computes(name: str) -> None:
    x = -np.abs(drawn(6, 300, 4)[0])
    exactly, machine = NAMED[name]
    pair = exactly(exact(x, FP32))
    assert np.allclose(pair.value, exactly(x), rtol=1e-14)
    assert 0.1 < used(machine(Machine(FP32), low(x)), pair) <= 1


def test_a_decay_is_at_most_1_however_wrong_its_logarithm_is() -> None:
    pair = functions.decay(exact(np.array([-0.1]), FP32, np.array([3.0])))
    assert 0.8 < pair.error[0] < 1
