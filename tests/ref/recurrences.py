"""The recurrences and the convolution as the laws of these tests see them: one description each."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from ssmspec_ref import conv, delta, error_bounds, mamba3, records, selective, shortconv, ssd
from ssmspec_ref.conv import filter as conv_filter
from ssmspec_ref.conv import tree as conv_tree
from ssmspec_ref.delta import chunked as delta_chunked
from ssmspec_ref.delta import tree as delta_tree
from ssmspec_ref.mamba3 import chunked as mamba3_chunked
from ssmspec_ref.mamba3 import tree as mamba3_tree
from ssmspec_ref.selective import chunked as selective_chunked
from ssmspec_ref.selective import tree as selective_tree
from ssmspec_ref.shapes import Ancestors, Array, Mask
from ssmspec_ref.shortconv import chunked as shortconv_chunked
from ssmspec_ref.shortconv import tree as shortconv_tree
from ssmspec_ref.ssd import chunked as ssd_chunked
from ssmspec_ref.ssd import tree as ssd_tree
from ssmspec_ref.tree import paths as tree_paths
from tests import families
from tests.families import FAMILIES, TOLERANCE, Family, Sizes


@dataclass(frozen=True)
class Recurrence:
    """The modules of a recurrence, how its arguments are drawn, and with which options."""

    definition: Any
    chunked: Any
    tree: Any
    bounds: Any
    draw: Callable[..., Any]
    options: dict[str, list[Any]] = field(default_factory=dict)  # that a draw may take
    fixed: dict[str, Any] = field(default_factory=dict)  # of a case of one seed
    doubled: str = ""  # the input in which, with the state, the output is linear
    close: float = TOLERANCE  # of two derivations


class Convolution:
    """The convolution in the form of a recurrence: its state is the window, its tokens are arrays."""

    @staticmethod
    def step(M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        return conv.step(M, u, params)

    @staticmethod
    def scan(M: Array, u: Array, params: Any, live: Mask | None = None) -> tuple[Array, Array]:
        return conv.scan(M, u, params) if live is None else conv.scan_masked(M, u, live, params)

    @classmethod
    def states(cls, M: Array, u: Array, params: Any, live: Mask | None = None) -> tuple[Array, Array]:
        """The window after every token is that of a shorter run."""
        runs = [cls.scan(M, u[:, :t], params, None if live is None else live[:, :t]) for t in range(1, u.shape[1] + 1)]
        return runs[-1][0], np.stack([after for _, after in runs], axis=1)


def conv_case(seed: int, sizes: Sizes, family: Family, **options: Any) -> Any:
    return families.conv_case(seed, sizes, **options)


SWITCH = [True, False]
PLAIN = {"z": False, "D": None, "bias": False, "dt_softplus": False}
CONV = Recurrence(
    Convolution,
    SimpleNamespace(scan=lambda M, u, params, live=None, chunk=0: conv_filter.scan(M, u, params, live)),
    SimpleNamespace(scan=conv_tree.scan_ancestors),
    error_bounds.conv,
    conv_case,
    {"bias": SWITCH, "activation": SWITCH},
)
SSD = Recurrence(
    ssd,
    ssd_chunked,
    ssd_tree,
    error_bounds.ssd,
    families.ssd_case,
    {
        "D": ["head", "channel", None],
        "z": SWITCH,
        "bias": SWITCH,
        "dt_softplus": SWITCH,
        "dt_limit": [(0.0, math.inf), (0.02, 0.06), (0.5, math.inf)],
    },
    {"D": "channel", "dt_limit": (1e-3, 50.0)},
    "x",
)
DELTA = Recurrence(
    delta,
    delta_chunked,
    delta_tree,
    error_bounds.delta,
    families.delta_case,
    {"channel_gate": SWITCH, "l2_norm": SWITCH, "scale": [None, 0.7], "beta_max": [1.0, 2.0]},
    doubled="v",
)
SELECTIVE = Recurrence(
    selective,
    selective_chunked,
    selective_tree,
    error_bounds.selective,
    families.selective_case,
    {"D": SWITCH, "z": SWITCH, "bias": SWITCH, "dt_softplus": SWITCH},
    doubled="x",
)
SHORTCONV = Recurrence(
    shortconv, shortconv_chunked, shortconv_tree, error_bounds.shortconv, families.shortconv_case, {"bias": SWITCH}
)
MAMBA3 = Recurrence(
    mamba3,
    mamba3_chunked,
    mamba3_tree,
    error_bounds.mamba3,
    families.mamba3_case,
    {"z": SWITCH, "pairs": ["neighbours", "halves"]},
    close=1e-11,  # sums of a few hundred terms of size up to 100, at angles of up to 1000
)
DECAYING = {"ssd": SSD, "delta": DELTA, "selective": SELECTIVE}
"""Whose chunks and trees are made by one decay of every pair of tokens."""
RECURRENCES = {**DECAYING, "shortconv": SHORTCONV, "mamba3": MAMBA3}
ALL = {**RECURRENCES, "conv": CONV}
VARIANTS = {
    **ALL,
    "ssd_plain": replace(SSD, fixed=PLAIN),
    "delta_channel": replace(DELTA, fixed={"channel_gate": True, "beta_max": 2.0, "l2_norm": False, "scale": 0.7}),
}
BY_DECAYS = ("ssd", "ssd_plain", "delta", "delta_channel", "selective")
"""The variants of those whose closed forms are made of decays."""


class Case(NamedTuple):
    """The arguments of a recurrence."""

    recurrence: Recurrence
    S: Array
    window: Any
    params: Any
    rng: np.random.Generator

    def scan(self, live: Mask | None = None) -> tuple[Array, Array]:
        return self.recurrence.definition.scan(self.S, self.window, self.params, live)

    def states(self, live: Mask | None = None) -> tuple[Array, Array]:
        return self.recurrence.definition.states(self.S, self.window, self.params, live)

    def chunks(self, chunk: int = 64, live: Mask | None = None) -> tuple[Array, Array]:
        return self.recurrence.chunked.scan(self.S, self.window, self.params, live, chunk=chunk)

    def tree(self, ancestors: Ancestors) -> Array:
        """The closed form."""
        return self.recurrence.tree.scan(self.S, self.window, ancestors, self.params)

    def along(self, ancestors: Ancestors) -> Array:
        """The plain recurrence along the path of every node."""
        plain = self.recurrence.definition.scan
        return tree_paths.scan(lambda S, window: plain(S, window, self.params), self.S, self.window, ancestors)

    def of(self, window: Any) -> "Case":
        return self._replace(window=window)

    def token(self, t: int) -> Any:
        return self.window[:, t] if isinstance(self.window, np.ndarray) else self.window.token(t)

    @property
    def tokens(self) -> int:
        return int(next(records.arrays(self.window)).shape[1])

    def live(self) -> Array:
        """Six tokens of ten."""
        return self.rng.uniform(size=next(records.arrays(self.window)).shape[:2]) < 0.6

    def near(self, got: Any, ref: Any) -> bool:
        """Whether outputs, or outputs and states, are those of the other derivation."""
        pairs = zip(got, ref, strict=True) if isinstance(got, tuple) else [(got, ref)]
        return all(families.deviation(a, b) <= self.recurrence.close for a, b in pairs)


def case(name: str, seed: int, sizes: Sizes, family: Family = "gentle", **options: Any) -> Case:
    recurrence = VARIANTS[name]
    arguments = recurrence.draw(seed, sizes, family, **{**recurrence.fixed, **options})
    return Case(recurrence, *arguments, np.random.default_rng([seed, 9]))


@st.composite
def drawn(draw: st.DrawFn, name: str, tokens: int = 13) -> Case:
    """Arguments of any size, family and options."""
    options = {option: draw(st.sampled_from(values)) for option, values in VARIANTS[name].options.items()}
    return case(name, draw(families.seeds), draw(families.drawn_sizes(tokens)), draw(st.sampled_from(FAMILIES)), **options)


def garbage(window: Any, live: Mask) -> Any:
    """The window with NaN and inf in every no-op."""

    def poison(a: Array) -> Array:
        return np.where(live.reshape(live.shape + (1,) * (a.ndim - 2)), a, np.resize([np.nan, np.inf, -np.inf], a.shape))

    return records.each(poison, window)


LIVE = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], dtype=bool)
"""No-ops at the begin, in between and at the end, for two rows of seven tokens."""
