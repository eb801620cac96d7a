"""Kernels of others are called in the formats of engines: nothing is rounded on the way, and what goes wrong there shows."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.adapters import sglang
from conformance.adapters.flashinfer import CHANNELS, Reference
from conformance.adapters.peer_kernels.formats import ENGINES, formats, named
from conformance.adapters.peer_kernels.sources import Tensors
from conformance.cases import Case
from conformance.judge.draw import stored
from conformance.judge.verdict import judge
from conformance.suite.specification import Specification
from ssmspec_ref.contract import Capability, NumericContract, Verdict
from tests.peer_kernels import SGLang

from .judging import SPECIFICATION

torch = pytest.importorskip("torch")
TREE, STEP = SPECIFICATION["ssd.verify_tree"], SPECIFICATION["selective.step"]


def update(state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, dt_bias: Any, dt_softplus: bool) -> Any:
    """A selective state update in float32, whose output has the format of x."""
    x_, dt_, B_, C_, z_ = (None if a is None else a.float() for a in (x, dt, B, C, z))
    dt_ = dt_ if dt_bias is None else dt_ + dt_bias
    dt_ = torch.nn.functional.softplus(dt_) if dt_softplus else dt_
    after = torch.exp(dt_[..., None] * A) * state.float() + (dt_ * x_)[..., None] * B_[:, None]
    y = (after * C_[:, None]).sum(-1) + D * x_
    state.copy_(after.to(state.dtype))
    return (y if z_ is None else y * torch.nn.functional.silu(z_)).to(x.dtype)


def narrow(state: Any, x: Any, *rest: Any, **named: Any) -> Any:
    """Wrong: x dt is rounded to the format of x, which float32 activations never show."""
    dt, bias = rest[0].float(), named["dt_bias"]
    dt = dt if bias is None else dt + bias
    dt = torch.nn.functional.softplus(dt) if named["dt_softplus"] else dt
    rounded = (dt * x.float()).to(x.dtype).float() / torch.where(dt == 0, 1.0, dt)
    before = state.clone()
    y = update(before, x, *rest, **named)
    update(state, rounded, *rest, **named)
    return y


TREES = list(TREE.cases("smoke", sglang.STEP))


def count(specification: Specification, capability: Capability, cases: Iterable[Case]) -> int:
    """How many cases fail."""
    return sum(judge(specification, capability, case).verdict is Verdict.FAIL for case in cases)


def fails(kernels: SGLang, contract: NumericContract) -> int:
    return count(TREE, Capability(kernels.ssd_tree, contract, sglang.STEP), TREES)


def test_parents_in_bf16_pass_only_where_it_is_declared_that_every_state_is_stored() -> None:
    kept = NumericContract(state="bf16", softplus="log")
    assert fails(SGLang(state="bf16"), replace(kept, stored_every_token=True)) == 0
    assert fails(SGLang(state="bf16"), kept) > 0


@pytest.mark.parametrize("contract", list(formats(NumericContract(softplus="log"))), ids=str)
def test_trees_of_sglang_pass_in_every_format_and_a_lost_parent_fails(contract: NumericContract) -> None:
    every = replace(contract, stored_every_token=contract.state != "fp32")
    assert fails(SGLang("", contract.io, contract.state), every) == 0
    assert fails(SGLang("chain", contract.io, contract.state), every) > 0


def failed(run: Any, contract: NumericContract) -> int:
    capability = Capability(Reference(run, contract.io, contract.state).step, contract, CHANNELS)
    return count(STEP, capability, STEP.cases("smoke", CHANNELS))


@pytest.mark.parametrize("contract", list(formats(NumericContract())), ids=str)
def test_a_right_kernel_passes_in_every_format(contract: NumericContract) -> None:
    assert failed(update, contract) == 0


def test_a_product_in_bf16_shows_with_bf16_activations_and_with_no_others() -> None:
    assert failed(narrow, NumericContract()) == 0
    assert failed(narrow, NumericContract(io="bf16")) > 0


@pytest.mark.parametrize(("io", "state"), ENGINES)
def test_what_the_suite_draws_is_passed_on_without_rounding(io: str, state: str) -> None:
    tensors = Tensors("cpu", io, state)
    drawn = np.random.default_rng(1).standard_normal(100)
    x, S = stored(drawn, io), stored(drawn, state)  # type: ignore[arg-type]
    assert np.array_equal(tensors.back(tensors.active(x))[0], x)
    assert np.array_equal(tensors.back(tensors.held(S))[0], S)
    assert tensors.active(None) is None


def test_a_subject_says_its_formats() -> None:
    assert [named("update", contract) for contract in formats(NumericContract())] == [
        "update",
        "update, bf16",
        "update, bf16, bf16 state",
        "update, fp16",
    ]
    assert [contract.state for contract in formats(NumericContract(), states=False)] == ["fp32"] * 3
