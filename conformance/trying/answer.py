"""What `ssmspec conform try` says: what it read, what fits, what it could not know."""

from collections.abc import Iterator, Sequence

from ..judge.figures import ratio
from .layouts import Guess, left_out, ways_of
from .reading import Function
from .search import CASES, Tried
from .source import contract

FORMS = {
    ("A", "log"): "log(-A)",
    ("A", "positive"): "-A",
    ("A", "negative"): "A, negative",
    ("g", "log"): "a log decay",
    ("g", "factor"): "the decay itself, exp(g)",
}
"""The forms of an input's numbers, in words."""


def read(of: Function, one: Tried, dtype: str) -> Iterator[str]:
    """What was guessed, one line an argument, and how the results return."""
    guess = one.guess
    yield f"{of.name} read as {guess.operation} with {guess.framework} in {dtype}:"
    width = max(len(a.name) for a in of.arguments)
    for argument in of.arguments:
        yield f"  {argument.name:{width}}  {_argument(guess, argument.name, argument.default)}"
    if one.outputs is not None:
        y, state = one.outputs.y, one.outputs.state
        told = f"the state is {_place(state)} ({one.outputs.state_axes})" if state else "the state is written in place"
        told = "it keeps no window, so the adapter does" if state is None else told
        yield f"  returns: the output is {_place(y)} ({one.outputs.y_axes}); {told}"


def _place(at: str) -> str:
    return "what it returns" if at.isidentifier() else at


def _argument(guess: Guess, name: str, default: object) -> str:
    matching, table = guess.matching, guess.matching.of
    if name in matching.flags and not (matching.flags[name] == "chunk" and isinstance(default, int)):
        flag = matching.flags[name]
        return f"{table.flags[flag].option or flag}: {table.flags[flag].value}"
    if name not in matching.inputs:
        return f"left at its default, {default!r}"
    role = matching.inputs[name]
    form = FORMS.get((role, guess.ways.get(role, "")), "")
    said = [f"({guess.layouts[role]})", *([form] if form else [])]
    said += ["no other input was left for it"] if name in matching.told else []
    return f"{role} {', '.join(said)}"


def unknown(of: Function, guess: Guess, dtype: str) -> Iterator[str]:
    """What the signature does not say."""
    fields = contract(of, guess, dtype)
    taken = f"{fields['accumulate']} arithmetic, {fields.get('order', 'token by token')}"
    yield f"not known: how it computes inside. Taken: {taken}. Change CONTRACT if that is wrong."
    left = left_out(guess.matching.family, guess.options)
    left += [f"{axis} above 1" for axis in guess.sizes] + ([] if guess.options.get("slots") is None else ["an initial state"])
    if left:
        yield f"left out, since the function does not take it: {', '.join(left)}. Change LIMITS if that is wrong."
    for role, forms in guess.matching.of.ways.items():
        if (way := guess.ways.get(role, forms[0])) not in (forms[0], *ways_of(guess.matching, role)[:1]):
            told = f"Doubt: {guess.matching.argument(role)} fits only as {FORMS[role, way]}."
            yield f"{told} If it is meant to be {FORMS[role, forms[0]]}, the function is wrong."
    if guess.ways.get("scale") == "outside":
        yield "the adapter multiplies the output by the scale, because the function does not."


def verdict(one: Tried) -> str:
    """In how many of the drawn cases a guess fits."""
    if one.right:
        return f"fits in {CASES} of {CASES} drawn cases, with at most {ratio(one.share)} of the allowed error"
    if one.off == float("inf"):
        return f"could not be compared: {one.said}"
    return f"fits in {one.fits} of {CASES} drawn cases, off by {one.off:.2g} of the values: {one.said}"


def differing(fits: Sequence[Tried]) -> list[str]:
    """What tells each of several guesses from the others."""
    parts = [_parts(one.guess) for one in fits]
    shared = set.intersection(*(set(part.items()) for part in parts))
    return [", ".join(f"{k}={v}" for k, v in part.items() if (k, v) not in shared) for part in parts]


def _parts(guess: Guess) -> dict[str, str]:
    layouts = {n: guess.layouts[role].replace(" ", ",") for n, role in guess.matching.inputs.items()}
    ways = {f"form of {role}": FORMS.get((role, way), way) for role, way in guess.ways.items()}
    return {"operation": guess.operation, "framework": guess.framework} | layouts | ways | _roles(guess)


def _roles(guess: Guess) -> dict[str, str]:
    return {f"meaning of {name}": guess.matching.inputs[name] for name in guess.matching.told}


def flags(one: Tried, fits: Sequence[Tried]) -> str:
    """The options of the command that choose a guess among several."""
    mine, others = _parts(one.guess), [_parts(other.guess) for other in fits if other is not one]
    differ = [k for k, v in mine.items() if any(other.get(k) != v for other in others)]
    if "operation" in differ:
        return f"--operation {mine['operation']}"
    return " ".join(f"--layout {k}={mine[k]}" for k in differ if k in one.guess.matching.inputs) or "--yes"


def doubt(one: Tried, other: Tried) -> str:
    """What is said of a more general layout that can be called and is wrong."""
    told = (
        f"Doubt: it can also be called with {differing([other, one])[0]}, and is then off by {other.off:.2g} of the values."
    )
    return f"{told} If it is meant to take that, it is wrong there: test it by {flags(other, [one, other])}"
