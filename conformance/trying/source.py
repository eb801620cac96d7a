"""The adapter of a guess, as code that a person continues with. What is tried is what is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os.path import relpath
from pathlib import Path

from ssmspec_ref.options.words import ALSO

from .layouts import Guess
from .reading import Function
from .spellings import CHUNKS, Role

HELD = {"fp64": "double", "fp32": "float", "bf16": "float", "fp16": "half"}
"""The type of an array that holds the numbers of a type: NumPy has no bf16."""
ACCUMULATE = {"fp64": "fp64"}
"""The type of the arithmetic that is taken, where it is not fp32."""
NUMPY_EXP = 3
"""The error of NumPy's exp in float32, in ulp (`NumericContract.function_ulp`)."""
CHUNKED = ("chunk", "parallel", "pscan", "assoc", "ssd_minimal")
"""What the name of a function has that computes chunk by chunk."""


@dataclass(frozen=True)
class Outputs:
    """Where the output and the state are in what the function returned, and their axes. `state` is "" for a state that was
    written in place, None for a convolution that keeps none."""

    y: str
    y_axes: str
    state: str | None
    state_axes: str


CONVERSIONS = {
    "numpy": '''def tensor(a):
    """A new array in the type that the function takes."""
    return None if a is None else np.array(a, dtype=np.{dtype}, order="C")


def array(a):
    """What the function returned, in its type."""
    return np.array(a, dtype=np.{dtype})
''',
    "torch": '''def tensor(a):
    """A new tensor in the type that the function takes."""
    return None if a is None else torch.tensor(np.ascontiguousarray(a), dtype=torch.{dtype})


def array(a):
    """What the function returned, in its type, as NumPy."""
    return a.detach().cpu().to(torch.{dtype}).{held}().numpy().copy()
''',
}
CONTRACT = """# How the function computes. What its name does not say is a guess: say what is true. The allowed error follows
# from this and from the data; a wider contract allows a larger error.
CONTRACT = NumericContract({said})
"""
LIMITS = """# The values of each option that the function takes; of an option that is not named it takes all. `sizes`: the
# smallest and the largest. Other cases are left out.
TAKES = {takes}
LIMITS = Limits(TAKES, sizes={sizes}, reason="the function has no such argument")
"""
ADAPTER = '''def adapter():
    """Named on the command line."""
    capability = Capability({run}, CONTRACT, LIMITS)
    subject = Subject("{name}", {{"{operation}": capability}}, absent={{"": "one function is tested"}})
    return Adapter("{module}", "{version}", (subject,))
'''


def source(of: Function, guess: Guess, dtype: str, outputs: Outputs | None, out: Path = Path("adapter.py")) -> str:
    """The adapter. Without `outputs`, its operation returns what the function returned, and the state that it was given."""
    wide, run = ALSO[dtype], guess.operation.partition(".")[2]
    numpy, logs = guess.framework == "numpy", guess.ways.get("A") == "log" and outputs is not None
    names = ["Adapter", "Capability", "Limits", "NumericContract", "Subject", *(["WithWeights"] if logs else [])]
    home = "" if of.path is None else relpath(of.path.resolve().parent, out.resolve().parent)
    path = [] if home in ("", ".") else ["import sys", "from pathlib import Path", ""]
    found = [] if not path else [f"sys.path.insert(0, str(Path(__file__).resolve().parent / {_shown(home)}))", ""]
    head = [
        f'"""An adapter of {of.name}, which `ssmspec conform try` wrote from its signature: continue with it.',
        "",
        f"ssmspec conform run --adapter {out.stem}:adapter",
        '"""',
        "",
        *path,
        *(["from dataclasses import replace", ""] if logs else []),
        "import numpy as np",
        *(["import torch"] if not numpy else []),
        "",
        "from conformance.trying.arrange import laid",
        f"from ssmspec_ref.contract import {', '.join(names)}",
        "",
        *found,
        f"from {of.module} import {of.name.partition('.')[0]}",
        "",
        "",
        CONVERSIONS[guess.framework].format(dtype=wide, held=HELD[dtype]),
        "",
    ]
    limits = {"takes": _shown(dict(guess.options)), "sizes": _shown(dict(guess.sizes))}
    tail = [
        "",
        CONTRACT.format(said=", ".join(f"{k}={_shown(v)}" for k, v in contract(of, guess, dtype).items())),
        LIMITS.format(**limits),
        "",
        ADAPTER.format(name=of.name, operation=guess.operation, run=run, module=of.module, version=_version(of.module)),
    ]
    return "\n".join([*head, *_operation(of, guess, run, outputs), *tail])


def contract(of: Function, guess: Guess, dtype: str) -> dict[str, str | int]:
    """The fields of the contract: the formats of the type, and chunks if a name says so."""
    said: dict[str, str | int] = {"state": dtype, "io": dtype, "accumulate": ACCUMULATE.get(dtype, "fp32")}
    sizes = [a.default for a in of.arguments if a.name in CHUNKS]
    if guess.scans and (sizes or any(word in of.name.lower() for word in CHUNKED)):
        said |= {"order": "chunked"} | ({"chunk": sizes[0] if isinstance(sizes[0], int) else 16} if sizes else {})
    return said | ({"function_ulp": NUMPY_EXP} if guess.framework == "numpy" else {})


def _operation(of: Function, guess: Guess, run: str, outputs: Outputs | None) -> Iterator[str]:
    """The function that the suite calls."""
    table, token = guess.matching.of, "window" if guess.scans else "token"
    keeps, convolves = guess.matching.argument(table.state) is not None, guess.matching.family == "conv"
    S, inputs = table.state, "u" if convolves else token
    yield f"def {run}({S}, {inputs}, params):"
    said = f"the output ({guess.output_axes}) and the state ({guess.source_axes(S)})"
    yield f'    """{guess.operation}({S}, {inputs}, params) -> y, {S}: {said}."""'
    if keeps:
        yield f"    state = tensor({_laid(guess, S, S)})"
    elif convolves:
        yield "    # The function keeps no window, so the last inputs go before the others."
        yield f"    seen = np.concatenate([{S}.transpose(0, 2, 1)[:, 1:], u], axis=1)"
    if guess.ways.get("A") == "log":
        yield "    A_log = np.log(-params.A)"
    if "scale" in table.flags and (guess.matching.argument("scale") or guess.ways.get("scale") == "outside"):
        yield f"    scale = {token}.k.shape[-1] ** -0.5 if params.scale is None else params.scale"
    yield f"    returned = {of.name}("
    named = False
    for argument in of.arguments:
        value = _value(guess, argument.name, token, keeps)
        if value is None or (value.flag and not argument.needed and value.flag == "16"):
            named = True
            continue
        named = named or (argument.by_name and not argument.needed)
        yield f"        {f'{argument.name}=' if named else ''}{value.flag or value.text},{value.comment}"
    yield "    )"
    if outputs is None:
        yield f"    return returned, {'state' if keeps else 'None'}"
    else:
        yield from _returned(guess, outputs, S)
    yield ""


def _returned(guess: Guess, outputs: Outputs, S: str) -> Iterator[str]:
    """The lines that return the output and the state."""
    y = _back(f"array({outputs.y})", outputs.y_axes, guess.output_axes)
    y = f"scale * {y}" if guess.ways.get("scale") == "outside" else y
    if outputs.state is None:
        yield f"    return {y}[:, -u.shape[1] :], np.concatenate([{S}, u.transpose(0, 2, 1)], axis=2)[:, :, -{S}.shape[2] :]"
        return
    axes = guess.source_axes(S)
    axes = axes.replace("w", "q") if "q" in outputs.state_axes.split() else axes
    state = _back(f"array({outputs.state or 'state'})", outputs.state_axes, axes)
    if guess.ways.get("A") != "log":
        yield f"    return {y}, {state}"
        return
    yield "    used = replace(params, A=-np.exp(array(tensor(A_log)).astype(np.float64)))  # as rounded"
    yield f"    return WithWeights(({y}, {state}), used)"


def _back(array: str, axes: str, wanted: str) -> str:
    """The expression of an output in the reference's layout; an axis that it lacks has size 1."""
    after = " ".join(axis if axis in axes.split() else "1" for axis in wanted.split())
    return array if axes == wanted else f'laid({array}, "{axes} -> {after}")'


@dataclass(frozen=True)
class _Value:
    """An argument of the call: a flag, or an input and a comment on it."""

    text: str = ""
    flag: str = ""
    comment: str = ""


def _value(guess: Guess, argument: str, token: str, keeps: bool) -> _Value | None:
    """What an argument gets; None if it is left at its default."""
    table = guess.matching.of
    if argument in guess.matching.flags:
        return _Value(flag=table.flags[guess.matching.flags[argument]].value)
    name = guess.matching.inputs.get(argument)
    if name is None:
        return None
    if name == table.state:
        return _Value("state")
    at = table.roles[name].at.replace("window", token)
    at = "seen" if at == "u" and not keeps else at
    forms = {("A", "log"): "A_log", ("A", "positive"): f"-{at}", ("g", "factor"): f"np.exp({at})"}
    laid = _laid(guess, name, forms.get((name, guess.ways.get(name, "")), at))
    return _Value(
        f"tensor({laid})", comment="" if "laid(" in laid or not guess.layouts[name] else f"  # {guess.layouts[name]}"
    )


def _laid(guess: Guess, name: str, at: str) -> str:
    """The expression of an input in its layout."""
    before, after = guess.source_axes(name), guess.layouts[name]
    if before == after:
        return at
    always = set.intersection(*({*one.split()} for one in before.split("|")))
    new = [x for x in after.split() if x != "1" and x not in always and not (x == "q" and "w" in always)]
    sizes = "".join(f", {letter}={_size(guess, letter)}" for letter in new)
    return f'laid({at}, "{before} -> {after}"{sizes})'


def _size(guess: Guess, letter: str) -> str:
    """The expression of an axis' size: of the first input that has it and is always given."""
    token, roles = "window" if guess.scans else "token", guess.matching.of.roles
    given: list[tuple[str, Role]] = [(n, r) for n, r in roles.items() if r.absent is None and n != guess.matching.of.state]
    for name, role in given:
        axes = guess.source_axes(name).split()
        if letter in axes:
            return f"{role.at.replace('window', token)}.shape[{axes.index(letter)}]"
    return "1"


def _shown(value: object) -> str:
    """A value as this project writes it: strings in double quotes."""
    return repr(value).replace("'", '"')


def _version(module: str) -> str:
    """The version of the distribution that a module is of."""
    try:
        return version(module.partition(".")[0])
    except PackageNotFoundError:
        return "0"
