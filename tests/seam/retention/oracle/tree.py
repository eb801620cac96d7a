"""Retention over a packed tree, from one state, without writing any."""

from numpy import einsum

from ssmspec_ref import tree
from ssmspec_ref.checks import checked
from ssmspec_ref.records import masked
from ssmspec_ref.shapes import Ancestors, DeltaState, Values

from . import RetentionParams, RetentionWindow, log_decays


@checked
def scan(S: DeltaState, window: RetentionWindow, ancestors: Ancestors, params: RetentionParams) -> Values:
    """The output at every node. Raises: ShapeMismatch, PrecisionError, EmptyWindow, NotTopological, NotNested."""
    tree.check_nested(ancestors)
    live = tree.live(ancestors)
    window = masked(window, live)
    from_state, between = tree.decays(ancestors, log_decays(window, params, live))
    scores = einsum("bthk, bjhk -> btjh", window.q, window.k) * between
    return einsum("bth, bthk, bhkv -> bthv", from_state, window.q, S) + einsum("btjh, bjhv -> bthv", scores, window.v)
