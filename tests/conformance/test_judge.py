"""A verdict follows from the error and the bound, and from nothing else; what cannot be compared fails with a reason."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from conformance.adapters import reference
from conformance.errors import OtherWeights
from conformance.judge.verdict import compare, expectation, judge, measure
from conformance.run.calls import GAPS, fingerprint, leaves, placed, tail
from conformance.suite import find
from conformance.suite.expected import Expected
from conformance.suite.weights_used import check_used
from ssmspec_ref import conv, ssd
from ssmspec_ref.contract import FLOAT64, Capability, Limits, NumericContract, Verdict, WithWeights

from .judging import FP32, SPECIFICATION, fails, judged, passes

VALUE = np.arange(12.0).reshape(2, 3, 2)
Y = Expected("y", "b t h", VALUE, np.full(VALUE.shape, 0.5))
SCAN = "ssd.scan/b2,t7,g2,h6,p5,n4/plain/gentle/s0"


def expected(bound: Any = 0.5, **given: Any) -> Expected:
    return Expected("y", "b t h", VALUE, np.broadcast_to(np.asarray(bound, float), VALUE.shape).copy(), **given)


def changed(place: tuple[int, ...], value: float, a: Any = VALUE) -> Any:
    came = a.astype(np.float32)
    came[place] = value
    return came


class Obliging(np.ndarray):
    """An array that finds everything finite and equal."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return np.ones(self.shape, dtype=bool)


LIVE = changed((1, 2), 0, np.ones((2, 3, 1))).astype(bool)
"""All but one token are judged."""
COMPARED: list[tuple[Any, Expected, str]] = [
    (changed((1, 2, 1), 11.5), Y, ""),
    (changed((1, 2, 1), 11.50001), Y, "bound"),
    *((changed((0, 1, 0), bad), expected(1e300), "nan") for bad in (np.nan, np.inf, -np.inf)),
    (VALUE, expected(0), ""),
    (changed((0, 0, 1), np.nextafter(np.float32(1), np.float32(2))), expected(0), "bound"),
    (changed((1, 2, 0), np.nan), expected(judged=LIVE), ""),
    (changed((1, 1, 0), np.nan), expected(judged=LIVE), "nan"),
    (VALUE.astype(np.float16), Y, "dtype"),
    (VALUE.astype(np.int64), Y, "dtype"),
    (VALUE.tolist(), Y, "dtype"),
    (None, Y, "dtype"),
    (VALUE[:1].astype(np.float32), Y, "shape"),
    (VALUE[..., None].astype(np.float32), Y, "shape"),
    (VALUE + 1e-12, Y, "dtype"),  # float64 values where float32 is declared
    (VALUE.astype(np.float32).view(Obliging), Y, "dtype"),
    (np.ma.masked_array(VALUE, VALUE > 3), Y, "dtype"),
]
"""An output, what is expected, and the kind of its failure."""


@pytest.mark.parametrize(("came", "want", "kind"), COMPARED)
def test_an_output_passes_within_its_bound_and_fails_with_its_kind(came: Any, want: Expected, kind: str) -> None:
    found = compare([want], (came,), FP32)
    assert (found.verdict, found.kind) == (Verdict.FAIL if kind else Verdict.PASS, kind)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bound_that_is_not_finite_decides_nothing(bad: float) -> None:
    want = expected(changed((0, 0, 0), bad, np.full(VALUE.shape, 0.5)))
    assert compare([want], (VALUE,), FP32).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("came", [(), (VALUE, VALUE)])
def test_a_missing_or_an_extra_output_fails(came: Any) -> None:
    fails(compare([Y], came, FP32), "outputs", "y")


@pytest.mark.parametrize(
    ("came", "said"),
    [
        (VALUE[:1], "y has shape (1, 3, 2); it must be (2, 3, 2), axes (b t h)"),
        (changed((1, 0, 1), 9.0), "y is wrong by 2, 4 times its bound 0.5, at b=1, t=0, h=1: expected 7, got 9"),
        (
            changed((1, 2, 0), 2.0, changed((0, 0, 1), 2.0)),
            "y is wrong by 8, 16 times its bound 0.5, at b=1, t=2, h=0 (the worst place; the first is b=0, t=0, h=1): "
            "expected 10, got 2",
        ),
    ],
)
def test_messages_say_what_came_what_is_needed_and_where(came: Any, said: str) -> None:
    found = compare([Y], (came,), FP32)
    assert found.message == said
    if "worst" in said:
        (one,) = found.outputs
        assert (one.at, one.first) == ({"b": 1, "t": 2, "h": 0}, {"b": 0, "t": 0, "h": 1})
        assert abs(one.expected - one.got) == one.error  # type: ignore[operator]


def test_the_place_of_a_failure_is_its_first_token() -> None:
    came = VALUE + np.array([[[0, 0], [0, 0], [9, 0]], [[0, 0], [0, 1], [0, 0]]])
    measured = measure(Y, came)
    assert measured.first == {"b": 1, "t": 1, "h": 1}
    assert (measured.error, measured.utilisation) == (9.0, 18.0)


def test_a_fingerprint_sees_one_bit_in_a_nested_array_and_a_change_of_shape() -> None:
    array = np.zeros((2, 3))
    record = (array, [np.ones(2), np.array([True])])
    before = fingerprint(record)
    assert fingerprint((array.reshape(3, 2), record[1])) != before
    array[1, 2] = -0.0
    assert fingerprint(record) != before


class Panic(BaseException):
    """What a panic of Rust arrives as."""


@pytest.mark.parametrize("error", [SystemExit(3), Panic("index out of bounds")])
def test_an_implementation_that_exits_or_panics_does_not_end_the_run(error: BaseException) -> None:
    def ends(*arguments: Any) -> Any:
        raise error

    fails(judged(Capability(ends, FP32), SCAN), "error", f"{type(error).__name__}: {error}")


def test_weights_may_differ_by_rounding_only() -> None:
    given = np.array([0.5, 2.0, 0.0])
    rounded = np.exp(np.log(given, where=given > 0, out=np.full(3, -np.inf)).astype(np.float32))
    check_used(given, rounded, FP32, ".mixer.params.A")
    for used, place in (
        (given * (1 + 1e-7), ".out_proj.weight"),  # only A is kept as its logarithm
        (given * (1 + 1e-5), ".A"),
        (given + np.array([0, 0, 1e-30]), ".A"),
        (np.array([0.5, 2.0, np.nan]), ".A"),
    ):
        with pytest.raises(OtherWeights):
            check_used(given, used, FP32, place)


@pytest.mark.parametrize("operation", ["ssd.step", "ssd.scan_masked", "ssd.scan_packed"])
@pytest.mark.parametrize(
    ("told", "form", "kind"), [(True, np.float32, ""), (False, np.float16, "bound"), (True, np.float16, "used")]
)
def test_a_pure_operation_may_say_which_weights_it_used(operation: str, told: bool, form: Any, kind: str) -> None:
    """A kept as its logarithm is judged as it is; if that is not told, or is more than a rounding in float32, it fails."""
    right = next(s for s in reference.adapter().subjects if s.name == "ssd chunked").capabilities[operation]

    def run(*arguments: Any) -> Any:
        place = next(n for n, a in enumerate(arguments) if isinstance(a, ssd.SSDParams))
        A = -np.exp(np.log(-arguments[place].A).astype(form).astype(float))
        used = replace(arguments[place], A=A)
        outputs = tuple(a.astype(np.float32) for a in right.run(*arguments[:place], used, *arguments[place + 1 :]))
        return WithWeights(outputs, used) if told else outputs

    specification = SPECIFICATION[operation]
    assert judge(specification, Capability(run, FP32), specification.case({"b": 2}, {}, "normal", 0)).kind == kind


def test_a_contract_so_wide_that_zeros_pass_decides_nothing() -> None:
    def zeros(S: Any, window: Any, params: Any) -> Any:
        return np.zeros_like(window.x), np.zeros_like(S)

    judgement = judged(Capability(zeros, NumericContract(function_ulp=1e9)), SCAN)
    assert (judgement.verdict, judgement.kind) == (Verdict.UNKNOWN, "void")
    assert "ulp=1e+09" in judgement.message
    fails(judged(Capability(zeros, NumericContract(accumulate="bf16")), SCAN), "bound")


def test_a_void_output_beside_one_that_is_not_is_marked_and_passes() -> None:
    void = Expected("out", "b t h", VALUE, 2 * VALUE)
    judgement = compare([void, Y], (VALUE, VALUE), FP32)
    assert judgement.verdict is Verdict.PASS
    assert [m.void for m in judgement.outputs] == [True, False]
    assert compare([void, expected(0)], (VALUE, VALUE), FP32).verdict is Verdict.UNKNOWN


def test_spaced_inputs_hold_the_same_values_with_nan_between() -> None:
    specification = SPECIFICATION["ssd.scan_masked"]
    drawn = specification.draw(next(specification.cases("smoke", Limits())), FP32)
    views = placed(drawn, gaps=True)
    assert fingerprint(views) == fingerprint(drawn)
    assert np.isnan(views[1].x.base[..., 1]).all()
    assert not views[1].x.flags.c_contiguous


@pytest.mark.parametrize(
    "name",
    [
        "ssd.scan/b2,t7,g2,h6,p5,n4/z=on/gentle/s0",
        "attention.verify_tree/b3,t7,l20,h4,g2,e6/plain/gentle/s0",
        "acceptance.sampled/b6,t7,i11/plain/normal/s0",
    ],
)
def test_spaced_inputs_of_one_call_have_strides_of_their_own(name: str) -> None:
    """Arrays of one shape, which have the same strides where they are compact, lie in one record or are arguments."""
    specification, case = find(name)
    views = leaves(placed(specification.draw(case, FP32), gaps=True))
    arrays = [a for a in views if isinstance(a, np.ndarray) and a.ndim]
    assert 3 < len(arrays) <= GAPS
    assert len({a.strides[-1] // a.itemsize for a in arrays}) == len(arrays)


def test_a_case_with_the_seed_of_the_second_inputs_is_judged_by_its_own_weights() -> None:
    """The second inputs of one case have the seed of another; that one is not compared with their expected outputs."""
    specification = SPECIFICATION["conv.scan"]
    mixed = next(case for case in specification.cases("standard", Limits()) if case.seed)
    plain = replace(mixed, seed=0, family=specification.families[-1])
    capability = Capability(conv.scan, FLOAT64)
    passes(judge(specification, capability, plain, other=mixed.seed))
    passes(judge(specification, capability, replace(plain, seed=mixed.seed)))


def test_an_expectation_for_other_inputs_of_a_case_is_not_taken_for_its_own() -> None:
    """A diagnosis compares with faults of other contracts, for inputs that the declared contract drew."""
    specification, case = find(SCAN)
    narrow = NumericContract(state="bf16", io="bf16", stored_every_token=True)
    of_fp32 = expectation(specification, case, narrow, specification.draw(case, FP32), None)
    of_bf16 = specification.draw(case, narrow)
    own = expectation(specification, case, narrow, of_bf16, None)
    assert not np.array_equal(own[0].value, of_fp32[0].value), "the two contracts draw the same inputs: nothing is tested"
    assert np.array_equal(own[0].value, specification.expect(of_bf16, narrow, None)[0].value)


def test_a_chunk_whose_beta_exceeds_one_stays_within_its_bound() -> None:
    """A chunk's first token that writes nothing, behind a strong decay; a solver that exchanged its rows gave it 5.7e-17 of
    a later token."""
    from conformance.adapters.reference import CHUNK, CHUNKED
    from ssmspec_ref.delta import chunked

    capability = Capability(partial(chunked.scan, chunk=CHUNK), CHUNKED)
    passes(judged(capability, "delta.scan/b1,t43,g1,h1,k1,v1/beta=two,sparse=on/strong/s0"))


def test_the_end_of_a_traceback_skips_code_without_a_file() -> None:
    """A compiled string, such as the methods that dataclasses make, has no line that could be shown."""
    spread: dict[str, Any] = {}
    exec(compile("def call(f):\n    f()\n", "<string>", "exec"), spread)

    def broken() -> None:
        raise OSError("no licence")

    with pytest.raises(OSError, match="no licence") as caught:
        spread["call"](broken)
    told = tail(caught.value)
    assert told.startswith("OSError: no licence | test_judge.py:")
    assert told.endswith('raise OSError("no licence")')
    assert "<string>" not in told


def test_an_error_of_a_gpu_is_told_without_what_may_be_tried_next() -> None:
    said = "CUDA error: an illegal memory access was encountered"
    error = RuntimeError(f"{said}\nSearch for `cudaErrorIllegalAddress' in the manual.\nCUDA kernel errors might be")
    assert tail(error).startswith(f"RuntimeError: {said} |")
