"""Loads that are all issued before a program waits for any of them.

With few rows the latency of dependent loads is a large part of a launch. A `tl.debug_barrier()` is a fence: no load is moved
across it, and with a few warps it is cheap. But Triton changes the layout of a block through shared memory, which waits for
the block right after its load; and it loads a number for each token once per layout in which it is used. `hold_layout` and
`of_lanes` prevent both.

This is not always faster: it is used only where it was measured to be.
"""

import triton
import triton.language as tl


@triton.jit
def hold_layout(x, slot):
    """x, with its layout kept up to here. The condition is always true for a row with a slot, so the machine code contains
    nothing of it if the slot was tested before."""
    return tl.where(slot > -2, x, 0.0)


@triton.jit
def of_lanes(x):
    """(t, 1) as (t), loaded and computed by one lane per token. The sum is over one element."""
    return tl.sum(x, axis=1)
