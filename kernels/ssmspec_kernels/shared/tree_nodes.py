"""The mask of a packed tree, as kernels read it.

    real_t   = mask[t, t]                 a node that does not see itself is padding, whatever else its row holds    (1)
    seen_tj  = mask[t, j]                 0 for nodes outside the tree, and for those that the caller leaves out     (2)

Layout: mask (b, t, j), of any strides; the pointers are those of a row b. A node's ancestors precede it (`ssmspec_ref.tree`).
Two functions, because a kernel may read its nodes in blocks: then the rows and the columns of (2) are not those of (1).
"""

import triton
import triton.language as tl


@triton.jit
def real_nodes(at_mask, t, in_t, stride):
    """(1)"""
    return tl.load(at_mask + t * (stride.t + stride.j), mask=in_t, other=0) != 0


@triton.jit
def seen_nodes(at_mask, t, j, of_t, of_j, stride):
    """(2), of the nodes t and j."""
    at = at_mask + t[:, None] * stride.t + j[None, :] * stride.j
    return tl.load(at, mask=of_t[:, None] & of_j[None, :], other=0) != 0
