"""What the bounds let pass and what they reject: no false alarm over formats, orders of sums and associations, and the kill
table of planted precision and logic faults."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import error_bounds
from ssmspec_ref.contract import NumericContract, Order
from ssmspec_ref.records import concat, prefix
from tests.families import FAMILIES, Family, Sizes
from tests.low_precision import SUMS, Machine, stored

from . import recurrences

MACHINES = ("ssd", "selective", "delta", "delta_channel", "conv", "shortconv")
"""What a variant in low precision computes."""
KINDS = ("ssd", "selective", "delta", "delta_channel")
ORDERS: tuple[Order, ...] = ("sequential", "chunked", "output_only")
SCANS = ("ssd", "selective")
"""Recurrences of decays alone, which an associative scan evaluates."""

FP32 = NumericContract(function_ulp=3, chunk=5)  # NumPy's exp
CONTRACTS = {
    "fp32": FP32,
    "fp32 state, bf16 io": replace(FP32, io="bf16"),
    "bf16": replace(FP32, state="bf16", io="bf16", stored_every_token=True),
    "bf16 kernel": replace(FP32, state="bf16", io="bf16", exp="ex2", softplus="log", dot="tf32", stored_every_token=True),
    "bf16 ring": replace(FP32, io="bf16", ring="bf16"),
    "fp16 state, bf16 dot": replace(FP32, state="fp16", dot="bf16", io="bf16"),
}
"""What a machine declares and does."""

SIZES = Sizes(t=11, n=16, k=16, v=6)


def orders(kind: str) -> tuple[Order, ...]:
    """The orders that a recurrence can be evaluated in."""
    return (*ORDERS, "associative") if kind in SCANS else ORDERS


@dataclass(frozen=True)
class Case:
    """Inputs that are exact in the declared formats, and the oracle's values on them with their bounds."""

    kind: str
    given: recurrences.Case
    contract: NumericContract

    @cached_property
    def expected(self) -> list[tuple[Any, Any]]:
        """The oracle's outputs and state, each with its bound."""
        c = self.given
        bounds = c.recurrence.bounds.scan(c.S, c.window, c.params, self.contract)
        return [(value, bound.error) for value, bound in zip(c.scan(), bounds, strict=True)]

    def utilisation(self, *got: Any) -> float:
        return max(
            error_bounds.compare(g, value, bound).utilisation for g, (value, bound) in zip(got, self.expected, strict=True)
        )

    def run(self, machine: Machine, **changed: Any) -> tuple[Any, Any]:
        given = self.given._replace(**changed)
        return getattr(machine, self.kind.removesuffix("_channel"))(given.S, given.window, given.params)


def make_case(kind: str, seed: int, family: Family, contract: NumericContract, sizes: Sizes = SIZES) -> Case:
    fixed = {
        "delta_channel": {"l2_norm": True, "beta_max": 1.0, "scale": None},
        "ssd": {"D": "head", "dt_limit": (0.0, np.inf)},
    }
    options = {"bias": seed // 100 % 2 == 0, "activation": seed % 5 > 0} if kind == "conv" else fixed.get(kind, {})
    c = recurrences.case(kind, seed, sizes, family, **options)
    state, io = contract.io if kind == "conv" else contract.state, contract.io
    exact = c._replace(S=stored(c.S, state), window=stored(c.window, io), params=stored(c.params))
    return Case(kind, exact, contract)


# --------------------------------------------------------------------------------------------------------- false alarms


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", CONTRACTS)
def test_what_computes_as_declared_is_never_rejected(name: str, kind: str) -> None:
    worst = 0.0
    for number, (family, order) in enumerate((f, o) for f in FAMILIES for o in orders(kind)):
        for seed in range(2):
            case = make_case(kind, 100 * number + seed, family, replace(CONTRACTS[name], order=order))
            for sums in SUMS:
                y, S = case.run(Machine(case.contract, sums, variant=seed))
                worst = np.fmax(worst, case.utilisation(y, S))
    print(f"{kind}, {name}: largest utilisation {worst:.3f}")
    assert worst <= 1


@pytest.mark.parametrize("kind", ["delta", "delta_channel"])
def test_the_bound_of_a_long_run_holds_and_does_not_grow_without_limit(kind: str) -> None:
    """150 tokens of the delta rule: products of its transitions are kept for 64 tokens, then begun anew."""
    case = make_case(kind, 3, "gentle", FP32, Sizes(b=1, t=150, k=16, v=4, h=2, g=1))
    assert case.utilisation(*case.run(Machine(case.contract))) <= 1
    assert case.utilisation(*faulty(case, "state in bf16", 3)) > 1
    (_, y_bound), (_, S_bound) = case.expected
    assert S_bound.max() < 1e-4 * np.abs(case.given.S).max()
    assert y_bound[:, -20:].max() < 4 * y_bound[:, 20:40].max()


# ----------------------------------------------------------------------------------------------------------- kill table

PRECISION = ("leak of 1 %", "state in bf16", "exp2 with 1.44", "tf32 dot")
LOGIC = (
    "bf16 accumulator",
    "token lost",
    "token added",
    "decay skipped once",
    "rejected token in one channel",
    "stale head",
)
OF_MAMBA = ("wrong dt_bias", "D missing on one head")
FAULTS = {
    "ssd": PRECISION + LOGIC + OF_MAMBA,
    "selective": PRECISION + LOGIC + OF_MAMBA,
    "delta": (*PRECISION, *LOGIC, "ring in bf16"),
    "delta_channel": (*PRECISION, *LOGIC, "ring in bf16"),
    "conv": ("leak of 1 %", "tf32 dot", "exp2 with 1.44", "token lost", "token added", "rejected token in one channel"),
    "shortconv": ("leak of 1 %", "state in bf16", "token lost", "token added", "rejected token in one channel"),
}

WITHIN_BF16 = ("state in bf16", "exp2 with 1.44", "tf32 dot", "bf16 accumulator", "D missing on one head", "ring in bf16")
"""Under a contract of a bf16 state: no fault, or a change that storing each token's state in bf16 may make as well."""


def faulty(case: Case, fault: str, seed: int) -> tuple[Any, Any]:
    """The outputs and the state of an implementation with one fault."""
    honest, params = Machine(case.contract), case.given.params
    match fault:
        case "leak of 1 %":
            S = case.given.S
            return case.run(honest, S=S + 0.01 * np.random.default_rng(seed).normal(size=S.shape) * np.abs(S).mean())
        case "state in bf16":
            return case.run(Machine(replace(case.contract, state="bf16", stored_every_token=True)))
        case "tf32 dot":
            return case.run(Machine(replace(case.contract, dot="tf32")))
        case "ring in bf16":
            return case.run(Machine(replace(case.contract, ring="bf16")))
        case "exp2 with 1.44" | "bf16 accumulator" | "decay skipped once":
            return case.run(Machine(case.contract, fault=fault))
        case "wrong dt_bias":
            return case.run(honest, params=replace(params, dt_bias=np.zeros_like(params.dt_bias)))
        case "D missing on one head":
            D = params.D.copy()
            D[-1] = 0
            return case.run(honest, params=replace(params, D=D))
    return wrong_tokens(case, fault)


def wrong_tokens(case: Case, fault: str) -> tuple[Any, Any]:
    """Right outputs, but the state of another number of tokens: everywhere, in one channel, or in one head."""
    honest, channel = Machine(case.contract), {"ssd": 2, "selective": 1, "conv": 1, "shortconv": 1}.get(case.kind, 3)
    window = case.given.window
    y, S = (a.copy() for a in case.run(honest))
    added = case.run(honest, window=concat(window, prefix(window, 1)))[1]
    match fault:
        case "token lost":
            S = case.run(honest, window=prefix(window, SIZES.t - 1))[1]
        case "token added":
            S = added
        case "rejected token in one channel":
            np.moveaxis(S, channel, 0)[0] = np.moveaxis(added, channel, 0)[0]
        case "stale head":
            S[:, 0] = case.given.S[:, 0]
        case _:
            raise AssertionError(f"no such fault: {fault}")
    return y, S


def kill_table(
    kind: str, declared: NumericContract, faults: tuple[str, ...], seeds: int
) -> dict[tuple[str, str, str], float]:
    """The share of draws that the bound rejects, by order, fault and family; printed."""
    table = {}
    for order in orders(kind):
        cases = {
            f: [make_case(kind, seed, f, replace(declared, order=order)) for seed in range(1, seeds + 1)] for f in FAMILIES
        }
        for fault in faults:
            if fault == "ring in bf16" and order == "sequential":
                continue  # no ring
            for family, drawn in cases.items():
                passed = [case.utilisation(*faulty(case, fault, seed)) <= 1 for seed, case in enumerate(drawn)]
                table[order, fault, family] = 1 - float(np.mean(passed))
            row = "   ".join(f"{family} {table[order, fault, family]:.2f}" for family in FAMILIES)
            print(f"{kind:10} {order:12} {fault:30} {row}")
    return table


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", ["fp32", "fp32 state, bf16 io"])
def test_every_fault_is_rejected_in_every_family_where_the_state_is_fp32(name: str, kind: str) -> None:
    print(f"\ndeclared: {name}")
    table = kill_table(kind, CONTRACTS[name], FAULTS[kind], seeds=3)
    assert {key: share for key, share in table.items() if share < 1} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_beyond_bf16_is_rejected_where_the_state_is_bf16(kind: str) -> None:
    print("\ndeclared: bf16")
    table = kill_table(kind, CONTRACTS["bf16"], FAULTS[kind], seeds=3)
    logic = {key: share for key, share in table.items() if key[1] not in WITHIN_BF16 and key[2] == "mamba"}
    assert {key: share for key, share in logic.items() if share < 1} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_128_still_shows_tf32(kind: str) -> None:
    """The bound of a sum grows with its length n, the error of rounded operands with its root: the hardest case for tf32."""
    sizes = Sizes(b=1, t=6, n=128, k=128, v=8, h=2, g=1, p=8)
    for order in orders(kind):
        for family in FAMILIES:
            case = make_case(kind, 7, family, replace(FP32, order=order), sizes)
            assert case.utilisation(*case.run(Machine(case.contract))) <= 1
            used = case.utilisation(*faulty(case, "tf32 dot", 7))
            print(f"{kind:10} {order:12} {family:8} tf32 dot: utilisation {used:.3g}")
            assert used > 1
