"""A mistake: a right operation with some of its inputs changed before it, or some of its outputs after it.

An input is an argument, or a field of a record among the arguments, by its name; an output has the name that `outputs_of`
gives it. A change is a value, or a function. A function's parameters say what it reads: inputs and outputs by their names,
and `own` is what is changed. What is absent, or None, is not changed by a function.

    before("two_ends", "Only the first two tokens that end a sequence are tested.", eos=lambda own: own[:2])
    after("few_heads", "Heads from the 32nd on are not written.", y=drop(2, 32))
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from inspect import signature
from typing import Any

import numpy as np

from ssmspec_ref.errors import ParameterError

Given = Mapping[str, Any]
OUTPUTS: dict[str, tuple[str, ...]] = {
    "attention.compact": ("K_next", "V_next"),
    "acceptance.greedy": ("emitted", "path", "advanced", "ended"),
    "acceptance.greedy_logits": ("emitted", "path", "advanced", "ended"),
    "acceptance.sampled": ("emitted", "path", "advanced", "ended"),
    "conv.scan": ("y", "M_next"),
    "conv.scan_masked": ("y", "M_next"),
    "conv.commit": ("M_next",),
    "conv.commit_path": ("M_next",),
}


def outputs_of(operation: str) -> tuple[str, ...]:
    """The names of the outputs: y and S_next, if they are no others."""
    return OUTPUTS.get(operation, ("y", "S_next"))


@cache
def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(signature(function).parameters)


def changed(changes: Given, given: Given) -> dict[str, Any]:
    """The new value of each name that is changed and present."""
    made: dict[str, Any] = {}
    for name, change in changes.items():
        if name not in given:
            continue
        if not callable(change):
            made[name] = change
        elif (own := given[name]) is not None:
            read = {**given, "own": own}
            made[name] = change(*(read.get(name) for name in parameters(change)))
    return made


def inputs(names: Iterable[str], arguments: Iterable[Any]) -> dict[str, Any]:
    """Every argument and every field of a record among them, by its name."""
    found: dict[str, Any] = {}
    for name, value in zip(names, arguments, strict=False):
        found[name] = value
        if is_dataclass(value):
            found |= {field.name: getattr(value, field.name) for field in fields(value)}
    return found


def put(names: Iterable[str], arguments: Iterable[Any], new: Given) -> tuple[Any, ...]:
    """The arguments with new values for some names. Raises: what a record raises."""
    given, made = tuple(arguments), list[Any]()
    for name, value in zip(names, given, strict=False):
        own: dict[str, Any] = {}
        if is_dataclass(value):
            own = {field.name: new[field.name] for field in fields(value) if field.name in new}
        made.append(new[name] if name in new else replace(value, **own) if own else value)
    return (*made, *given[len(made) :])


class Mistake:
    """What is changed of a right operation, with the name and the sentence of the mistake."""

    def __init__(self, name: str, says: str, inputs: Given, outputs: Given) -> None:
        self.__name__, self.__doc__ = name, says
        self.inputs, self.outputs = inputs, outputs
        self.only: tuple[str, ...] = ()
        self.right: Callable[..., Any] | None = None

    def after(self, **outputs: Any) -> "Mistake":
        """The same, with outputs changed too; a change reads those that the changed inputs give."""
        name, says = (self.__name__, self.__doc__) if self.__name__ else named_as("", "", outputs)
        return self._with(outputs=outputs, __name__=name, __doc__=says)

    def of(self, *outputs: str) -> "Mistake":
        """The same for these outputs; the others are computed from the inputs as they came."""
        return self._with(only=outputs)

    def over(self, right: Callable[..., Any]) -> "Mistake":
        """The same over another derivation of the operation."""
        return self._with(right=right)

    def _with(self, **new: Any) -> "Mistake":
        made = Mistake(self.__name__, self.__doc__ or "", self.inputs, self.outputs)
        vars(made).update({**vars(self), **new})
        return made

    def made(self, operation: str, right_of: Callable[[str], Any], narrow: bool) -> Callable[..., Any]:
        """The operation with the mistake. `narrow`: its outputs are stored in single precision."""
        right = self.right or right_of(operation)
        names, said = parameters(right), outputs_of(operation)
        if unknown := {*self.outputs, *self.only} - {*said}:
            raise ParameterError(
                f"{self.__name__} changes {', '.join(sorted(unknown))} of {operation}; give {', '.join(said)}"
            )

        def run(*arguments: Any) -> Any:
            given = inputs(names, arguments)
            with np.errstate(all="ignore"):
                came = right(*put(names, arguments, changed(self.inputs, given)))
                every = dict(zip(said, came, strict=True)) if isinstance(came, tuple) else {said[0]: came}
                if self.only:
                    kept = zip(said, right(*arguments), strict=True)
                    every = {name: every[name] if name in self.only else own for name, own in kept}
                every |= changed(self.outputs, {**given, **every})
            values = tuple(narrowed(a) if narrow else a for a in every.values())
            return values if isinstance(came, tuple) else values[0]

        run.__name__, run.__doc__ = self.__name__, self.__doc__
        vars(run)["mistake"] = self
        return run


def narrowed(a: Any) -> Any:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def named_as(name: str, says: str, changes: Given) -> tuple[str, str]:
    """The name and the sentence, or those of the first change that is a function with a docstring."""
    function = next((change for change in changes.values() if callable(change) and change.__doc__), None)
    return (name, says) if name or function is None else (function.__name__, function.__doc__ or "")


def before(name: str = "", says: str = "", /, **inputs: Any) -> Mistake:
    """A mistake in what is read."""
    return Mistake(*named_as(name, says, inputs), inputs, {})


def after(name: str = "", says: str = "", /, **outputs: Any) -> Mistake:
    """A mistake in what is written."""
    return Mistake(*named_as(name, says, outputs), {}, outputs)


def instead(name: str, says: str, run: Callable[..., Any]) -> Mistake:
    """Another computation in place of the right one."""
    return Mistake(name, says, {}, {}).over(run)
