"""A planted fault is judged in a process of its own: it may crash or write anywhere."""

import ctypes
import math
from types import ModuleType

import pytest

from tests.kernels.mutants import caught

NOTED: list[int] = []


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_crash_is_caught() -> None:
    assert caught(math, lambda *_: ctypes.string_at(0), [1])


@pytest.mark.parametrize(("wrong", "expected"), [(4, True), (9, False)])
def test_an_assertion_and_false_are_caught_and_what_passes_is_not(wrong: int, expected: bool) -> None:
    def check(_: ModuleType, case: int) -> None:
        assert case != wrong

    assert caught(math, check, [1, 4]) is expected
    assert caught(math, lambda _, case: case != wrong, [1, 4]) is expected


def test_what_a_check_writes_ends_with_its_process() -> None:
    assert not caught(math, lambda _, case: NOTED.append(case), [1])
    assert NOTED == []


def divides(*_: object) -> float:
    return 1 / 0


def test_an_error_of_another_kind_is_raised_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in divides.*ZeroDivisionError"):
        caught(math, divides, [1])
