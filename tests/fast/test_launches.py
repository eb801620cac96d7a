"""How many launches a step makes, counted without a device; what waits for a value or follows its shape cannot be counted."""

import json
from typing import Any

import pytest

from perf_gates.verdicts import gates

from .child import output_of

pytest.importorskip("triton")

GATES = gates.load()
ABLATED = ("chunk scan", "eager copy", "chunk scan, eager copy")
LIMITS = {limit.step: limit for limit in GATES.launches}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads(output_of("launches.py", without="TRITON_INTERPRET"))


def test_every_method_has_its_limits(found: dict[str, Any]) -> None:
    assert set(found) == {*LIMITS, *GATES.drafting, *ABLATED, "silent"}


@pytest.mark.parametrize("method", LIMITS)
def test_a_layer_makes_these_launches_and_no_other(method: str, found: dict[str, Any]) -> None:
    assert tuple(found[method]["layer"]) == LIMITS[method].layer


@pytest.mark.parametrize("method", LIMITS)
def test_beside_the_layers_a_step_makes_at_most_so_many(method: str, found: dict[str, Any]) -> None:
    kernels, operations = found[method]["step"]
    most = LIMITS[method].beside
    assert (kernels <= most[0], operations <= most[1]) == (True, True), found[method]["step"]


@pytest.mark.parametrize("drafter", GATES.drafting)
def test_drafting_makes_at_most_so_many(drafter: str, found: dict[str, Any]) -> None:
    assert found[drafter] <= GATES.drafting[drafter]


@pytest.mark.parametrize("method", ["replay", "tree", "buffer", "joint"])
def test_a_step_without_drafts_makes_the_launches_of_plain_decoding(method: str, found: dict[str, Any]) -> None:
    assert found["silent"][method] == found["silent"]["plain"]


@pytest.mark.parametrize("name", ABLATED)
def test_what_is_ablated_is_launched_again(name: str, found: dict[str, Any]) -> None:
    """A prompt's kernels scan the windows, or the fused one; the states are copied in the step, or in front of it."""
    of_prompts = [kernel for kernel in found[name]["kernels"] if "chunk" in kernel]
    assert bool(of_prompts) == ("chunk scan" in name)
    assert found[name]["copies"] == (0 if "eager copy" in name else 1)
