"""What a program asks for before it waits for any of it.

For few rows a launch takes 3 to 4 us on an H200, of which a load that stands behind a wait for another one costs 0.3 to 0.4.
A `tl.debug_barrier()` is a fence: no load passes it, and among a few warps it costs next to nothing. But Triton changes the
layout of a block through shared memory, and so waits for it, right behind its load; and it loads a number for each token once
for every layout in which it is wanted. `unmoved` and `of_lanes` keep the one and the other where they are written.
"""

import triton
import triton.language as tl


@triton.jit
def unmoved(x, ON: tl.constexpr):
    """x, whose layout is changed here at the earliest; where ON, as on GPUs, not in the interpreter. It costs nothing."""
    if ON:
        PACK: tl.constexpr = 32 // x.dtype.primitive_bitwidth
        x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=True, pack=PACK)
    return x


@triton.jit
def of_lanes(x):
    """(t, 1) as (t), loaded and computed by one lane for each token. The sum is over one element."""
    return tl.sum(x, axis=1)
