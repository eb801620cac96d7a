"""Strides as kernel arguments: for each tensor a named tuple, with a field for every axis but the last, in elements.

The letters of the fields are those of `ssmspec_ref.shapes`: s a slot, b a row, t a token, h a head, g a group, l an entry of
a ring or cache. A tuple replaces as many arguments, in its order; if the kernel's parameter is a
`tl.constexpr`, the kernel is compiled for these strides, otherwise it takes them at run time.
"""

from typing import Any, NamedTuple, TypeVar

from triton.language import constexpr

T = TypeVar("T", bound=tuple[Any, ...])


def constant(strides: T, *run_time: str) -> T:
    """Strides whose values are constants of the kernel, except the fields of these names: for a parameter that is no
    `tl.constexpr`."""
    made = {
        name: constant(value, *run_time) if isinstance(value, tuple) else value if name in run_time else constexpr(value)
        for name, value in strides._asdict().items()  # type: ignore[attr-defined]
    }
    return strides._replace(**made)  # type: ignore[attr-defined]


class StateStrides(NamedTuple):
    """Strides of states (s, h, p, n)."""

    s: int
    h: int
    p: int


class HeadStrides(NamedTuple):
    """Strides of values per token and head: (b, t, h, p), or (b, t, h)."""

    b: int
    t: int
    h: int


class GroupStrides(NamedTuple):
    """Strides of values per token and group of heads: (b, t, g, n)."""

    b: int
    t: int
    g: int


class TokenStrides(NamedTuple):
    """Strides of one number or flag per token: (b, t)."""

    b: int
    t: int


class PathStrides(NamedTuple):
    """Strides of an accepted path: (b, k)."""

    b: int
    k: int


class SkipStrides(NamedTuple):
    """Strides of D (h, p); 0 over channels if D is one number per head."""

    h: int
    p: int


class WindowStrides(NamedTuple):
    """Strides of the state, the inputs of a window and its outputs."""

    S: StateStrides
    x: HeadStrides
    dt: HeadStrides
    B: GroupStrides
    C: GroupStrides
    z: HeadStrides
    y: HeadStrides


class LayerStateStrides(NamedTuple):
    """Strides of the states of all layers (i, s, h, p, n)."""

    i: int
    s: int
    h: int
    p: int


class LayerHeadStrides(NamedTuple):
    """Strides of the x of all layers (i, m, t, e, p); m is a row of the inputs, e a head of x."""

    i: int
    m: int
    t: int
    e: int


class LayerStepStrides(NamedTuple):
    """Strides of the dt of all layers (i, m, t, h)."""

    i: int
    m: int
    t: int
    h: int


class LayerGroupStrides(NamedTuple):
    """Strides of the B of all layers (i, m, t, g, n)."""

    i: int
    m: int
    t: int
    g: int


class LayerStrides(NamedTuple):
    """Strides of one number per head of each layer (i, h)."""

    i: int
    h: int


class RowStrides(NamedTuple):
    """Of states (s, h, k, v); the stride over k is a constant of the kernel."""

    s: int
    h: int


class KeyStrides(NamedTuple):
    """Of states (s, h, k, v)."""

    s: int
    h: int
    k: int


class MaskStrides(NamedTuple):
    """Of the ancestor mask of a tree: (b, t, j)."""

    b: int
    t: int
    j: int


class DeltaStrides(NamedTuple):
    """Of the state, the inputs of a window of the delta rule and its outputs; q and k as `GroupStrides`."""

    S: KeyStrides | RowStrides
    q: GroupStrides
    k: GroupStrides
    v: HeadStrides
    g: HeadStrides
    beta: HeadStrides
    o: HeadStrides


class OneHeadStrides(NamedTuple):
    """Of what each head has of one token: (b, 1, h, v), or (b, 1, h)."""

    b: int
    h: int


class OneGroupStrides(NamedTuple):
    """Of what each group of heads has of one token: (b, 1, g, k)."""

    b: int
    g: int


class DeltaStepStrides(NamedTuple):
    """As `DeltaStrides`, of one token."""

    S: KeyStrides
    q: OneGroupStrides
    k: OneGroupStrides
    v: OneHeadStrides
    g: OneHeadStrides
    beta: OneHeadStrides
    o: OneHeadStrides


class EntryStrides(NamedTuple):
    """Of what each head has of an entry of a ring: (s, l, h, v), or (s, l, h)."""

    s: int
    l: int
    h: int


class EntryGroupStrides(NamedTuple):
    """Of what each group of heads has of an entry of a ring: (s, l, g, k)."""

    s: int
    l: int
    g: int


class DeltaRingStrides(NamedTuple):
    """Of u, k and g of a ring."""

    u: EntryStrides
    k: EntryGroupStrides
    g: EntryStrides


class RingStrides(NamedTuple):
    """Of x, dt and B of a ring of SSD, or of a cache of two windows."""

    x: EntryStrides
    dt: EntryStrides
    B: EntryGroupStrides


class StepStrides(NamedTuple):
    """As `WindowStrides`, of one token."""

    S: StateStrides
    x: OneHeadStrides
    dt: OneHeadStrides
    B: OneGroupStrides
    C: OneGroupStrides
    z: OneHeadStrides
    y: OneHeadStrides


class PackedHeadStrides(NamedTuple):
    """Of what each head has of a token of a packed run: (t, h, v), or (t, h)."""

    t: int
    h: int


class PackedGroupStrides(NamedTuple):
    """Of what each group of heads has of a token of a packed run: (t, g, k)."""

    t: int
    g: int


class ChunkStrides(NamedTuple):
    """Of a scratch with one block for each chunk and head: (c, h, ..)."""

    c: int
    h: int


class SolvedStrides(NamedTuple):
    """Of a buffer with one block for each row and head: (b, h, ..)."""

    b: int
    h: int


class PoolStrides(NamedTuple):
    """Of the keys or values of a cache: (s, l, g, e)."""

    s: int
    l: int
    g: int


class HistoryStrides(NamedTuple):
    """Of the tokens of sequences: (s, l)."""

    s: int
    l: int


class TableStrides(NamedTuple):
    """Of a table of rows of tokens after each token: (v, n, k)."""

    v: int
    n: int
    k: int


class PlaceStrides(NamedTuple):
    """Of the places of windows and their ranks: (b, a, l)."""

    b: int
    a: int
    l: int


class DraftStrides(NamedTuple):
    """Of drafts: (b, m, i)."""

    b: int
    m: int
    i: int


class DraftLengthStrides(NamedTuple):
    """Of the lengths of drafts: (b, m)."""

    b: int
    m: int


class DistributionStrides(NamedTuple):
    """Of a distribution after each token: (b, t, i)."""

    b: int
    t: int
