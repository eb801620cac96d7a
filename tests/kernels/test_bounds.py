"""An access outside a kernel's tensors is an error that names tensor and program; nothing is read or written there."""

import importlib.util
import itertools
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from conformance.errors import OutsideMemory
from conformance.interpreter.bounds import bounded
from conformance.interpreter.guard import guarded
from ssmspec_ref.ssd import SSDParams, SSDToken, step

pytestmark = pytest.mark.interpreter
STARTER = files("conformance.starters").joinpath("ssd_triton.py").read_text()
PLANTED = [
    ("tl.load(dt + row * h + head)", "tl.load(dt + row * h + head + h)", "load", "dt", "after"),
    ("tl.load(dt + row * h + head)", "tl.load(dt + row * h + head - 3)", "load", "dt", "before"),
    ("tl.load(A + head)", "tl.load(A + head - 1000000000)", "load", "A", "before"),
    ("+ at_p, mask=in_p, other", "+ at_p, mask=at_p < p + 1, other", "load", "x", "after"),
    ("x + (row * h + head) * p + at_p", "x + (row * h + head) * p + at_p - p", "load", "x", "before"),
    ("B + (row * g + group) * n + at_n", "B + (row * h + head) * n + at_n", "load", "B", "after"),
    ("C + (row * g + group) * n + at_n", "C + (row * g + group + 5000000) * n + at_n", "load", "C", "after"),
    ("tl.load(S + state, mask=inside", "tl.load(S + state, mask=inside | (at_n < n + 1)", "load", "S", "after"),
    ("tl.store(S_next + state, after, mask=inside)", "tl.store(S_next + state, after)", "store", "S_next", "after"),
    ("tl.store(S_next + state", "tl.store(S_next + state - h * p * n", "store", "S_next", "before"),
    ("tl.store(y + (row * h + head) * p + at_p", "tl.store(y + (row * h + head) * p * n + at_p", "store", "y", "after"),
    ("tl.store(y + (row * h + head) * p + at_p", "tl.store(y + (row * h + head - 900000) * p + at_p", "store", "y", "before"),
]  # fmt: skip
NUMBER = itertools.count()


@pytest.fixture(autouse=True)
def in_bounds() -> Iterator[None]:
    with bounded():
        yield


def loaded(folder: Path, source: str) -> ModuleType:
    """A module of this source, in a file, since Triton reads the source of a kernel."""
    name = f"starter_{next(NUMBER)}"
    (folder / f"{name}.py").write_text(source)
    found = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def called(module: ModuleType) -> tuple[np.ndarray, np.ndarray]:
    """One token of sizes that are no power of two, so that every block is wider than its axis."""
    rng, (b, h, g, p, n) = np.random.default_rng(0), (2, 4, 2, 3, 5)
    token = SSDToken(*(rng.standard_normal(s) for s in ((b, h, p), (b, h), (b, g, n), (b, g, n))))
    S, params = rng.standard_normal((b, h, p, n)), SSDParams(A=-np.ones(h))
    y, after = module.Step("cpu")(S, token, params)
    expected = step(S, token, params)
    assert np.allclose(y, expected[0], atol=1e-5)
    return y, after


def test_what_init_writes_stays_in_its_tensors(tmp_path: Path) -> None:
    called(loaded(tmp_path, STARTER))


@pytest.mark.parametrize(("old", "new", "kind", "tensor", "where"), PLANTED, ids=[f"{p[3]}-{p[4]}" for p in PLANTED])
def test_a_planted_access_is_named_by_tensor_and_program(
    tmp_path: Path, old: str, new: str, kind: str, tensor: str, where: str
) -> None:
    assert STARTER.count(old) == 1
    with pytest.raises(OutsideMemory) as told:
        called(loaded(tmp_path, STARTER.replace(old, new)))
    place = {"after": "past the end of", "before": r"before the \d+ bytes of"}[where]
    assert re.match(rf"a {kind} by program \(\d, \d, 0\) is \d+ bytes {place} {tensor}\b", str(told.value))


@triton.jit
def copied(x, y, offset, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at + offset, mask=at < n), mask=at < n)


@triton.jit
def added(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(x + at, 1.0, mask=at < n)


@triton.jit
def followed(table, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(y + at, tl.load(x + at))


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@triton.jit
def of_a_record(pair, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(pair.second + at, tl.load(pair.first + at, mask=at < n), mask=at < n)


def test_nothing_is_written_before_the_first_access_outside() -> None:
    """The launch ends there: programs before it have written, no other has."""
    x, y = torch.arange(10.0), torch.zeros(12)
    with pytest.raises(OutsideMemory, match=r"a load by program \(2, 0, 0\) is 4 bytes past the end of x, which has 40"):
        copied[(3,)](x, y, 0, 12, BLOCK=4)
    assert y.tolist() == [*range(8), 0, 0, 0, 0]


def test_a_view_may_use_the_memory_that_it_is_part_of_and_no_more() -> None:
    x, y = torch.arange(10.0), torch.zeros(4)
    copied[(1,)](x[3:], y, -3, 4, BLOCK=4)
    assert y.tolist() == [0, 1, 2, 3]
    with pytest.raises(OutsideMemory, match="4 bytes before the 40 bytes of x"):
        copied[(1,)](x[3:], y, -4, 4, BLOCK=4)


def test_two_names_of_one_memory_are_both_told() -> None:
    x = torch.arange(8.0)
    with pytest.raises(OutsideMemory, match=r"a load .* of x \(the memory of y too\), which has 32 bytes"):
        copied[(1,)](x[:4], x[4:], 8, 4, BLOCK=4)


def test_atomics_and_tensors_of_a_record_are_checked() -> None:
    x = torch.zeros(3)
    added[(1,)](x, 3, BLOCK=4)
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(OutsideMemory, match=r"an atomic by program .* past the end of x"):
        added[(1,)](x, 4, BLOCK=4)
    pair = Pair(torch.ones(3), torch.zeros(4))
    of_a_record[(1,)](pair, 3, BLOCK=4)
    assert pair.second.tolist() == [1, 1, 1, 0]
    with pytest.raises(OutsideMemory, match=r"4 bytes past the end of pair\.first"):
        of_a_record[(1,)](pair, 4, BLOCK=4)


def test_a_pointer_from_a_table_must_lead_to_a_tensor_that_exists() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    followed[(1,)](torch.tensor([x.data_ptr()]), y, BLOCK=4)
    assert y.tolist() == [0, 1, 2, 3]
    with pytest.raises(OutsideMemory, match="at 0x10, which is in no tensor"):
        followed[(1,)](torch.tensor([16]), y, BLOCK=4)


def test_after_an_error_and_after_the_block_kernels_run_as_before() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    with pytest.raises(OutsideMemory):
        copied[(1,)](x, y, 1, 4, BLOCK=4)
    copied[(1,)](x, y, 0, 4, BLOCK=4)
    assert y.tolist() == [0, 1, 2, 3]


def test_the_guard_of_a_launch_sees_the_machine_s_addresses_inside() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    with guarded(x=x, y=y):
        copied[(1,)](x, y, 0, 4, BLOCK=4)
    with pytest.raises(OutsideMemory, match=r"in no named tensor|past the end of x"), guarded(x=x):
        copied[(1,)](x, y, 0, 4, BLOCK=4)
