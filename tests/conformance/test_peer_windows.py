"""What the adapters of vLLM and SGLang add to the kernels is right: kernels by the reference pass, wrong ones fail."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conformance.adapters.peer_kernels import sglang_rings, sglang_windows, vllm_windows
from conformance.adapters.peer_kernels.pools import Pool, with_oldest
from conformance.adapters.peer_kernels.sources import Tensors
from conformance.judge.verdict import judge
from conformance.suite import of_operation
from ssmspec_ref import tree
from ssmspec_ref.contract import Capability, Limits, NumericContract, Verdict
from tests.peer_kernels import VLLM, SGLang

MAMBA2 = Limits({"kind": ("mamba2",)}, {"t": (1, 7)})


def verdicts(operation: str, run: Any) -> list[Verdict]:
    """Every fourth case of the tier smoke, of windows up to 7 tokens."""
    wanted = next(s for s in of_operation(operation) if s.fixed.get("kind", "mamba2") == "mamba2")
    capability = Capability(run, NumericContract(), MAMBA2)
    limits = Limits({}, MAMBA2.sizes)
    return [judge(wanted, capability, case).verdict for case in list(wanted.cases("smoke", limits))[::4]]


def runs(kernels: Any, windows: Any) -> dict[str, Any]:
    return {
        "ssd.verify_snapshots": partial(windows.Snapshots, kernels, "ssd"),
        "ssd.buffered_step": partial(vllm_windows.Ring, kernels, 5),
        "speculate.chain": partial(windows.Layer, kernels),
        "speculate.tree": partial(windows.Layer, kernels),
        "ssd.verify_tree": getattr(kernels, "ssd_tree", None),
    }


RIGHT = [(VLLM(), vllm_windows, name) for name in ("ssd.verify_snapshots", "speculate.chain", "ssd.buffered_step")]
RIGHT += [
    (SGLang(), sglang_windows, name)
    for name in ("ssd.verify_snapshots", "speculate.chain", "speculate.tree", "ssd.verify_tree")
]


@pytest.mark.parametrize(("kernels", "windows", "operation"), RIGHT)
def test_windows_pass_where_the_kernels_of_a_peer_are_right(kernels: Any, windows: Any, operation: str) -> None:
    assert set(verdicts(operation, runs(kernels, windows)[operation])) == {Verdict.PASS}


@pytest.mark.parametrize(
    ("kernels", "windows", "operation"),
    [
        (VLLM("first"), vllm_windows, "ssd.verify_snapshots"),
        (VLLM("last"), vllm_windows, "ssd.verify_snapshots"),
        (VLLM("shift"), vllm_windows, "speculate.chain"),
        (VLLM("unfolded"), vllm_windows, "ssd.buffered_step"),
        (VLLM("undecayed"), vllm_windows, "ssd.buffered_step"),
        (SGLang("chain"), sglang_windows, "ssd.verify_tree"),
        (SGLang("root"), sglang_windows, "speculate.tree"),
        (SGLang("window"), sglang_windows, "speculate.chain"),
    ],
    ids=lambda value: getattr(value, "fault", ""),
)
def test_a_peer_that_is_wrong_in_one_way_fails_through_its_adapter(kernels: Any, windows: Any, operation: str) -> None:
    assert Verdict.FAIL in verdicts(operation, runs(kernels, windows)[operation])


def test_raw_gates_make_the_gates_that_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As kernels make them: g = -e^A_log softplus(a + dt_bias), with softplus(x) = x above 20, and beta = sigmoid(b)."""
    rate = float(torch.tensor(sglang_rings.A_LOG).exp())
    monkeypatch.setattr(sglang_rings, "module", lambda _: SimpleNamespace(exp_at=lambda x, device: rate))
    g = -torch.tensor([0.0, 3e-6, 0.004, 0.31, 60.0]).repeat(2, 1)
    beta = torch.tensor([0.5, 1e-3, 0.9, 0.02, 0.999]).repeat(2, 1)
    raw = sglang_rings.Gates(Tensors("cpu"))(g, beta)

    def made(raw: dict[str, Any]) -> tuple[Any, Any]:
        x = raw["a"] + raw["dt_bias"]
        return -rate * torch.where(x <= 20, torch.log(1 + torch.exp(x)), x), torch.sigmoid(raw["b"])

    for came, given in zip(made(raw), (g, beta), strict=True):
        torch.testing.assert_close(came, given, rtol=2**-21, atol=0)
    nothing = made(sglang_rings.without_effect(raw))
    assert not nothing[0].any()
    assert not nothing[1].any()


def test_first_children_and_next_siblings_lead_back_to_the_parents() -> None:
    """Climbing the links as a kernel does, over trees of every shape up to five nodes, padding behind them."""
    shapes = [[-1]]
    for size in range(1, 5):
        shapes += [[*shape, parent] for shape in shapes if len(shape) == size for parent in range(size)]
    for shape in shapes:
        parents = np.array([[*shape, tree.PADDING]])
        child, sibling = sglang_windows.links(parents)
        found = np.full(len(shape), -1)
        for node in range(len(shape)):
            if child[0, node] >= 0:
                found[child[0, node]] = node
            if sibling[0, node] >= 0:
                found[sibling[0, node]] = found[node]
        assert found.tolist() == shape
        assert child[0, -1] == sibling[0, -1] == -1


def test_the_node_accepted_last_is_the_end_of_the_path_and_none_where_nothing_is() -> None:
    path = np.array([[0, 2, 5], [0, -1, -1], [-1, -1, -1]])
    assert sglang_windows.last(np.array([3, 1, 0]), path).tolist() == [5, 0, -1]


def test_a_pool_holds_rows_out_of_order_and_nan_in_every_slot_that_is_not_theirs() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    pool = Pool(Tensors("cpu"), rows, first=1, room=2)
    assert pool.slots[:, 0].tolist() == [9, 5, 1]
    assert pool.rows().tolist() == rows.tolist()
    assert pool.states.isnan().any(dim=1).sum() == len(pool.states) - 3
    pool.states[pool.slots[1, 1]] = 7.0
    assert pool.at(torch.tensor([0, 1, 0])).tolist() == [[0, 1], [7, 7], [4, 5]]


@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_the_oldest_column_comes_from_the_window_or_from_the_inputs(tokens: int) -> None:
    run = torch.arange(3.0 + tokens)[None, None]
    M, u = run[..., :3], run[..., 3:]
    assert with_oldest(M, u, run[..., -2:]).tolist() == run[..., -3:].tolist()
