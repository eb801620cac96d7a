"""The numbers that decide beside the integers of a row: the step size and its limits, the tokens that end a run, and at the
node of a sampled token its probabilities, coins and pick."""

from collections.abc import Callable, Mapping

import numpy as np

from ssmspec_ref.functions import softplus
from ssmspec_ref.shapes import Array

from ..leaves import Leaf, leaves
from ..observe import Observation

Known = Mapping[str, Leaf]
At = Mapping[str, int]
MOST, ROWS = 8, 8
"""Probabilities of a node, and rows of which the lengths are listed."""
TEXTS = ("history", "prompt", "output")
"""Inputs whose rows end where -1 begins."""


def numbers(found: Observation, at: At) -> list[str]:
    """What is known of the first wrong place, in words; `at` is that place, by axis."""
    known = {leaf.name: leaf for leaf in leaves(found.case.operation, found.arguments) if "*" not in leaf.path}
    told = (says(found, known, at) for names, says in EVERY.items() if known.keys() >= set(names))
    return [one for one in told if one]


def _step_size(found: Observation, known: Known, at: At) -> str:
    """The step size before and after its limits, if it has any."""
    low, high = known["dt_limit"].value
    if (low, high) == (0.0, np.inf) or (given := _number(known["dt"], at)) is None:
        return ""
    bias = _number(known["dt_bias"], at)
    made = np.asarray(given + (bias or 0.0))
    free = softplus(made) if known["dt_softplus"].value else made
    within = np.clip(free, low, high)
    kept = "is within" if within == free else f"is clamped to {float(within):.6g} by"
    return f"dt={given:.6g}, with bias and softplus {float(free):.6g}, {kept} dt_limit {low:.6g} to {high:.6g}"


def _number(leaf: Leaf, at: At) -> float | None:
    """The element of an input at a place; None if the place has no position on one of its longer axes."""
    if leaf.value is None or any(axis not in at and size > 1 for axis, size in zip(leaf.axes, leaf.value.shape, strict=True)):
        return None
    where = tuple(at.get(axis, 0) for axis in leaf.axes)
    inside = all(n < size for n, size in zip(where, leaf.value.shape, strict=True))
    return float(leaf.value[where]) if inside else None


def _ends(found: Observation, known: Known, at: At) -> str:
    """The tokens that end a run."""
    tokens = known["eos"].value
    return f"eos={' '.join(map(str, sorted({int(token) for token in tokens})))}" if tokens else ""


def _sampled(found: Observation, known: Known, at: At) -> str:
    """The probabilities at the node where the paths part or, on one path, whose next token is wrong; the coins of its
    children, and its pick."""
    paths = [n for n, want in enumerate(found.expected) if want.name == "path"]
    row, parents = at.get("b", 0), known["parents"].value
    if not paths:
        return ""
    path, came = found.expected[paths[0]].value[row], found.came[paths[0]][row]
    apart = np.flatnonzero(path != came)
    accepted = path[path >= 0].astype(int)
    place = int(apart[0]) - 1 if len(apart) else at.get("t", 0)
    node = int(accepted[max(0, min(place, len(accepted) - 1))]) if len(accepted) else 0
    children = np.flatnonzero(parents[row] == node)
    coins = [f"{n}: {float(known['coins'].value[row, n]):.4g}" for n in children]
    told = [f"at node {node} p={_listed(known['p'].value[row, node])}", f"q={_listed(known['q'].value[row, node])}"]
    told += [f"coins of nodes {', '.join(coins)}"] if coins else []
    return ", ".join([*told, f"pick {float(known['picks'].value[row, node]):.4g}"])


def _listed(values: Array) -> str:
    said = " ".join(f"{float(value):.4g}" for value in values[:MOST])
    return said + (f" .. (of {len(values)})" if len(values) > MOST else "")


NEUTRAL = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "presence": 0.0, "frequency": 0.0,
    "min_tokens": 0,
}  # fmt: skip
"""The settings of a row that change nothing."""


def _settings(found: Observation, known: Known, at: At) -> str:
    """The settings of a row that change something."""
    row, every = at.get("b", 0), {name: np.asarray(known[name].value) for name in NEUTRAL if name in known}
    each = {name: (value[row] if value.ndim else value).item() for name, value in every.items()}
    given = {name: value for name, value in each.items() if value != NEUTRAL[name]}
    return ", ".join(f"{name} {value:.4g}" for name, value in given.items())


def _lookup(found: Observation, known: Known, at: At) -> str:
    """The longest suffix that is looked for, and which occurrence is taken."""
    return f"longest suffix {known['longest'].value}, the {known['choice'].value} occurrence"


def _padding(found: Observation, known: Known, at: At) -> str:
    """The rows that are padding."""
    rows = np.flatnonzero(np.asarray(known["read"].value) < 0)
    if not len(rows) or len(rows) > ROWS:
        return ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))} {'is' if len(rows) == 1 else 'are'} padding"


def _lengths(name: str) -> Callable[[Observation, Known, At], str]:
    """The number of tokens of each row of a text, if they differ."""

    def told(found: Observation, known: Known, at: At) -> str:
        value = known[name].value
        lengths = (value >= 0).sum(axis=1) if value.ndim == 2 else np.zeros(0)
        if not 1 < len(lengths) <= ROWS or len(set(lengths.tolist())) < 2:
            return ""
        return f"tokens of {name} in each row {' '.join(map(str, lengths))}"

    return told


EVERY: dict[tuple[str, ...], Callable[[Observation, Known, At], str]] = {
    ("dt", "dt_limit", "dt_bias", "dt_softplus"): _step_size,
    ("eos",): _ends,
    ("p", "q", "coins", "picks", "parents"): _sampled,
    ("read", "write"): _padding,
    ("temperature", "presence", "frequency", "repetition"): _settings,
    ("history", "longest", "choice"): _lookup,
    **{(name,): _lengths(name) for name in TEXTS},
}
"""The words for the inputs with these names."""
