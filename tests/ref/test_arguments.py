"""Wrong arguments: a named error that says what came and what is needed, and no argument changed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ssmspec_ref import conv, delta, packed, records, selective, slots, ssd
from ssmspec_ref.checks import checked
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.errors import (
    AcceptanceError,
    ArgumentError,
    EmptyWindow,
    LengthError,
    ParameterError,
    PrecisionError,
    ShapeMismatch,
    SlotError,
    SpecError,
)
from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.layers.recurrences import RECURRENCES
from ssmspec_ref.records import Record
from ssmspec_ref.selective import chunked as selective_chunked
from ssmspec_ref.shapes import (
    Array,
    ConvState,
    Head,
    HeadChannelParam,
    HeadParam,
    Heads,
    Lengths,
    Mask,
    PerHead,
    PerHeads,
    State,
)
from ssmspec_ref.ssd import chunked as ssd_chunked
from tests import families
from tests.families import Sizes, same_bits

from .recurrences import LIVE
from .refusals import copied, refused, unchanged

M, U, CONV = families.conv_case(0, Sizes())
S, WINDOW, SSD = families.ssd_case(0, Sizes(), "gentle")
D_S, D_WINDOW, DELTA = families.delta_case(0, Sizes(), "gentle")
M1_S, M1_WINDOW, SELECTIVE = families.selective_case(0, Sizes(), "gentle")
EVERY = np.ones((2, 7), dtype=bool)
FOUR_GROUPS = replace(WINDOW, B=np.ones((2, 7, 4, 4)), C=np.ones((2, 7, 4, 4)))
FOUR_KEYS = replace(D_WINDOW, q=np.ones((2, 7, 4, 5)), k=np.ones((2, 7, 4, 5)))


Case = tuple[type[Exception], Callable[..., Any], tuple[Any, ...]]

REFUSED: dict[str, Case] = {
    # shapes
    "conv: too few axes": (ShapeMismatch, conv.step, (M[0], U[:, 0], CONV)),
    "conv: channels differ": (ShapeMismatch, conv.scan, (M, U[:, :, :-1], CONV)),
    "conv: widths differ": (ShapeMismatch, conv.scan, (M[:, :, 1:], U, CONV)),
    "conv: rows differ": (ShapeMismatch, conv.scan, (M[:1], U, CONV)),
    "conv: mask of another length": (ShapeMismatch, conv.scan_masked, (M, U, EVERY[:, :-1], CONV)),
    "conv: path of another length": (ShapeMismatch, conv.commit_path, (M, U, np.zeros((2, 3), dtype=np.int64))),
    "conv filter: rows differ": (ShapeMismatch, conv_filter.scan, (M[:1], U, CONV)),
    "ssd: states differ": (ShapeMismatch, ssd.scan, (S[..., :-1], WINDOW, SSD)),
    "ssd: heads of A differ": (ShapeMismatch, ssd.scan, (S, WINDOW, replace(SSD, A=SSD.A[:3], D=None, dt_bias=None))),
    "ssd: transposed state": (ShapeMismatch, ssd.scan, (S.swapaxes(2, 3), WINDOW, SSD)),
    "delta: transposed state": (ShapeMismatch, delta.scan, (D_S.swapaxes(2, 3), D_WINDOW, DELTA)),
    "selective: channels differ": (ShapeMismatch, selective.scan, (M1_S[:, 1:], M1_WINDOW, SELECTIVE)),
    "packed: several rows": (ShapeMismatch, partial(packed.scan, ssd), (S, WINDOW, np.array([7, 7]), SSD)),
    "pool: other axes": (ShapeMismatch, slots.put, (M, np.array([0, 1]), M[:, :-1])),
    "pool: a row too few": (ShapeMismatch, slots.put, (M, np.array([0, 1]), M[:1])),
    # types
    "conv: float32": (PrecisionError, conv.step, (M.astype(np.float32), U[:, 0], CONV)),
    "conv: a list": (PrecisionError, conv.step, (M.tolist(), U[:, 0], CONV)),
    "conv: mask of integers": (PrecisionError, conv.scan_masked, (M, U, EVERY.astype(np.int64), CONV)),
    "conv: lengths of floats": (PrecisionError, conv.commit, (M, U, np.array([1.0, 2.0]))),
    "conv: lengths of 32 bits": (PrecisionError, conv.commit, (M, U, np.array([1, 2], dtype=np.int32))),
    "ssd: float16 state": (PrecisionError, ssd.scan, (S.astype(np.float16), WINDOW, SSD)),
    "ssd: integer state": (PrecisionError, ssd_chunked.scan, (S.astype(np.int64), WINDOW, SSD)),
    "delta: no state": (PrecisionError, delta.scan, (None, D_WINDOW, DELTA)),
    "packed: lengths of floats": (PrecisionError, packed.scan_conv, (M, U, np.array([3.0, 4.0]), CONV)),
    "pool: slots of floats": (PrecisionError, slots.take, (M, np.array([0.0, 1.0]))),
    "pool: float32 batch": (PrecisionError, slots.put, (M, np.array([0, 1]), M.astype(np.float32))),
    # empty windows
    "conv: empty window": (EmptyWindow, conv.scan, (M, U[:, :0], CONV)),
    "conv: empty commit": (EmptyWindow, conv.commit, (M, U[:, :0], np.array([0, 0]))),
    "conv filter: empty window": (EmptyWindow, conv_filter.scan, (M, U[:, :0], CONV)),
    "ssd: empty window": (EmptyWindow, records.prefix, (WINDOW, 0)),
    "delta: empty window": (EmptyWindow, records.prefix, (D_WINDOW, 0)),
    "selective: empty window": (EmptyWindow, records.prefix, (M1_WINDOW, 0)),
    "packed: empty run": (EmptyWindow, packed.scan_conv, (M, U[:1, :0], np.array([0, 0]), CONV)),
    # lengths
    "conv: negative length": (LengthError, conv.commit, (M, U, np.array([1, -1]))),
    "conv: length beyond the window": (LengthError, conv.commit, (M, U, np.array([1, 8]))),
    "packed: negative length": (LengthError, packed.scan_conv, (M, U[:1], np.array([8, -1]), CONV)),
    "packed: lengths that do not sum": (LengthError, packed.scan_conv, (M, U[:1], np.array([3, 3]), CONV)),
    "packed: boundary beyond the sequence": (
        LengthError,
        packed.scan_conv,
        (M, U[:1], np.array([3, 4]), CONV, packed.Boundaries(np.array([0]), np.array([4]))),
    ),
    "packed: boundary of no sequence": (
        LengthError,
        packed.scan_conv,
        (M, U[:1], np.array([3, 4]), CONV, packed.Boundaries(np.array([2]), np.array([1]))),
    ),
    # parameters
    "conv: one tap": (ParameterError, conv.ConvParams, (np.ones((3, 1)),)),
    "ssd: A above 0": (ParameterError, ssd.SSDParams, (np.array([-1.0, 0.5]),)),
    "ssd: A NaN": (ParameterError, ssd.SSDParams, (np.array([-1.0, np.nan]),)),
    "ssd: A infinite": (ParameterError, ssd.SSDParams, (np.array([-1.0, -np.inf]),)),
    "ssd: limits exchanged": (ParameterError, ssd.SSDParams, (-np.ones(2), None, None, True, (0.1, 0.01))),
    "ssd: negative limit": (ParameterError, ssd.SSDParams, (-np.ones(2), None, None, True, (-0.1, 0.1))),
    "ssd: limit NaN": (ParameterError, ssd.SSDParams, (-np.ones(2), None, None, True, (0.0, float("nan")))),
    "ssd: groups do not divide": (ParameterError, ssd.scan, (S, FOUR_GROUPS, SSD)),
    "ssd: groups do not divide, by chunks": (ParameterError, ssd_chunked.scan, (S, FOUR_GROUPS, SSD)),
    "delta: key heads do not divide": (ParameterError, delta.scan, (D_S, FOUR_KEYS, DELTA)),
    "delta: key heads do not divide, by chunks": (ParameterError, delta_chunked.scan, (D_S, FOUR_KEYS, DELTA)),
    "ssd: chunk of 0": (ParameterError, lambda *a: ssd_chunked.scan(*a, chunk=0), (S, WINDOW, SSD)),
    "delta: chunk below 0": (ParameterError, lambda *a: delta_chunked.scan(*a, chunk=-1), (D_S, D_WINDOW, DELTA)),
    "selective: chunk of 0": (ParameterError, lambda *a: selective_chunked.scan(*a, chunk=0), (M1_S, M1_WINDOW, SELECTIVE)),
    "delta: eps 0": (ParameterError, delta.DeltaParams, (None, True, 0.0)),
    "delta: eps NaN": (ParameterError, delta.DeltaParams, (None, True, float("nan"))),
    "delta: scale 0": (ParameterError, delta.DeltaParams, (0.0,)),
    "delta: gate that grows": (ParameterError, delta.gates, (*np.zeros((2, 2, 3)), np.array([-1.0, 1.0, -1.0]), np.zeros(3))),
    "selective: A above 0": (ParameterError, selective.SelectiveParams, (np.ones((2, 3)),)),
    "selective: A NaN": (ParameterError, selective.SelectiveParams, (np.full((2, 3), np.nan),)),
    "packed: block of 0": (ParameterError, packed.every, (np.array([3]), 0)),
    # paths
    "path beyond the window": (AcceptanceError, conv.commit_path, (M, U[:, :3], np.array([[0, 1, 3], [0, -1, -1]]))),
    "path that turns back": (AcceptanceError, conv.commit_path, (M, U[:, :3], np.array([[0, 2, 1], [0, -1, -1]]))),
    "path with a gap": (AcceptanceError, conv.commit_path, (M, U[:, :3], np.array([[0, -1, 2], [0, -1, -1]]))),
    "path padded with -2": (AcceptanceError, conv.commit_path, (M, U[:, :3], np.array([[0, 1, -2], [0, -1, -1]]))),
    # slots
    "slot twice": (SlotError, slots.take, (M, np.array([1, 1]))),
    "slot outside": (SlotError, slots.take, (M, np.array([0, 2]))),
    "slot twice in put": (SlotError, slots.put, (M, np.array([0, 0]), M)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments_are_refused_by_name_and_left_as_they_were(case: str) -> None:
    error, call, args = REFUSED[case]
    message = refused(error, "", call, *args)
    assert issubclass(error, SpecError)
    assert len(message) > 30


TEXTS = {
    "conv: channels differ": (
        "scan: u has shape (2, 7, 6) for the axes (b t c), but axis c has size 7 in M; the two must be equal"
    ),
    "conv: too few axes": "step: M has shape (7, 4), but its axes are (b c w)",
    "ssd: heads of A differ": (
        "scan: params.A has shape (3,) for the axes (h), but axis h has size 6 in S; the two must be equal"
    ),
    "conv: float32": "step: M is float32; it must be a NumPy array of float64: convert it first",
    "conv: a list": "step: M is list; it must be a NumPy array of float64: convert it first",
    "conv: empty window": "scan: u has no tokens; a window needs at least its root",
    "conv: negative length": "advanced[1] is -1, but the window holds 7 tokens; give 0 to 7",
    "packed: lengths that do not sum": "lengths sum to 6, but the packed run holds 7 tokens; the two must be equal",
    "conv: one tap": "the conv weight has 1 taps; it must have at least 2: give (c, w >= 2)",
    "ssd: A above 0": ("A has entries in -1.0 .. 0.5; a positive one lets the state grow; give a finite A = -exp(A_log)"),
    "ssd: groups do not divide": "4 groups do not divide 6 heads; every group must have the same number of heads",
    "delta: eps 0": "scale and eps are None and 0.0; give scale > 0 (or None) and eps > 0",
    "path beyond the window": (
        "row 0 has the path [0, 1, 3] through 3 tokens; list nodes below 3 in rising order, root first, then -1"
    ),
    "slot twice": "rows 0 and 1 both name slot 1; give each row its own slot",
    "slot outside": "row 1 names slot 2, but the pool has 2; give 0 to 1, or -1 for padding",
}


@pytest.mark.parametrize("case", TEXTS)
def test_messages_say_what_came_what_is_needed_and_what_to_do(case: str) -> None:
    error, call, args = REFUSED[case]
    assert refused(error, "", call, *args) == TEXTS[case]


def test_every_class_of_a_wrong_argument_has_its_text_pinned() -> None:
    assert {REFUSED[case][0] for case in REFUSED} == {REFUSED[case][0] for case in TEXTS}


@pytest.mark.parametrize("kind", families.KINDS)
def test_no_run_writes_its_arguments(kind: families.Kind) -> None:
    mixer, state, inputs = families.layer(kind, 0, Sizes())
    live = LIVE.copy()
    before = copied(mixer, state, inputs, live)
    layers.scan(state, inputs, mixer, live)
    window, _ = layers.window(state.M, inputs, mixer, live)
    mixer.recurrence.states(state.S, window, mixer.params, live)
    RECURRENCES[mixer.kind].chunked.scan(state.S, window, mixer.params, live, chunk=3)
    conv.commit(state.M, inputs.pre, np.array([2, 3]))
    conv_filter.scan(state.M, inputs.pre, mixer.conv, live)
    assert unchanged(before, mixer, state, inputs, live)


def test_planted_write_into_an_argument_is_caught() -> None:
    def step(M: Array, u: Array, params: conv.ConvParams) -> None:
        M[:, :, :-1] = M[:, :, 1:].copy()
        raise ShapeMismatch("too late")

    with pytest.raises(AssertionError):
        refused(ShapeMismatch, "", step, M.copy(), U[:, 0], CONV)


def test_planted_error_of_another_class_is_caught() -> None:
    def step() -> None:
        raise ArgumentError("which?")

    with pytest.raises(AssertionError):
        refused(SpecError, "", step)


# ---------------------------------------------------------------------------------------------------- checks and records


@checked
def read(
    S: State, x: Head | Heads, D: HeadParam | HeadChannelParam | None = None, live: Mask | None = None
) -> tuple[int, ...]:
    return x.shape


def test_the_number_of_axes_decides_between_the_types_of_a_union() -> None:
    S, x = np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 4))
    assert read(S, x) == (2, 3, 4)
    assert read(S, np.zeros((2, 7, 3, 4)), np.zeros(3)) == (2, 7, 3, 4)
    assert read(S, x, np.zeros((3, 4))) == (2, 3, 4)
    refused(ShapeMismatch, "axis p has size 4", read, S, x, np.zeros((3, 5)))
    refused(ShapeMismatch, "axis h has size 3", read, S, x, np.zeros(4))
    refused(ShapeMismatch, "axis h has size 3", read, S, np.zeros((2, 3, 7, 4)))
    refused(ShapeMismatch, r"its axes are \(h\)", read, S, x, np.zeros((3, 4, 5)))


def test_none_is_taken_only_where_the_type_allows_it() -> None:
    S, x = np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 4))
    assert read(S, x, None, None) == (2, 3, 4)
    refused(PrecisionError, "S is NoneType", read, None, x)


def test_arguments_by_name_are_checked_as_those_by_place() -> None:
    S = np.zeros((2, 3, 4, 5))
    refused(ShapeMismatch, "x has shape", read, S, x=np.zeros((2, 3, 9)))
    refused(ShapeMismatch, "x has shape", read, x=np.zeros((2, 3, 9)), S=S)


@dataclass(frozen=True)
class Inner(Record):
    dt: PerHeads
    D: HeadParam | HeadChannelParam | None = None


@dataclass(frozen=True)
class Outer(Record):
    M: ConvState
    inner: Inner
    name: str = "outer"
    gate: PerHead | None = None


def outer() -> Outer:
    rng = np.random.default_rng(0)
    return Outer(rng.normal(size=(2, 5, 4)), Inner(rng.normal(size=(2, 7, 3)), rng.normal(size=(3, 4))))


def test_a_record_inside_a_record_is_checked_against_its_neighbours() -> None:
    whole = outer()
    message = refused(ShapeMismatch, "", Outer, whole.M[:1], whole.inner)
    assert message == (
        "Outer.inner.dt has shape (2, 7, 3) for the axes (b t h), but axis b has size 1 in M; the two must be equal"
    )
    refused(ShapeMismatch, "gate", Outer, whole.M, whole.inner, "outer", np.zeros((2, 4)))
    refused(PrecisionError, "Inner.D", Inner, whole.inner.dt, np.zeros(3, dtype=np.float32))


@checked
def advance(state: Outer, lengths: Lengths) -> None: ...


def test_arrays_inside_records_are_checked_against_the_other_arguments() -> None:
    refused(ShapeMismatch, "lengths", advance, outer(), np.zeros(3, dtype=np.int64))
    advance(outer(), np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize(("record", "field"), [(CONV, "weight"), (SSD, "A"), (SELECTIVE, "A")])
def test_a_record_with_checks_of_its_own_refuses_another_precision_when_it_is_made(record: Record, field: str) -> None:
    refused(PrecisionError, "float32", replace, record, **{field: getattr(record, field).astype(np.float32)})


def test_records_are_cut_joined_and_gathered_field_by_field() -> None:
    window = Inner(outer().inner.dt)
    dt = window.dt
    assert same_bits(records.rows(window, np.array([1, 1, 0])).dt, dt[[1, 1, 0]])
    assert same_bits(records.concat(records.prefix(window, 3), window).dt, np.concatenate([dt[:, :3], dt], axis=1))
    path = np.array([[0, 4, -1], [2, -1, -1]])
    assert same_bits(records.along(window, path).dt, np.stack([dt[0, [0, 4, 0]], dt[1, [2, 0, 0]]]))
    assert same_bits(records.where(np.array([True, False]), window, Inner(-dt)).dt, np.stack([dt[0], -dt[1]]))
    poisoned = Inner(np.where(LIVE[:, :, None], dt, np.nan))
    assert same_bits(records.masked(poisoned, LIVE).dt, np.where(LIVE[:, :, None], dt, 0.0))


def test_each_reaches_nested_records_and_keeps_what_is_no_array() -> None:
    doubled = records.each(lambda a, b: a + b, outer(), outer())
    assert same_bits(doubled.inner.D, 2 * outer().inner.D)
    assert doubled.name == "outer"
    assert doubled.gate is None
    assert [a.shape for a in records.arrays(outer())] == [(2, 5, 4), (2, 7, 3), (3, 4)]


def test_planted_cut_that_breaks_a_record_is_refused_when_it_is_made() -> None:
    refused(ShapeMismatch, "", records.each, lambda a: a[: a.ndim - 1], outer())
