"""The timing of Kimi Delta Attention: what it launches at the shape of Kimi-Linear, and how its figures are printed."""

from perf_gates.gpu.kernels import kda
from perf_gates.gpu.kernels.steps import Timing
from perf_gates.gpu.rehearsal import rehearse
from perf_gates.static.shapes import BATCHES


def test_each_number_of_rows_is_timed_beside_the_plain_step_of_the_delta_rule() -> None:
    cases = [*rehearse("kda")]
    assert [timings[0].batch for timings, _ in cases] == [*BATCHES]
    for timings, launches in cases:
        assert [one.operation for one in timings] == [kda.PLAIN, "step", "scan of 5", "window of 5, not written"]
        assert {(one.name, one.grid[2]) for one in launches} == {
            (name, timings[0].batch) for name in ("delta_scan_kernel", "kda_scan_kernel")
        }
        assert all(one.kwargs["BOUNDED"] for one in launches if one.name == "kda_scan_kernel")


def test_a_line_holds_the_time_of_the_bytes_and_the_ratio_to_the_plain_step() -> None:
    plain, scan = Timing("m", kda.PLAIN, 4, 2.0, 4000), Timing("m", "scan of 5", 4, 3.0, 5000)
    first, second = kda.lines([plain, scan], copy=2500.0)
    assert " ".join(first.split()) == "4 rows step of the delta rule 2.00 us bytes 1.60 us 0.80 of copy 1.000 plain steps"
    assert " ".join(second.split()) == "4 rows scan of 5 3.00 us bytes 2.00 us 0.67 of copy 1.500 plain steps"
