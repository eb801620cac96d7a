"""Kimi Delta Attention in the engine: the faults of rollback that others had, its special case, and the size of its ring."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.judge.verdict import judge
from conformance.run.plan import Selection, plan
from ssmspec_fast.adapters import decoder as adapter_decoder
from ssmspec_fast.adapters.engine import operations_of
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.models.config import KDAConfig
from ssmspec_fast.operations import DeltaInputs, DeltaParams, KDAParams
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.operations.torch_recurrences import KDA, Delta
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject, Verdict

from .models import drawn
from .rollbacks import ROLLBACKS


def verdicts(make: Callable[[], Method]) -> set[Verdict]:
    """Of the first cases of Kimi Delta Attention in which a part of a window is accepted."""
    decoding = partial(adapter_decoder.Decoding, lambda t: make(), operations_of(True), "cpu", 1)
    only = Limits(options={"kind": ("kda",), "accept": ("mixed",)})
    subject = Subject("planted", {"speculate.chain": Capability(decoding, NumericContract(), only)})
    jobs = plan({"planted": Adapter("planted", "1", (subject,))}, Selection(operation="speculate.chain"))[0][:2]
    assert jobs
    return {judge(job.specification, job.capability, job.case).verdict for job in jobs}


@pytest.mark.parametrize("name", ROLLBACKS)
def test_a_rollback_that_others_got_wrong_is_caught(name: str) -> None:
    assert Verdict.FAIL in verdicts(ROLLBACKS[name])


@pytest.mark.parametrize("make", [Snapshots, ActivationReplay])
def test_the_right_rollback_passes_the_same_cases(make: Callable[[], Method]) -> None:
    assert verdicts(make) == {Verdict.PASS}


RUNS: dict[str, Callable[..., Tensor]] = {
    "scan": lambda rule, S, *given: rule.scan(S, *given, slots=SLOTS),
    "snapshots": lambda rule, S, *given: rule.snapshots(S, *given, PLACES, slots=SLOTS),
    "tree": lambda rule, S, *given: rule.tree(S, *given, PARENTS, TorchOperations().tree_mask(PARENTS)[0], slots=SLOTS),
}
SLOTS, PARENTS = torch.tensor([3, 1]), torch.tensor([[-1, 0, 0, 1, 3], [-1, 0, 1, 1, -2]])
PLACES = torch.tensor([[0, 2, 4, 5, 6], [-1, -1, -1, -1, -1]])


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_equal_decays_of_all_channels_are_the_decay_of_a_head(run: str, bitwise: bool) -> None:
    """Gated DeltaNet is the special case, bit for bit."""
    b, t, g, h, k, v = 2, 5, 2, 4, 3, 6
    random = torch.Generator().manual_seed(5)
    sizes = (b, t, g, k), (b, t, g, k), (b, t, h, v), (b, t, h), (b, t, h)
    inputs = DeltaInputs(*(torch.randn(shape, generator=random) for shape in sizes))
    A, bias, S = (torch.randn(shape, generator=random) for shape in ((h,), (h,), (7, h, k, v)))
    wide = inputs._replace(g=inputs.g[..., None].expand(b, t, h, k))
    one, other = S.clone(), S.clone()
    first = RUNS[run](Delta(Arithmetic(bitwise)), one, inputs, DeltaParams(-A.abs(), bias))
    second = RUNS[run](KDA(Arithmetic(bitwise)), other, wide, KDAParams(-A.abs(), bias[:, None].expand(h, k)))
    assert torch.equal(first, second)
    assert torch.equal(one, other)
    assert torch.equal(one, S) == (run == "tree")


def test_a_ring_holds_a_log_decay_for_each_key_channel() -> None:
    """Per token k in the type of the activations, and u and g in fp32; Gated DeltaNet has one g for each head."""
    config = KDAConfig(3, 3, 6, 6, 4, 1e-5)
    assert config.ring_sizes == (3 * 6, 3 * (6 + 6))
    layer: Any = drawn("kimi_linear").mixers[0]
    assert [tuple(x.shape) for x in layer.room(lambda *shape: torch.empty(shape))] == [(3, 6), (3, 6), (3, 6), (3, 6), (3,)]
