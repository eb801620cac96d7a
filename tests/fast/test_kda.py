"""Kimi Delta Attention in the engine: its gates, twelve windows in a row by every method, and the faults that others had."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.judge.verdict import judge
from conformance.run.plan import Selection, plan
from property_tests.sessions.session import Deviation
from ssmspec_fast.adapters import decoder as adapter_decoder
from ssmspec_fast.adapters import methods
from ssmspec_fast.adapters.engine import operations_of
from ssmspec_fast.layers import kda
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.models.config import KDAConfig
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations import DeltaInputs, DeltaParams, KDAParams
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_fast.operations.torch_recurrences import KDA, Delta
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject, Verdict

from .drafters import CHAINS
from .models import drawn
from .recurrence_runs import leaves_what_plain_decoding_leaves, played, session

FORMS: dict[str, dict[str, Any]] = {
    "softplus": {},
    "low rank": {"rank": 2, "decay": "normal"},
    "bound of 5": {"bound": -5.0},
    "bound of 1, steep": {"bound": -1.0, "rank": 2, "decay": "hard"},
}
PATHS = ("snapshots", "joint", "joint by lag", "activation replay", "replay buffer of two windows")


def bounded(model: Model, bound: float) -> Model:
    """The model with a lower bound on all its log decays."""

    def changed(block: Any) -> Any:
        (mixer,) = block.mixers
        if not isinstance(mixer, kda.KDA):
            return block
        params = mixer.params._replace(lower_bound=bound)
        return replace(block, mixers=(replace(mixer, params=params, config=replace(mixer.config, lower_bound=bound)),))

    return replace(model, blocks=tuple(map(changed, model.blocks)))


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("method", CHAINS)
def test_twelve_windows_in_a_row_leave_what_plain_decoding_leaves(method: str, bound: float | None) -> None:
    """In a batch with padding, some drafts accepted in each window: every token, convolution and state, bit for bit."""
    model = drawn("kimi_linear")
    leaves_what_plain_decoding_leaves(model if bound is None else bounded(model, bound), method)


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("form", FORMS)
def test_both_gates_are_those_of_the_reference_by_every_method(form: str, method: str) -> None:
    played(session("kda", method, FORMS[form]))


def clamped_softplus(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    """The softplus gate, cut at the bound. lightseekorg/tokenspeed#847."""
    whole = RIGHT(self, g, params._replace(lower_bound=None))
    return whole if params.lower_bound is None else whole.clamp_min(params.lower_bound)


def rate_after_the_sigmoid(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    rate, bound = -params.A[:, None], params.lower_bound or 0.0
    return RIGHT(self, g, params) if params.lower_bound is None else bound * rate * torch.sigmoid(g + params.dt_bias)


def one_decay_a_head(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    return RIGHT(self, g, params).mean(-1, keepdim=True).expand(g.shape)


def bias_of_the_first_head(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    return RIGHT(self, g, params._replace(dt_bias=params.dt_bias[:1]))


def rate_by_channel(self: KDA, g: Tensor, params: KDAParams) -> Tensor:
    """A of the heads, read along the channels."""
    places = torch.arange(g.shape[-1]) % len(params.A)
    made: Tensor = RIGHT(self, g.transpose(-1, -2), params._replace(A=params.A[places], dt_bias=params.dt_bias.T))
    return made.transpose(-1, -2)


RIGHT = KDA.log_decay
GATES = {
    clamped_softplus: ("bound of 5", "bound of 1, steep"),
    rate_after_the_sigmoid: ("bound of 5", "bound of 1, steep"),
    one_decay_a_head: ("softplus", "bound of 5"),
    bias_of_the_first_head: ("softplus", "bound of 5"),
    rate_by_channel: ("softplus", "bound of 5"),
}


@pytest.mark.parametrize(("fault", "form"), [(fault, form) for fault, forms in GATES.items() for form in forms])
def test_a_fault_planted_in_the_gate_is_caught(
    fault: Callable[..., Tensor], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KDA, "log_decay", fault)
    with pytest.raises(Deviation):
        played(session("kda", "snapshots", FORMS[form]))


def test_silu_for_the_sigmoid_of_the_output_gate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kda.KDA, "activation", "silu")
    with pytest.raises(Deviation):
        played(session("kda", "snapshots", {}))


def test_the_clamp_is_exact_where_no_decay_reaches_the_bound() -> None:
    """Why the fault lives: far from the bound both forms of a gate agree in sign and order, and a model only gets worse."""
    rule, params = KDA(Arithmetic(False)), KDAParams(-torch.ones(1), torch.zeros(1, 3), lower_bound=-5.0)
    g = torch.tensor([[[[-20.0, 0.0, 20.0]]]])
    right, clamped = rule.log_decay(g, params), clamped_softplus(rule, g, params)
    assert right.flatten().tolist() == pytest.approx([0.0, -2.5, -5.0], abs=1e-6)
    assert clamped.flatten().tolist() == pytest.approx([0.0, -0.6931, -5.0], abs=1e-4)


class KeepsRejectedInputs(Snapshots):
    """The windows of the convolutions keep what was rejected. vllm-project/vllm#50272."""

    def commit(self, pools: Any, feed: Any, verdict: Any, operations: Any) -> None:
        super().commit(pools, feed, verdict, WholeWindow(operations, feed.tokens.shape[1]))


class WholeWindow:
    """Operations whose convolutions advance by all inputs of a window."""

    def __init__(self, operations: Any, t: int) -> None:
        self.operations, self.t = operations, t

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operations, name)

    def conv_commit(self, M: Any, u: Any, *, advanced: Any, slots: Any) -> None:
        self.operations.conv_commit(M, u, advanced=torch.where(advanced > 0, self.t, 0), slots=slots)


class KeepsRejectedState(Snapshots):
    """The state is that after the whole window, as if it could be trimmed like a cache. ml-explore/mlx-lm#1486."""

    def entry(self, pools: Any, slots: Any, steps: Any) -> Any:
        return super().entry(pools, slots, steps if steps.shape[1] > 1 else torch.full_like(steps, pools.kept.room - 2))


class ReplaysTheStateOnly(ActivationReplay):
    """The accepted tokens are replayed into the state; the convolutions stay before the window. ekryski/mlx-swift-lm#218."""

    def commit(self, pools: Any, feed: Any, verdict: Any, operations: Any) -> None:
        super().commit(pools, feed, verdict, NoWindow(operations, 0))


class NoWindow(WholeWindow):
    def conv_commit(self, M: Any, u: Any, *, advanced: Any, slots: Any) -> None:
        """Nothing."""


class RollsBackKeysOnly(Snapshots):
    """Of the three convolutions that of the values keeps what was rejected."""

    def commit(self, pools: Any, feed: Any, verdict: Any, operations: Any) -> None:
        super().commit(pools, feed, verdict, ValuesKept(operations, feed.tokens.shape[1]))


class ValuesKept(WholeWindow):
    def conv_commit(self, M: Any, u: Any, *, advanced: Any, slots: Any) -> None:
        whole = M.clone()
        super().conv_commit(whole, u, advanced=advanced, slots=slots)
        self.operations.conv_commit(M, u, advanced=advanced, slots=slots)
        last = M.shape[1] // 3
        M[:, -last:] = whole[:, -last:]


FAULTS: tuple[Callable[[], Method], ...] = (
    KeepsRejectedInputs,
    KeepsRejectedState,
    ReplaysTheStateOnly,
    RollsBackKeysOnly,
)


def verdicts(make: Callable[[], Method]) -> set[Verdict]:
    """Of the first cases of Kimi Delta Attention in which a part of a window is accepted."""
    decoding = partial(adapter_decoder.Decoding, lambda t: make(), operations_of(True), "cpu", 1)
    only = Limits(options={"kind": ("kda",), "accept": ("mixed",)})
    subject = Subject("planted", {"speculate.chain": Capability(decoding, NumericContract(), only)})
    jobs = plan({"planted": Adapter("planted", "1", (subject,))}, Selection(operation="speculate.chain"))[0][:2]
    assert jobs
    return {judge(job.specification, job.capability, job.case).verdict for job in jobs}


@pytest.mark.parametrize("make", FAULTS, ids=lambda make: make.__name__)
def test_a_rollback_that_others_got_wrong_is_caught(make: Callable[[], Method]) -> None:
    assert Verdict.FAIL in verdicts(make)


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


def test_every_method_of_the_adapters_is_played() -> None:
    assert set(PATHS) <= set(methods.CHAINS)
