"""Decoders agree with plain decoding, whatever sequence of windows they are taken through."""

import pytest

from conformance.adapters import sequences as reference
from conformance.faults import sequences as faulty
from conformance.load import load
from property_tests.campaign import groups
from property_tests.hunt import hunt
from property_tests.machine import machine
from property_tests.profiles import PROFILES
from property_tests.specs import Sizes
from ssmspec_ref.contract import Adapter, Decoding

CI = PROFILES["ci"]
ENGINE = "ssmspec_fast.adapter_sequences:adapter"
EXAMPLES = {"torch": 45, "kernels, bitwise": 9, "kernels": 9}
"""Of the engine, by what its methods run on."""


def of_group(adapter: Adapter, how: str) -> list[Decoding]:
    return [decoding for decoding in adapter.decodings if decoding.name.endswith(f"; {how}")]


def test_a_quarter_of_the_examples_runs_on_interpreted_kernels() -> None:
    assert 4 * (sum(EXAMPLES.values()) - EXAMPLES["torch"]) >= sum(EXAMPLES.values())
    adapter = load(ENGINE)
    assert {name for how in EXAMPLES for name in (d.name for d in of_group(adapter, how))} == {
        d.name for d in adapter.decodings
    }


@pytest.mark.parametrize("how", EXAMPLES)
def test_the_engine_agrees_with_plain_decoding(how: str) -> None:
    adapter = load(ENGINE)
    sizes = CI.sizes if how == "torch" else Sizes(window=4, cache=10, seeds=1, options=1, vocabulary=3, layers=1)
    made = machine(adapter, ENGINE, sizes, [tuple(of_group(adapter, how))])
    failure = hunt(made, CI.settings(max_examples=EXAMPLES[how], stateful_step_count=CI.steps if how == "torch" else 5))
    assert failure is None, failure
    assert made.totals.examples >= EXAMPLES[how]
    assert made.totals.reached["rule verify"] >= EXAMPLES[how]
    assert made.totals.reached["rule hand_over"] >= (how == "torch")


def test_the_references_paths_agree_with_plain_decoding() -> None:
    adapter = reference.adapter()
    made = machine(adapter, "conformance.adapters.sequences:adapter", CI.sizes, groups(adapter))
    assert hunt(made, CI.settings(max_examples=25)) is None


def test_a_right_decoder_among_the_faults_agrees() -> None:
    adapter = faulty.adapter()
    right = tuple(d for d in adapter.decodings if d.name == "Right")
    made = machine(adapter, "conformance.faults.sequences:adapter", CI.sizes, [right])
    assert hunt(made, CI.settings(max_examples=25)) is None
