"""Five ways to undo rejected tokens in a recurrent layer, one file each, with the same signature.

    kept       = start(state)                        before the first window
    y, pending = verify(kept, draft, mixer)          the layer's outputs at every token of a window
    kept       = commit(pending, accepted, mixer)    accepted tokens enter the state; rejected ones leave no trace
    lag        = refeed(kept)                        committed tokens that the next window must repeat before its root
    state      = restore(kept, mixer)                the state of plain decoding, `lag` committed tokens ago

A window is the root (the last emitted token, not yet in any state) and the drafts after it. `Kept` is everything that a path
stores between two windows. Its rows are sequences, so `records.rows` may reorder them. `Pending` is everything it stores
between `verify` and `commit`. Each path has its own `Kept` and `Pending`. Only joint attainment lags; for the others `refeed`
is 0.
"""

from .protocol import Accepted, Backtrack, Draft

__all__ = ["Accepted", "Backtrack", "Draft"]
