"""CI runs one of three planted faults of every test that plants them by its parameters; the night runs the others."""

from dataclasses import dataclass, field
from typing import Any

from tests.kernels.conftest import THIRD, leave_planted_faults_to_the_night


@dataclass
class Item:
    nodeid: str
    marks: list[str] = field(default_factory=list)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark.name)


def test_every_third_planted_fault_stays_and_nothing_else_goes() -> None:
    planted = [Item(f"tests/kernels/test_a.py::test_planted_fault_is_caught[{i}]") for i in range(7)]
    others = [Item("tests/kernels/test_a.py::test_planted_sums_are_caught"), Item("tests/kernels/test_planted.py::test_a[0]")]
    another = [Item("tests/kernels/test_b.py::test_a_planted_fault_is_caught[0]")]
    items: Any = [*planted[:3], *others, *planted[3:], *another]
    leave_planted_faults_to_the_night(items)
    assert [not item.marks for item in planted] == [i % THIRD == 0 for i in range(7)]
    assert not any(item.marks for item in (*others, *another))
