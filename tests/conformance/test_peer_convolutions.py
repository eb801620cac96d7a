"""The adapter of causal-conv1d, over references that are right, or wrong in one named way, in each format."""

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.adapters.causal_conv1d import References, subjects
from conformance.adapters.peer_kernels.formats import formats
from conformance.judge.verdict import judge
from ssmspec_ref.contract import NumericContract, Verdict

from .judging import SPECIFICATION

torch = pytest.importorskip("torch")
CONTRACTS = list(formats(NumericContract(), states=False))


def read(window: Any, weight: Any, bias: Any, activation: str | None, form: Any, sums: Any = torch.float32) -> Any:
    """The outputs over all columns but the first w - 1; `sums` is the format of the products and their sum."""
    pieces = window.float().unfold(2, weight.shape[1], 1)
    y = (pieces * weight[:, None]).to(sums).sum(-1).float() + (0 if bias is None else bias[:, None])
    return (torch.nn.functional.silu(y) if activation else y).to(form)


def references(fault: str) -> SimpleNamespace:
    """The two functions. Faults: "begin" starts from zeros, "kept" leaves the window, "bias" is not added, "late" is a ring
    read one place late, "written" a ring that is not written, "narrow" adds in the format of the inputs."""

    def ref(x: Any, weight: Any, bias: Any, activation: str | None, initial_states: Any, return_final_states: bool) -> Any:
        begin = torch.zeros_like(initial_states) if fault == "begin" else initial_states
        whole = torch.cat([begin, x], dim=2)
        y = read(whole, weight, None if fault == "bias" else bias, activation, x.dtype)
        return y, initial_states if fault == "kept" else whole[:, :, whole.shape[2] - begin.shape[2] :]

    def update(x: Any, state: Any, weight: Any, bias: Any, activation: str | None, cache_seqlens: Any = None) -> Any:
        one, x = x.dim() == 2, x if x.dim() == 3 else x[:, :, None]
        kept, length = weight.shape[1] - 1, state.shape[2]
        if cache_seqlens is None:
            whole = torch.cat([state, x], dim=2)
            state.copy_(whole[:, :, -length:])
        else:
            first = cache_seqlens.long()[:, None] + (fault == "late")
            before, at = (torch.remainder(first + torch.arange(*ends), length) for ends in ((-kept, 0), (0, x.shape[2])))
            before, at = (places[:, None].expand(-1, x.shape[1], -1) for places in (before, at))
            whole = torch.cat([state.gather(2, before), x], dim=2)
            if fault != "written":
                state.scatter_(2, at, x)
        y = read(whole, weight, bias, activation, x.dtype, x.dtype if fault == "narrow" else torch.float32)
        return y[:, :, 0] if one else y

    return SimpleNamespace(causal_conv1d_ref=ref, causal_conv1d_update_ref=update)


def failed(fault: str, subject: str, operation: str, contract: NumericContract) -> int:
    made = {
        s.name.partition(", bf16")[0].partition(", fp16")[0]: s
        for s in subjects(References(references(fault), contract.io), contract)
    }
    capability = made[subject].capabilities[operation]
    cases = SPECIFICATION[operation].cases("smoke", capability.limits)
    return sum(judge(SPECIFICATION[operation], capability, case).verdict is Verdict.FAIL for case in cases)


PLAIN, UPDATE, RING = "causal_conv1d_ref", "causal_conv1d_update_ref", "causal_conv1d_update_ref, ring"


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
@pytest.mark.parametrize("subject", [PLAIN, UPDATE, RING])
def test_right_references_pass_in_every_format(subject: str, contract: NumericContract) -> None:
    assert failed("", subject, "conv.scan", contract) == 0
    assert subject == PLAIN or failed("", subject, "conv.step", contract) == 0


@pytest.mark.parametrize(
    ("fault", "subject"),
    [("begin", PLAIN), ("kept", PLAIN), ("bias", PLAIN), ("late", RING), ("written", RING), ("narrow", UPDATE)],
)
def test_a_wrong_reference_fails(fault: str, subject: str) -> None:
    assert failed(fault, subject, "conv.scan", CONTRACTS[1]) > 0


def test_sums_in_the_format_of_the_inputs_show_with_narrow_inputs_only() -> None:
    assert failed("narrow", UPDATE, "conv.scan", CONTRACTS[0]) == 0
