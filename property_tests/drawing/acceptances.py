"""What a verdict accepts of a window: none, some or all of the drafts, a path that is not a prefix, a run cut after it."""

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st


class Acceptance(NamedTuple):
    """The accepted nodes, root first, and how many of them enter the state: fewer if a stop cuts the run."""

    path: tuple[int, ...]
    kept: int


@st.composite
def acceptance_patterns(draw: st.DrawFn, paths: Sequence[Sequence[int]], cuts: bool = True) -> Acceptance:
    """One of the paths of a window (`TokenTree.paths`; for a chain, its prefixes), whole or in part.

    The last path (for a chain, all of it) has half of the draws. Shrinks to it, uncut.
    """
    path = paths[-1] if draw(st.booleans()) else draw(st.sampled_from(paths))
    cut = draw(st.integers(0, len(path) - 1)) if cuts and draw(st.booleans()) else 0
    return Acceptance(tuple(path), len(path) - cut)
