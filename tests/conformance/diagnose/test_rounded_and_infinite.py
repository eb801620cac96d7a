"""Fewer bits than declared, values that are not finite, and mistakes of trees, packed runs and tiles are named in words."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.facts import facts
from conformance.faults.catalogue import of_name
from conformance.faults.right import packed_scan
from conformance.judge.draw import stored
from conformance.suite import find
from ssmspec_ref import delta, ssd
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.functions import softplus
from ssmspec_ref.records import each, prefix
from ssmspec_ref.shapes import Ancestors, Array
from ssmspec_ref.ssd import tree as ssd_tree

from .invented import single

FP32 = NumericContract()
BF16 = NumericContract(state="bf16", order="chunked")


def told(run: Callable[..., Any], case: str, contract: NumericContract = FP32) -> dict[str, str]:
    """The facts about a bug, searched for on one failing case."""
    specification, failing = find(case)
    return facts(specification, Capability(run, contract), failing, [failing], [])


def chunks_in_bf16(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """The state goes from the first 4 tokens to the others in bf16."""
    y, held = ssd.scan(S, prefix(window, 4), params)
    y_tail, S_next = ssd.scan(stored(held, "bf16"), each(lambda a: a[:, 4:], window), params)
    return single(np.concatenate([y, y_tail], axis=1), S_next)


def through_fp16(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    y, S_next = ssd.step(S, token, params)
    return np.float32(y), stored(stored(S_next, "fp16"), "bf16")


def overflowing(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """softplus as log(1 + exp(x)) in fp32, without a threshold."""
    raw = np.float32(token.dt if params.dt_bias is None else token.dt + params.dt_bias)
    with np.errstate(over="ignore"):
        large = np.isinf(np.exp(raw))
    y, S_next = ssd.step(S, replace(token, dt=softplus(np.float64(raw))), replace(params, dt_bias=None, dt_softplus=False))
    y[large] = np.inf
    return single(y, S_next)


def last_above(S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
    """A node hangs on the last node one level above."""
    seen = np.zeros_like(ancestors)
    for b, mask in enumerate(ancestors):
        depth = mask.sum(axis=1)
        for node in range(len(mask)):
            above = [n for n in range(node) if depth[n] == depth[node] - 1 and mask[n, n]]
            seen[b, node] = seen[b, above[-1]] if above else False
            seen[b, node, node] = mask[node, node]
    return np.float32(ssd_tree.scan(S, window, seen, params))


def counted(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, ...]:
    some = np.diff(bounds) > 0
    place = np.where(some, np.cumsum(some) - some, np.arange(len(some)))
    return single(*packed_scan("ssd", S[place], run, bounds, fresh, params))


def clamped(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    return single(*delta.step(S, replace(token, g=np.maximum(token.g, -5.0)), params))


def as_float32(run: Callable[..., Any], *given: Any) -> tuple[Array, ...]:
    return single(*run(*given))


NAMED: dict[str, tuple[Any, ...]] = {
    "a state in bf16 between chunks": (
        chunks_in_bf16, "ssd.scan/b2,t9,g1,h2,p3,n4/plain/gentle/s0", "it would hold under state=bf16",
    ),
    "a state by way of fp16": (
        through_fp16, "ssd.step/b5,g2,h6,p5,n4/plain/gentle/s0", "S is rounded to fp16 first, and then to bf16", BF16,
    ),
    "a softplus that overflows": (
        overflowing, "ssd.step/b1,g1,h5,p1,n1/plain/wide/s4", "every failing case has dt + dt_bias above 88.7",
    ),
    "the last node above": (
        last_above, "ssd.verify_tree/b3,t8,g1,h2,p3,n4/plain/gentle/s0",
        "as if the parent of a node were the last node one level above it",
    ),
    "sequences that are not empty": (
        counted, "ssd.scan_packed/b6,t4,g1,h2,p3,n4/plain/gentle/s0",
        "as if a sequence began from S[c], where c counts the sequences before it that are not empty",
    ),
    "a clamped decay": (clamped, "delta.step/b3,g1,h2,k3,v4/plain/strong/s0", "as if the log decay were at least -5"),
    "an offset without its tile": (
        partial(as_float32, of_name("gate_of_the_first_tile").capability.run),
        "delta.step/b3,g1,h1,k33,v33/gate=channel/gentle/s0",
        "as if key channels from 32 on read g from key channel 0 on again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_the_cause_is_named(name: str) -> None:
    run, case, words, *contract = NAMED[name]
    found = told(run, case, *contract)
    assert words in found["behaves"], found


def test_a_wrong_value_is_not_taken_for_a_rounded_one() -> None:
    """The gates of another tile are off by a percent, which bounds of bf16 would allow."""
    run = partial(as_float32, of_name("skip_of_the_first_tile").capability.run)
    found = told(run, "ssd.scan/b3,t2,g1,h1,p33,n33/D=channel/gentle/s0")
    assert "would hold" not in found["behaves"]


def test_a_failure_of_a_packed_run_lists_its_bounds_and_a_tree_the_nodes_that_are_seen() -> None:
    found = told(counted, "ssd.scan_packed/b6,t4,g1,h2,p3,n4/plain/gentle/s0")
    assert found["inputs"].startswith("bounds=0 "), found
    assert "fresh=" in found["inputs"], found
    found = told(last_above, "ssd.verify_tree/b3,t8,g1,h2,p3,n4/plain/gentle/s0")
    assert found["inputs"].startswith("ancestors of node "), found


def test_a_value_that_is_not_finite_is_shown_with_the_one_that_is_expected() -> None:
    found = told(overflowing, "ssd.step/b1,g1,h5,p1,n1/plain/wide/s4")
    assert found["values"].endswith("got inf"), found
