"""What a program asks for before it waits for any of it.

For few rows a launch takes 3 to 4 us on an H200, of which a load that stands behind a wait for another one costs 0.3 to 0.4.
A `tl.debug_barrier()` is a fence: no load passes it, and among a few warps it costs next to nothing. But Triton changes the
layout of a block through shared memory, and so waits for it, right behind its load; and it loads a number for each token once
for every layout in which it is wanted. `unmoved` and `of_lanes` keep the one and the other where they are written.

Each place that has them was measured. It does not always pay: verification of SSD took 1.03 to 1.21 of its time by it, and
windows of the delta rule, chains that are solved, 1.11 to 1.35.
"""

import triton
import triton.language as tl


@triton.jit
def unmoved(x, slot):
    """x, whose layout changes here at the earliest. The choice is between x and 0 of a row with a slot, so that nothing of it
    is left in the machine code where that was asked already."""
    return tl.where(slot > -2, x, 0.0)


@triton.jit
def of_lanes(x):
    """(t, 1) as (t), loaded and computed by one lane for each token. The sum is over one element."""
    return tl.sum(x, axis=1)
