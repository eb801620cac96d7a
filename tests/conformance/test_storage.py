"""A state declared as fp32 whose every element is a narrower number fails, and nothing that is right is blamed for it."""

import numpy as np
import pytest

from conformance.judge.draw import stored
from conformance.judge.storage import ENOUGH, narrower
from conformance.judge.verdict import compare
from conformance.suite.expected import Expected
from ssmspec_ref.contract import NumericContract, Storage, Verdict

RNG = np.random.default_rng(5)
EXACT = RNG.standard_normal((2, 3, 16))
WIDE = NumericContract(dot="bf16")


def judged(came: np.ndarray, value: np.ndarray = EXACT, contract: NumericContract = WIDE) -> tuple[Verdict, str]:
    want = Expected("S", "b h n", value, np.abs(value) * 0.05, state=True, recurrent=True)
    found = compare([want], (came.astype(np.float32),), contract)
    return found.verdict, found.kind


@pytest.mark.parametrize("storage", ["bf16", "fp16"])
def test_a_narrower_state_fails_under_a_contract_whose_bound_allows_it(storage: Storage) -> None:
    assert judged(stored(EXACT, storage)) == (Verdict.FAIL, "dtype")
    assert judged(stored(EXACT, storage), contract=NumericContract(dot="bf16", state=storage))[0] is Verdict.PASS


def test_one_element_in_fp32_is_enough_to_pass() -> None:
    came = stored(EXACT, "bf16")
    came[0, 0, 0] = np.float32(EXACT[0, 0, 0])
    assert judged(came) == (Verdict.PASS, "")


@pytest.mark.parametrize(
    "value",
    [
        np.where(np.arange(96).reshape(2, 3, 16) == 3, 0.1, 0.0),
        stored(EXACT, "bf16"),
        2.0 ** RNG.integers(-9, 9, EXACT.shape),
        RNG.integers(-128, 128, EXACT.shape) / 16.0,
        stored(EXACT, "bf16") * (1 + 2.0**-16),
    ],
    ids=["one element", "exact inputs", "powers of two", "small sums", "near a narrow number"],
)
def test_few_elements_and_values_that_are_narrow_in_exact_arithmetic_say_nothing(value: np.ndarray) -> None:
    assert narrower(value, stored(value, "bf16")) is None


def test_fewer_elements_than_are_needed_say_nothing() -> None:
    value = EXACT.reshape(-1)[: ENOUGH - 1]
    assert narrower(value, stored(value, "bf16")) is None


def test_what_is_kept_in_fp32_is_no_narrower_number_however_wrong_it_is() -> None:
    for size in (2.0**-24, 2.0**-12, 2.0**-6):
        for seed in range(200):
            value = EXACT.reshape(-1)[:ENOUGH]
            came = value * (1 + size * np.random.default_rng(seed).standard_normal(value.shape))
            assert narrower(value, came.astype(np.float32)) is None
