"""Attacks by what is returned: arrays that are none, or that are more than they seem; a suite that is changed in place."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.robust.hostile.corpus import attack, wrong
from tests.robust.hostile.lines import Planted


@attack("dtype", said="complex128")
def returns_complex_numbers(*given: Any) -> Any:
    """Outputs with an imaginary part."""
    return tuple(a.astype(complex) for a in wrong(*given))


@attack("dtype", said="of object", quick=True)
def returns_objects(*given: Any) -> Any:
    """Outputs that hold what runs where it is unpickled."""
    y, S = wrong(*given)
    return np.full(y.shape, Planted()), S


@attack("bound", said="wrong by", quick=True)
def hides_an_object_in_a_type(*given: Any) -> Any:
    """Outputs whose type carries what runs where it is unpickled."""
    y, S = wrong(*given)
    return y.astype(np.dtype(np.float32, metadata={"planted": Planted()})), S


class Array(np.ndarray):
    """An array that equals whatever it is compared with."""

    def __sub__(self, other: Any) -> Any:
        return np.zeros(self.shape)

    def __reduce__(self) -> Any:
        return Planted().__reduce__()


@attack("dtype", said="Array of float32")
def returns_an_array_of_its_own(*given: Any) -> Any:
    """Outputs whose difference to anything is 0."""
    return tuple(a.view(Array) for a in wrong(*given))


@attack("dtype", "outputs", said="it must be a NumPy array|returned")
def returns_a_generator(*given: Any) -> Any:
    """Outputs that are made when they are looked at."""
    return (a for a in wrong(*given))


@attack("outputs", "garbled", "timeout", "crash", said="outputs|message|no answer within|MemoryError")
def returns_a_million_arrays(*given: Any) -> Any:
    """More outputs than anybody counts."""
    return tuple(np.zeros(1)[:0] for _ in range(1_000_000))


@attack("garbled", "error", "memory", said="message|Memory|memory")
def returns_a_gigabyte(*given: Any) -> Any:
    """An output that no case has."""
    return np.ones(1 << 27), wrong(*given)[1]


@attack("nan", said="holds nan")
def returns_what_is_no_number(*given: Any) -> Any:
    """Outputs of which every comparison is false."""
    return tuple(np.full_like(a, np.nan) for a in wrong(*given))


@attack("mutated", said="wrote into its inputs")
def writes_into_its_inputs(S: Any, window: Any, params: Any) -> Any:
    """Makes the inputs such that zeros are right."""
    window.x[...] = 0
    return wrong(S, window, params)


@attack("bound", said="wrong by", quick=True)
def changes_the_suite(*given: Any) -> Any:
    """Replaces what compares, measures and judges, where it can reach it."""
    import conformance.judge.verdict as judging
    from conformance.run.process import Process
    from ssmspec_ref.contract import Verdict

    judging.compare = lambda *given: judging.Judgement(Verdict.PASS)
    judging.judge = lambda *given: judging.Judgement(Verdict.PASS)
    Process._answer = lambda *given: None  # type: ignore[assignment]
    np.abs = lambda a: np.zeros_like(a)  # type: ignore[assignment]
    return wrong(*given)


@attack("error", "printed", "bound", said="")
def plants_a_module(*given: Any) -> Any:
    """Writes modules where it runs, for another process to import."""
    if "SSMSPEC_LISTED" in os.environ:
        folder = Path(os.environ["SSMSPEC_LISTED"]).parent
        (folder / "numpy.py").write_text("raise SystemExit(0)\n")
        (folder / "sitecustomize.py").write_text("raise SystemExit(0)\n")
    return wrong(*given)
