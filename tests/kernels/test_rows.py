"""A row is a claim: what every launcher reads and writes is what its row says, to the element; and what it does not take is
refused before anything is written."""

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from perf_gates.static.rows import oracle_of
from ssmspec_fast.adapters import kernels
from ssmspec_kernels.oracles import ORACLES
from ssmspec_kernels.row import Argument, Entry, launcher, moved, row_of, taken
from ssmspec_ref.contract import OPERATIONS
from ssmspec_ref.errors import PrecisionError, ShapeMismatch
from tests.kernels.calls import LAUNCHERS, SIZES, call, forms, replaced, tensors
from tests.kernels.mutants import in_a_process_of_its_own, mutated
from tests.kernels.tensors import Kept

pytestmark = pytest.mark.interpreter

Launcher = Callable[..., Any]
STORAGE = {torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool}
SAID = {("conv_tree", "parents")}
"""None, a chain, has to be said."""
BY_TORCH = {("ssd_coded_step", "call")}
"""Written after the launch, by an operator of torch, which the interpreter does not see."""


def own(name: str) -> Launcher:
    return vars(LAUNCHERS[name])[name]


def check_claims(name: str, run: Launcher) -> None:
    """Over the calls of a launcher: every tensor that the row names is read, or written, as it says, and no other byte."""
    row = {entry.name: entry for entry in row_of(run)}
    read, written, given = set[str](), set[str](), set[str]()
    for form in forms(name):
        arguments = call(name, form, tuple(row.values()))
        found = {entry.name: x for entry in row.values() if (x := entry.of(arguments)) is not None}
        with watch(**found) as seen:
            run(**arguments)
        assert seen.outside == [], seen.outside[:3]
        assert seen.races == [], seen.races[:3]
        for (_, tensor), access in seen.accesses.items():
            assert access.addresses <= elements(found[tensor]), f"{name} goes beside the elements of {tensor}"
        given |= found.keys()
        read |= {tensor for kind, tensor in seen.accesses if kind == "load"}
        written |= {tensor for kind, tensor in seen.accesses if kind != "load"}
    written |= {tensor for launched, tensor in BY_TORCH if launched == name}
    assert given == row.keys(), f"{name} is not called with {row.keys() - given}"
    assert read == {tensor for tensor, entry in row.items() if entry.argument.read}
    assert written == {tensor for tensor, entry in row.items() if entry.argument.written}


def check_traffic(name: str, run: Launcher) -> None:
    """Each tensor that counts crosses the bus once each way: as many bytes as the formulas take from the row."""
    form = replace(forms(name)[0], without=f"{forms(name)[0].without} live")
    row, letters = row_of(own(name)), SIZES | dict(forms(name)[0].sizes) | {"s": SIZES["b"]}
    arguments = call(name, form, row)
    found = {entry.name: x for entry in row if (x := entry.of(arguments)) is not None}
    with watch(**found) as seen:
        run(**arguments)
    counted = {entry.name for entry in row if entry.argument.size}
    crossed = sum(access.distinct for (_, tensor), access in seen.accesses.items() if tensor in counted)
    bytes_ = {entry.argument.size: found[entry.name].element_size() for entry in row if entry.name in found}
    assert crossed == moved(run, letters, bytes_, without=[entry.name for entry in row if entry.name not in found])


def elements(x: Tensor) -> set[int]:
    """The addresses of the bytes of a tensor's elements, without its gaps."""
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * stride).flatten()
    width = x.element_size()
    return {x.data_ptr() + int(at) * width + byte for at in places for byte in range(width)}


def check_signature(name: str, run: Launcher) -> None:
    """What is optional may be left out, by the signature; types are those that are stored; a tensor has a place in traffic
    or none."""
    parameters = inspect.signature(run).parameters
    for entry in row_of(run):
        default = parameters[entry.parameter].default
        told = default is None or (name, entry.name) in SAID
        assert entry.optional == told, f"{name}: {entry.name} is optional in the row or in the signature only"
        assert set(entry.argument.types) <= STORAGE, f"{name}: {entry.name} is taken in a type that nothing stores"


def wrong(entry: Entry, x: Tensor, shared: set[str]) -> Iterator[tuple[str, Tensor, type[Exception]]]:
    """What a launcher must refuse in the place of a tensor; `shared` are the axes that other tensors of the call have too."""
    yield "an axis more", x[None], ShapeMismatch
    yield "another type", x.double() if x.dtype.is_floating_point else x.float(), PrecisionError
    yield "another device", x.to("meta"), PrecisionError
    for axis, letter in enumerate(entry.argument.forms[0]):
        if x.shape[axis]:
            yield f"no {letter}", x.narrow(axis, 0, 0), ShapeMismatch
        if letter in shared:
            yield f"one {letter} more", torch.cat([x, x.narrow(axis, 0, 1)], axis), ShapeMismatch
    dense = entry.argument.layout or x.dim() == 1 or (x.dim() > 2 and x.dtype.is_floating_point)
    if dense and x.shape[-1] > 1:
        yield "gaps", torch.stack([x, x], -1).flatten(-2)[..., ::2], ShapeMismatch


def check_refusals(name: str, run: Launcher) -> None:
    """Each tensor that is not as the row says is refused, by its error, and nothing is written."""
    row, form = row_of(run), forms(name)[0]
    given = call(name, form)
    found = tensors(name, given)
    kept = Kept(**{tensor.replace(".", "_"): x for tensor, x in found.items()})
    for entry in (e for e in row if e.name in found):
        others = {letter for e in row if e.name in found and e is not entry for letter in e.argument.forms[0]}
        for what, x, error in wrong(entry, found[entry.name], others):
            try:
                run(**replaced(given, entry, x))
            except error:
                continue
            raise AssertionError(f"{name} takes {entry.name} with {what}")
    kept.check()


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_reads_and_writes_what_its_row_says_and_nothing_beside_it(name: str) -> None:
    check_claims(name, own(name))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_tensor_that_is_not_as_the_row_says_is_refused_and_nothing_is_written(name: str) -> None:
    check_refusals(name, own(name))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_a_row_says_is_what_the_signature_and_the_storage_allow(name: str) -> None:
    check_signature(name, own(name))


MOVED_WHOLE = [
    "delta_scan",
    "gated_norm",
    "kda_scan",
    "linear_rows",
    "mamba3_scan",
    "norm",
    "rotary",
    "selective_scan",
    "shortconv_scan",
    "ssd_gated",
    "ssd_scan",
    "ssd_tree_scan",
    "tree_mask",
]
"""The launchers whose every tensor is moved whole; others read less, and have a formula of their own."""


@pytest.mark.parametrize("name", MOVED_WHOLE)
def test_the_bytes_of_a_row_are_those_that_cross_the_bus(name: str) -> None:
    check_traffic(name, own(name))


def test_the_tensors_of_a_record_are_in_the_order_of_its_fields() -> None:
    """A row finds them by their place."""
    records = {entry.record for name in LAUNCHERS for entry in row_of(own(name)) if entry.record not in (None, tuple)}
    for record in records:
        fields = list(record.__annotations__)
        made = record(*fields)
        assert [*(made if isinstance(made, tuple) else made.tensors)] == fields, record


def test_every_launcher_has_an_oracle_and_its_operations_are_those_of_the_suite() -> None:
    assert ORACLES.keys() == LAUNCHERS.keys()
    for name, oracle in ORACLES.items():
        assert callable(oracle_of(name)), oracle
        assert {*oracle.judged} <= OPERATIONS.keys(), f"{name} is judged by no operation of the suite"


def test_the_operations_of_the_launchers_are_those_that_the_adapter_of_the_kernels_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "INTERPRETED", kernels.FORMATS)
    had = {operation for subject in kernels.adapter("cpu").subjects for operation in subject.capabilities}
    assert had == {operation for oracle in ORACLES.values() for operation in oracle.judged}


def test_a_field_that_a_launcher_has_no_parameter_for_is_left_out_and_none_is_given_twice() -> None:
    run, x = own("conv_commit"), torch.zeros(1)
    assert taken(run, {"M": x, "bias": x}, {}, slots=x).keys() == {"M", "slots"}
    assert taken(run, SimpleNamespace(u=x, y=x), M=x).keys() == {"u", "M"}
    with pytest.raises(TypeError, match="two records have M, u; conv_commit takes one of each name"):
        taken(run, {"u": x, "M": x}, {"M": x, "u": x})


# --- rows that lie ---


def with_row(run: Launcher, said: dict[str, Argument], optional: str = "") -> Launcher:
    """The launcher with other annotations: of these tensors, and without None for the parameter `optional`."""
    inner = run.__wrapped__  # type: ignore[attr-defined]
    copy = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = inner.__kwdefaults__, dict(inner.__annotations__)
    kind: Any
    for entry in row_of(run):
        if entry.parameter in said:
            kind = Annotated[Tensor, said[entry.parameter]]
            copy.__annotations__[entry.parameter] = kind | None if entry.optional else kind
        if entry.parameter == optional:
            kind = Annotated[Tensor, entry.argument]
            copy.__annotations__[entry.parameter] = kind if entry.optional else kind | None
    return launcher(copy)


DRAWN = random.Random(37).sample(sorted(LAUNCHERS), 10)
"""The launchers in whose rows lies are planted."""


def lies(name: str) -> Iterator[tuple[str, Launcher]]:
    """The launcher with each kind of lie about one of its tensors, the first that the kind fits."""
    run = own(name)
    row = [entry for entry in row_of(run) if entry.place is None]
    wide = max(row, key=lambda e: len(e.argument.forms[0]))
    yield "an axis left out", with_row(run, {wide.name: replace(wide.argument, axes=" ".join(wide.argument.forms[0][:-1]))})
    for entry in row:
        if entry.argument.written:
            yield "read for written", with_row(run, {entry.name: replace(entry.argument, read=True, written=False)})
            break
    only_read = next(e for e in row if e.argument.read and not e.argument.written)
    yield "written for read", with_row(run, {only_read.name: replace(only_read.argument, read=False, written=True)})
    yield "optional for needed", with_row(run, {}, optional=row[0].name)
    more = (*row[0].argument.types, torch.float64)
    yield "a type too many", with_row(run, {row[0].name: replace(row[0].argument, types=more)})


GAPS = [
    ("linear_rows", 'x: Annotated[Tensor, reads("m k", layout="dense")]', 'x: Annotated[Tensor, reads("m k")]'),
    ("linear_rows", 'out: Annotated[Tensor, writes("m o", layout="dense")]', 'out: Annotated[Tensor, writes("m o")]'),
    ("tree_attention", 'length: Annotated[Tensor, points("s")]', "length: Tensor"),
]


@pytest.mark.parametrize(("name", "old", "new"), GAPS, ids=[new for *_, new in GAPS])
def test_a_planted_gap_in_a_row_is_caught(name: str, old: str, new: str) -> None:
    assert is_caught(name, vars(mutated(LAUNCHERS[name], old, new))[name])


def is_caught(name: str, run: Launcher) -> bool:
    """Whether a row is rejected. A launcher whose row lies may write anywhere."""
    return in_a_process_of_its_own(lambda: is_rejected(name, run))


def is_rejected(name: str, run: Launcher) -> bool:
    """By a check, or because no call that is drawn from the row can be made."""
    try:
        check_signature(name, run)
        check_claims(name, run)
    except (AssertionError, ShapeMismatch, PrecisionError, KeyError, TypeError, ValueError, IndexError):
        return True
    return False


@pytest.mark.parametrize("name", random.Random(37).sample(MOVED_WHOLE, 10))
def test_a_planted_tensor_that_does_not_count_is_caught(name: str) -> None:
    entry = next(e for e in row_of(own(name)) if e.argument.size)
    with pytest.raises(AssertionError):
        check_traffic(name, with_row(own(name), {entry.name: replace(entry.argument, size="")}))


@pytest.mark.parametrize("name", DRAWN)
def test_a_planted_lie_in_a_row_is_caught(name: str) -> None:
    assert [lie for lie, run in lies(name) if not is_caught(name, run)] == []
