"""The timing of Kimi Delta Attention: what it launches at the shape of Kimi-Linear."""

import pytest

from perf_gates.gpu.kernels.steps import TREES
from perf_gates.gpu.rehearsal import rehearse
from perf_gates.static.shapes import BATCHES
from perf_gates.verdicts.targets import OF_THE_DELTA_RULE

CHAINS = [OF_THE_DELTA_RULE, "step", "scan of 5", "scan of 10", "window of 5"]


@pytest.mark.compiler
def test_each_number_of_rows_is_timed_in_chains_beside_the_plain_step_of_the_delta_rule_and_in_trees() -> None:
    found = [(timings, launches) for timings, launches in rehearse("kda")]
    told = [(timings[0].batch, [one.operation for one in timings]) for timings, _ in found]
    assert told == [(b, CHAINS) for b in BATCHES] + [(b, [f"tree of {n}"]) for n in TREES for b in BATCHES]
    for timings, launches in found:
        chain = timings[0].operation == OF_THE_DELTA_RULE
        names = {"delta_scan_kernel"} if chain else {"kda_pairs_kernel", "kda_tree_kernel"}
        assert {(one.name, one.grid[2]) for one in launches} == {(name, timings[0].batch) for name in names}
        assert {bool(one.kwargs.get("BOUNDED")) for one in launches} == ({True, False} if chain else {True})
