"""Rounding at random: what is right is never blamed, each law has its power, each planted fault is told by its law."""

from itertools import count
from typing import Any

import numpy as np
import pytest

from conformance.faults.memory import state_formats
from conformance.judge import rounding
from conformance.judge.verdict import judge
from conformance.suite.expected import Expected
from ssmspec_ref import state_format
from ssmspec_ref.contract import Capability, Limits, NumericContract, StateStorage, Verdict
from ssmspec_ref.errors import ParameterError

from .judging import SPECIFICATION, fails, passes

SHAPE = (400, 4, 3, 4, 5)
AXES = "b h p n"
DRAWN: tuple[NumericContract, ...] = tuple(
    NumericContract(state=state, state_scale=scale, state_rounding="stochastic")
    for state, scale in (
        ("int8", "row"),
        ("int16", 3),
        ("fp8_e4m3", "row"),
        ("fp8_e5m2", None),
        ("fp16", None),
        ("bf16", None),
    )
)


def told(contract: NumericContract, coins: Any, seed: int) -> str:
    """What the laws say of states stored with `coins(f, rng)`, computed with errors of up to the bound."""
    rng = np.random.default_rng([seed, 3])
    v = rng.standard_normal(SHAPE)
    e = np.abs(v) * 2.0**-22
    computed = v + e * rng.uniform(-1, 1, SHAPE)
    x = computed / state_format.scales(computed, contract)
    down, up = state_format.neighbours(state_format.within(x, contract.state), contract.state)
    f = np.where(up > down, (x - down) / np.where(up > down, up - down, 1.0), 0.0)
    kept = state_format.keep(computed, contract, coins=coins(f, rng))
    exact = Expected("S", AXES, v.reshape(-1, *SHAPE[2:]), e.reshape(-1, *SHAPE[2:]), recurrent=True)
    return rounding.laws(exact, kept.value.astype(np.float32).astype(np.float64), contract)


def fresh(f: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.random(f.shape)


@pytest.mark.parametrize("contract", DRAWN, ids=str)
def test_fresh_numbers_are_never_blamed(contract: NumericContract) -> None:
    assert [told(contract, fresh, seed) for seed in range(40)] == [""] * 40


@pytest.mark.parametrize("seed", range(5))
def test_a_bias_of_the_stated_size_is_seen(seed: int) -> None:
    """n roundings see delta with a probability of 0.999 if delta n is 3.1 sqrt(V) beyond the limit, V at most n / 4."""
    n = float(np.prod(SHAPE)) * 0.9  # those that lie between two neighbours
    delta = (rounding.limit(n / 6) + 3.1 * np.sqrt(n / 6)) / n
    contract = DRAWN[0]
    assert delta < 0.025
    slack = 0.002  # what arithmetic in fp32 may move a code of int8
    assert "lean up" in told(contract, lambda f, rng: rng.random(f.shape) - delta - slack, seed)
    assert told(contract, lambda f, rng: rng.random(f.shape) - delta / 20, seed) == ""


LAWS = {
    "nearest": (lambda f, rng: np.full(f.shape, 0.5), "lean to the nearest number"),
    "one number for a call": (lambda f, rng: rng.random((len(f), 1, 1, 1, 1)) + 0 * f, "products of roundings of two rows"),
    "one number for a row": (lambda f, rng: rng.random((*f.shape[:4], 1)) + 0 * f, "two elements apart in n"),
    "the same in every call": (lambda f, rng: rng.random((1, *f.shape[1:])) + 0 * f, "products of roundings of two calls"),
    "the same in every eighth": (lambda f, rng: np.tile(rng.random((8, *f.shape[1:])), (50, 1, 1, 1, 1)), "distance of 8"),
    "toward zero": (lambda f, rng: np.ones(f.shape), ""),
}


@pytest.mark.parametrize("name", LAWS)
def test_each_law_tells_its_fault(name: str) -> None:
    coins, said = LAWS[name]
    found = told(DRAWN[0], coins, 0)
    assert found
    assert said in found


def test_an_element_beyond_its_neighbours_is_named() -> None:
    contract, v = DRAWN[4], np.full((1, 1, 1, 1, 1), 1 + 2.0**-12)
    exact = Expected("S", AXES, v[0], 0 * v[0], recurrent=True)
    assert rounding.laws(exact, np.full(v.shape, 1 + 2.0**-10), contract) == ""
    assert "neighbours" in rounding.laws(exact, np.full(v.shape, 1 + 2.0**-9), contract)
    assert "neighbours" in rounding.laws(exact, np.full(v.shape, 1 - 2.0**-11), contract)


@pytest.mark.parametrize("contract", DRAWN[:3], ids=str)
@pytest.mark.parametrize("operation", ["ssd.step", "ssd.scan", "delta.step", "selective.scan_masked"])
def test_right_implementations_pass(operation: str, contract: NumericContract) -> None:
    definition = getattr(__import__("ssmspec_ref"), operation.partition(".")[0])
    run = state_formats.right(contract, definition, -2 if operation.startswith("delta") else -1)
    specification = SPECIFICATION[operation]
    for case in list(specification.cases("smoke", Limits()))[:12]:
        passes(judge(specification, Capability(run, contract), case))


SAID: dict[str, tuple[str, str]] = {
    "toward_zero": ("bound", ""),
    "scale_of_the_neighbour": ("bound", ""),
    "scale_is_not_updated": ("dtype", "one scale for each block"),
    "one_scale_for_a_head": ("dtype", "one scale for each block"),
    "zero_over_zero": ("nan", ""),
    "values_share_a_scale": ("dtype", "one scale for each block"),
    "other_eight_bits": ("bound", ""),
    "leans_up": ("rounding", "lean up"),
    "four_random_bits": ("rounding", "lean up"),
    "rounds_to_nearest": ("rounding", "to the nearest"),
    "steps_over_a_neighbour": ("bound", ""),
    "same_numbers_in_every_call": ("rounding", "two calls"),
    "sixteen_seeds": ("rounding", "two calls at a distance of 16"),
    "one_seed_for_all_slots": ("rounding", "two rows"),
    "one_number_for_a_row": ("rounding", "apart in k"),
    "feedback_is_dropped": ("bound", ""),
    "feedback_is_not_decayed": ("bound", ""),
}


@pytest.mark.parametrize("fault", state_formats.FAULTS, ids=lambda fault: fault.name)
def test_planted_faults_are_told_by_their_own_law(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_formats, "SEEDS", count())
    specification = SPECIFICATION[fault.operation]
    found = (judge(specification, fault.capability, case) for case in specification.tabled())
    fails(next(told for told in found if told.verdict is Verdict.FAIL), *SAID[fault.name])


def test_a_law_of_bits_is_refused_beside_rounding_at_random() -> None:
    with pytest.raises(ParameterError, match="bitwise"):
        Capability(print, DRAWN[0], bitwise=("rerun",))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"state": "int8"}, "needs a scale"),
    ({"state": "int4"}, "give one of"),
    ({"state_scale": "row"}, "is for fp8_e4m3"),
    ({"state": "int16", "state_scale": 0}, "at least 1"),
    ({"state": "int16", "state_scale": True}, "at least 1"),
    ({"state": "int16", "state_scale": "head"}, "give 'row'"),
    ({"state_rounding": "stochastic"}, "rounds nothing"),
    ({"state": "fp16", "state_rounding": "up"}, "give one of nearest, stochastic"),
    ({"state": "fp16", "error_feedback": "int4"}, "is for int8 and int16"),
    ({"state": "int8", "state_scale": "row", "error_feedback": "int2"}, "give one of"),
    (
        {"state": "int8", "state_scale": "row", "error_feedback": "int4", "state_rounding": "stochastic"},
        "declare one of them",
    ),
]


@pytest.mark.parametrize(("fields", "said"), WRONG, ids=lambda value: str(value))
def test_a_wrong_field_is_refused_in_one_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said) as caught:
        NumericContract(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", ["int8", "fp8_e4m3"])
def test_a_contract_is_one_line_and_shows_what_loses_bits(state: StateStorage) -> None:
    contract = NumericContract(state=state, state_scale=64, state_rounding="stochastic")
    assert str(contract) == f"fp32/state={state}/scale=64/stochastic/sequential"
