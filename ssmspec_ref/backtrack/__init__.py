"""Five ways to undo rejected tokens in a recurrent layer, one a file, with one signature.

    kept       = start(state)                        before the first window
    y, pending = verify(kept, draft, mixer)          the layer's outputs at every token of a window
    kept       = commit(pending, accepted, mixer)    what was accepted enters; the rest never happened
    lag        = refeed(kept)                        committed tokens that the next window must bring again, before its root
    state      = restore(kept, mixer)                what plain decoding held `lag` committed tokens ago

A window is the root, the last emitted token, which is in no state yet, and the drafts that follow it. `Kept` is all that
a path holds between two windows, its rows the sequences, so that `records.rows` may reorder them; `Pending` is all that it
holds between verification and the verdict. Each path has its own. Only joint attainment lags; elsewhere `refeed` is 0.
"""

from .protocol import Accepted, Backtrack, Draft

__all__ = ["Accepted", "Backtrack", "Draft"]
