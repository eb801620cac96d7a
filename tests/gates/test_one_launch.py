"""The shares of the step in one launch: every row exactly once, equal bytes; and its command without a GPU."""

from itertools import chain

import pytest

from perf_gates.gpu.one_launch import __main__ as command
from perf_gates.gpu.one_launch import nvrtc
from perf_gates.gpu.one_launch.shares import EARLY, QUADS, VOCABULARY, D, Share, dealt, shares


@pytest.mark.parametrize(("name", "total"), [("quad", QUADS), ("early", EARLY), ("out", D), ("head", VOCABULARY)])
def test_every_row_belongs_to_exactly_one_program(name: str, total: int) -> None:
    owned = chain.from_iterable(range(getattr(s, f"{name}0"), getattr(s, f"{name}1")) for s in shares())
    assert list(owned) == list(range(total))


def test_no_program_reads_more_than_one_percent_above_the_mean() -> None:
    each = [s.bytes for s in shares()]
    assert max(each) <= 1.01 * sum(each) / len(each)


def test_the_ring_holds_whole_stages_of_what_a_program_owns() -> None:
    """Two rows of the first product are a stage, so that a range of rows must be even; states fill two stages at most."""
    for s in shares():
        assert (s.early1 - s.early0) % 2 == 0
        assert 10240 < 16 * 128 * (s.quad1 - s.quad0) <= 2 * 10240


def test_planted_a_row_that_nobody_owns_is_refused() -> None:
    with pytest.raises(ValueError, match="9 rows of 10"):
        dealt(10, [4, 5])


def test_another_device_is_refused_by_its_number_of_multiprocessors() -> None:
    with pytest.raises(ValueError, match="has 108"):
        shares(108)


def test_the_argument_has_the_fields_of_the_kernel_in_their_order() -> None:
    """A pointer that moved would be read as another: the names in the source are compared."""
    body = nvrtc.source().split("struct Model {")[1].split("};")[0]
    lines = [line.split("//")[0] for line in body.splitlines()]
    fields = " ".join(lines).replace("const", "").replace("*", " ")
    names = [part.split()[-1] for part in fields.replace(";", ",").split(",") if part.strip()]
    assert names == [name for name, _ in command.Model._fields_]


def test_the_shares_have_the_fields_of_the_kernel_in_their_order() -> None:
    body = nvrtc.source().split("struct Share { int ")[1].split(";")[0]
    assert body.split(", ") == list(Share._fields)
