"""Decoders agree with plain decoding, whatever sequence of windows they are taken through."""

import pytest

from conformance.adapters import sequences as reference
from conformance.faults.decoding import sequences as faulty
from conformance.run.load import load
from property_tests.campaigns.campaign import groups
from property_tests.drawing.profiles import PROFILES
from property_tests.drawing.specs import Sizes
from property_tests.sessions.hunt import hunt
from property_tests.sessions.ledger import longest
from property_tests.sessions.machine import machine
from ssmspec_fast.cli.choices import METHODS
from ssmspec_ref.contract import Adapter, Decoding

CI = PROFILES["ci"]
ENGINE = "ssmspec_fast.adapters.sequences:adapter"
MIXED, TORCH, KERNELS = 10, 3, 4
"""Examples: of all methods over PyTorch's operations, of each method over these, of each over the interpreted kernels."""
SMALL = Sizes(window=4, cache=10, seeds=1, options=1, vocabulary=3, layers=1)


def of_group(adapter: Adapter, how: str) -> tuple[Decoding, ...]:
    return tuple(decoding for decoding in adapter.decodings if decoding.name.endswith(f"; {how}"))


def methods() -> list[str]:
    """The engine's methods of backtracking."""
    return [d.name.split("; ")[0] for d in of_group(load(ENGINE), "torch") if longest(d, 2) > 1]


def test_the_methods_are_those_of_the_engine_and_are_there_on_kernels_too() -> None:
    """The command line's, each with its variants; plain decoding is the other side of the action `plain`."""
    named = {name.split(", ")[0].split(" of ")[0].replace(" ", "-") for name in methods()}
    assert named == set(METHODS) - {"plain"}
    for how in ("kernels, bitwise", "kernels"):
        assert [d.name.split("; ")[0] for d in of_group(load(ENGINE), how) if longest(d, 2) > 1] == methods()


def test_a_quarter_of_the_examples_runs_on_interpreted_kernels() -> None:
    """Of those that the tests below count as they run them; nothing runs fewer on kernels, or many more elsewhere."""
    kernels, others = KERNELS * len(methods()), most(MIXED) + most(TORCH) * len(methods())
    assert 4 * kernels >= kernels + others


def most(examples: int) -> int:
    """Hypothesis runs more examples than it counts: those that it has run before, or that end early, do not count."""
    return 3 * examples


def test_the_methods_agree_with_plain_decoding_and_hand_over_to_each_other() -> None:
    adapter = load(ENGINE)
    made = machine(adapter, ENGINE, CI.sizes, [of_group(adapter, "torch")])
    assert (failure := hunt(made, CI.settings(max_examples=MIXED))) is None, failure
    assert MIXED <= made.totals.examples <= most(MIXED)
    assert len({name for name in made.totals.reached if name.startswith("from ")}) >= 2


@pytest.mark.parametrize("method", methods())
def test_a_method_agrees_with_plain_decoding(method: str) -> None:
    adapter = load(ENGINE)
    group = of_group(adapter, "torch")
    made = machine(adapter, ENGINE, CI.sizes, [group], next(d for d in group if d.name == f"{method}; torch"))
    assert (failure := hunt(made, CI.settings(max_examples=TORCH))) is None, failure
    assert made.totals.decodings[f"{method}; torch"] >= TORCH
    assert made.totals.examples <= most(TORCH)
    assert made.totals.reached["rule verify"] >= TORCH


@pytest.mark.parametrize(("number", "method"), list(enumerate(methods())))
def test_a_method_agrees_with_plain_decoding_on_interpreted_kernels(number: int, method: str) -> None:
    """In turn bitwise and in the fast mode; beside it and in exchange with it, another method of the same mode."""
    adapter, how = load(ENGINE), ("kernels, bitwise", "kernels")[number % 2]
    group = of_group(adapter, how)
    made = machine(adapter, ENGINE, SMALL, [group], next(d for d in group if d.name == f"{method}; {how}"))
    assert (failure := hunt(made, CI.settings(max_examples=KERNELS, stateful_step_count=5))) is None, failure
    assert made.totals.decodings[f"{method}; {how}"] >= KERNELS
    assert made.totals.reached["rule verify"] >= KERNELS


def test_the_references_paths_agree_with_plain_decoding() -> None:
    adapter = reference.adapter()
    made = machine(adapter, "conformance.adapters.sequences:adapter", CI.sizes, groups(adapter))
    assert hunt(made, CI.settings(max_examples=25)) is None


def test_a_right_decoder_among_the_faults_agrees() -> None:
    adapter = faulty.adapter()
    right = tuple(d for d in adapter.decodings if d.name == "Right")
    made = machine(adapter, "conformance.faults.decoding.sequences:adapter", CI.sizes, [right])
    assert hunt(made, CI.settings(max_examples=25)) is None
