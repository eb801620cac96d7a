"""What every launcher is held to. A file of tests names its `SUBJECTS` and planted `FAULTS`, and imports the laws that hold.

    from tests.kernels.laws import pytest_generate_tests, test_planted_fault_is_caught, ...

Every law is judged on the cases that a subject names for it.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from conformance.interpreter.memory import watch
from ssmspec_ref.error_bounds.arithmetic import Approx
from tests.kernels.mutants import caught, mutated
from tests.kernels.plot import Call, accepted
from tests.kernels.tensors import INTS, Kept, check_within, doubles, far
from tests.kernels.tensors import watch as watched

Expected = Iterable[tuple[str, Any, Approx | None]]
"""Names of arguments, indices into them, and what stands there after the call, None for anything: all that it may write."""
Check = Callable[["Subject", ModuleType, Any], None]


@dataclass(frozen=True)
class Subject:
    """A launcher, how its calls are drawn, what the oracle says of one before it is made, and the cases of every law."""

    name: str
    module: ModuleType
    draw: Callable[[Any], Call]
    expected: Callable[[Call], Expected]
    cover: Sequence[Any]
    """Cases whose results lie within their bound."""
    moves: Sequence[Any] = ()
    """Cases whose bytes are counted."""
    steps: Sequence[Any] = ()
    """Windows that are their tokens one by one."""
    small: Any = None
    """A case of the other laws, if they are judged."""
    once: tuple[str, ...] = ("S",)
    """What is asked for once, not by several programs: tensors, or "store x"."""
    formula: Callable[[Any, Call], int] | None = None
    """The bytes of a call, where they are not those of `moved`."""
    far: Sequence[tuple[Any, str]] = ()
    """Cases, and the letter of an axis whose last entries lie beyond 2^31 elements, on a GPU too."""
    read_only: Mapping[str, Any] = field(default_factory=lambda: {"write_state": False})
    """How a call leaves the states as they are."""
    special: Sequence[Callable[[ModuleType], None]] = ()
    """Checks of its own."""


def check_bound(subject: Subject, module: ModuleType, o: Any) -> None:
    """Results within their bounds, or equal where operations are exact; nothing else is written, outputs are those given."""
    call = subject.draw(o)
    expected, kept = [*subject.expected(call)], Kept(**call.tensors)
    returned = call.run(module)
    outputs = [call[name] for name in ("out", "squares") if name in call.given]
    assert all(x is y for x, y in zip(returned if isinstance(returned, tuple) else [returned], outputs, strict=False))
    for name, index, pair in expected:
        if pair is None:
            continue
        found = call[name][index]
        if name == "out" and call.dead.any():
            assert not found[torch.from_numpy(call.dead[call.rows])].any(), "an output of a token that is none"
        if o.exact:
            assert torch.equal(found, torch.from_numpy(pair.value).to(found.dtype)), name
        else:
            check_within(doubles(found), pair)
    kept.check_all_but((name, index) for name, index, _ in expected)


def check_bytes(subject: Subject, module: ModuleType, o: Any) -> None:
    """What crosses the bus is the formula, no access goes beside a tensor, and what one program has is asked for once."""
    call = subject.draw(o)
    with watch(**call.tensors) as seen:
        call.run(module)
    assert seen.outside == seen.races == [], [*seen.outside, *seen.races][:3]
    counted = {entry.name for entry in call.row if entry.argument.size}
    crossed = sum(access.distinct for (_, name), access in seen.accesses.items() if name in counted)
    formula = subject.formula or (lambda module, call: moved(module.traffic_bytes, call))
    assert crossed == formula(module, call)
    for (kind, name), access in seen.accesses.items():
        assert not {name, f"{kind} {name}"} & {*subject.once} or access.requested == access.distinct, (
            f"{kind} of {name}: {access.requested} bytes"
        )


def moved(count: Callable[..., int], call: Call, **sizes: Any) -> int:
    """A formula at the sizes of a call, whose tokens that are none are not read."""
    x = next(call[name] for name in ("x", "y", "v", "u") if name in call.given)
    known: dict[str, Any] = {"io": x.element_size(), "write_state": call.options.write, "z": "z" in call.given}
    known |= {"state": call[call.pool].element_size()} if call.pool in call.given else {}
    known |= call.axes | {"b": len(call.rows), "tree": "ancestors" in call.given} | sizes
    reads = [call.tensors[e.name] for e in call.row if e.argument.read]
    tokens = [given for given in reads if given.shape[:2] == call.dead.shape and given.is_floating_point()]
    token = sum(prod(given.shape[2:]) * given.element_size() for given in tokens)
    unread = int(call.dead[call.rows].sum()) * token
    return count(**{name: known[name] for name in inspect.signature(count).parameters if name in known}) - unread


def of_accepted(module: Any, call: Call, **sizes: Any) -> int:
    """The formula of a commit: the tokens that each row accepted, of every layer."""
    advanced = [len(taken) for _, taken in accepted(call)]
    return moved(module.traffic_bytes, call, advanced=advanced, layers=call.axes["i"], **sizes)


def of_places(module: Any, call: Call, **sizes: Any) -> int:
    """The formula of states after every token, without those that are not kept."""
    unkept = int((call["places"][torch.from_numpy(call.rows)] < 0).sum())
    return moved(module.traffic_bytes, call, **sizes) - unkept * prod(call["S"].shape[1:]) * call["S"].element_size()


def bits(call: Call, *names: str) -> list[Tensor]:
    """Whole arguments, poison too."""
    found = [call.tensors[name] for name in names or call.tensors]
    return [x.contiguous().view(INTS[x.element_size()]) for x in found]


def same(*pairs: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(*pairs, strict=True))


def check_steps(subject: Subject, module: ModuleType, o: Any) -> None:
    together, single = subject.draw(o), subject.draw(o)
    together.run(module)
    for t in range(o.t):
        single.run(module, **single.cut(slice(t, t + 1)))
    assert same(bits(together), bits(single))


def check_no_ops(subject: Subject, module: ModuleType, o: Any) -> None:
    call = subject.draw(replace(o, live=True, padding=False))
    call["live"].zero_()
    before = bits(call, call.pool)
    call.run(module)
    assert same(before, bits(call, call.pool))
    assert not call["out"].any()


def check_read_only(subject: Subject, module: ModuleType, o: Any) -> None:
    """The same output without the final state; rows with the same tokens have the same bits from one state."""
    call, other, shared = (subject.draw(replace(o, padding=False)) for _ in range(3))
    before = bits(call, call.pool)
    call.run(module, **subject.read_only)
    assert same(before, bits(call, call.pool))
    other.run(module)
    assert same(bits(call, "out"), bits(other, "out"))
    shared["slots"].fill_(int(shared["slots"][0]))
    for x in shared.cut(slice(None), "b").values():
        x[:] = x[:1].clone()
    shared.run(module, **subject.read_only)
    y = shared["out"]
    assert torch.equal(y, y[:1].expand_as(y))


def check_own_slots(subject: Subject, module: ModuleType, o: Any) -> None:
    """A row without a slot has that of its number, and the pool needs no more."""
    call, other = (subject.draw(replace(o, padding=False)) for _ in range(2))
    for one in (call, other):
        one[one.pool][: o.b] = one[one.pool][one.named[:1]]
    call["slots"].copy_(torch.arange(o.b))
    call.run(module)
    other.run(module, slots=None, **{other.pool: other[other.pool][: o.b]})
    assert same(bits(call, call.pool, "out"), bits(other, call.pool, "out"))


def check_far(subject: Subject, module: ModuleType, case: tuple[Any, str]) -> None:
    """The bits of all arguments are those of the same tensors close together; the last axis is read dense."""
    o, letter = case
    near, apart = subject.draw(o), subject.draw(o)
    near.run(module)
    for name, axis in apart.places(letter).items():
        x = apart.given[name]
        if x.is_floating_point() and axis + 1 < x.dim() and x.shape[axis] > 2:
            apart.given[name] = far(x, axis)
    apart.run(module)
    assert same(bits(near), bits(apart))


def written_or_not(*cases: Any) -> list[Any]:
    """The same with the final state and without it."""
    return [replace(o, padding=False, write=w, how={**o.how, "write_state": w}) for o in cases for w in (True, False)]


def nothing_accepted(draw: Callable[[Any], Call], *cases: Any) -> Callable[[ModuleType], None]:
    """A check of rows that accepted nothing, by either way to say so: their states are neither read nor written."""

    def check_nothing(module: ModuleType) -> None:
        for o, path in product(cases, (False, True)):
            call = draw(replace(o, path=path))
            call["path" if path else "advanced"].fill_(-1 if path else 0)
            kept = Kept(**call.tensors)
            with watched(**call.tensors) as seen:
                call.run(module)
            kept.check()
            assert seen.loaded("S").requested == seen.stored("S").requested == 0

    return check_nothing


def checks(subject: Subject) -> Iterator[Callable[[ModuleType], None]]:
    """What planted faults are judged by, one after the other: of the bytes two cases, and the others at last."""
    first, rest = (check_bytes, subject.moves[:2]), (check_bytes, subject.moves[2:])
    laws: list[tuple[Check, Sequence[Any]]] = [(check_bound, subject.cover), first, (check_steps, subject.steps)]
    own = [(lambda _, module, check: check(module), subject.special)]
    for law, cases in [*laws, *own, rest]:
        for o in cases:
            yield lambda module, law=law, o=o: law(subject, module, o)  # type: ignore[misc]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every subject of the file with its cases for a law; every planted fault with its subject."""
    if "subject" not in metafunc.fixturenames:
        return
    subjects: Sequence[Subject] = metafunc.module.SUBJECTS
    if "fault" in metafunc.fixturenames:
        named = {subject.name: subject for subject in subjects}
        assert len(named) == len(subjects), "two subjects have one name"
        faults: Mapping[str, Sequence[tuple[str, ...]]] = metafunc.module.FAULTS
        rows = [(named[name], fault) for name, of in faults.items() for fault in of]
        metafunc.parametrize(("subject", "fault"), rows, ids=[f"{s.name} {' '.join(f[2:])} {f[1]}" for s, f in rows])
        return
    cases: Callable[[Subject], Sequence[Any]] = CASES[metafunc.function.__name__]
    found = [(subject, o) for subject in subjects for o in cases(subject)]
    metafunc.parametrize(("subject", "o"), found, ids=[told(subject, o) for subject, o in found])


def told(subject: Subject, o: Any) -> str:
    return " ".join(map(_word, [subject.name, *(o if isinstance(o, tuple) else [o])]))


def _word(part: Any) -> str:
    """A name that is the same in every process: no address."""
    if isinstance(part, partial):
        return " ".join(map(_word, [part.func, *part.args, *part.keywords.values()]))
    return str(getattr(part, "__name__", part))


def test_results_lie_within_the_bound_and_nothing_else_is_written(subject: Subject, o: Any) -> None:
    check_bound(subject, subject.module, o)


def test_bytes_equal_the_formula_and_the_state_is_read_once(subject: Subject, o: Any) -> None:
    check_bytes(subject, subject.module, o)


def test_a_window_is_its_tokens_one_by_one_bit_for_bit(subject: Subject, o: Any) -> None:
    check_steps(subject, subject.module, o)


def test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero(subject: Subject, o: Any) -> None:
    check_no_ops(subject, subject.module, o)


def test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one(subject: Subject, o: Any) -> None:
    check_read_only(subject, subject.module, o)


def test_rows_without_slots_have_their_own_number(subject: Subject, o: Any) -> None:
    check_own_slots(subject, subject.module, o)


def test_an_axis_beyond_2_to_the_31_elements_is_reached(subject: Subject, o: Any) -> None:
    check_far(subject, subject.module, o)


def test_what_a_launcher_alone_is_held_to(subject: Subject, o: Any) -> None:
    o(subject.module)


def test_planted_fault_is_caught(subject: Subject, fault: tuple[str, ...]) -> None:
    mutant = mutated(subject.module, *fault[:2], at=fault[2] if len(fault) > 2 else None)
    assert caught(mutant, lambda module, judged: judged(module), checks(subject))


def with_small(subject: Subject) -> list[Any]:
    return [subject.small] if subject.small is not None else []


CASES: dict[str, Callable[[Subject], Sequence[Any]]] = {
    "test_results_lie_within_the_bound_and_nothing_else_is_written": lambda subject: subject.cover,
    "test_bytes_equal_the_formula_and_the_state_is_read_once": lambda subject: subject.moves,
    "test_a_window_is_its_tokens_one_by_one_bit_for_bit": lambda subject: subject.steps,
    "test_what_a_launcher_alone_is_held_to": lambda subject: subject.special,
    "test_an_axis_beyond_2_to_the_31_elements_is_reached": lambda subject: subject.far,
    "test_a_window_of_no_ops_leaves_the_state_bit_for_bit_and_outputs_zero": with_small,
    "test_without_the_final_state_the_output_is_the_same_and_rows_may_share_one": with_small,
    "test_rows_without_slots_have_their_own_number": with_small,
}
