"""Matrix products that lose nothing of an fp32 operand.

With bf16 activations one operand of each product is bf16 already. The other, fp32, is cut into three bf16 parts

    hi = bf16(x)    mid = bf16(x - hi)    lo = bf16(x - hi - mid)    (1)

of 8 bits each: together the 24 bits of x, unless lo underflows. Products of bf16 are exact in fp32, so that three bf16
products with fp32 sums (2) are a product of fp32 operands, on the tensor cores and without tf32. fp16 and fp32 activations
take one product in fp32 (3). Two fp32 operands are nine bf16 products (4), summed from the small to the large.
"""

import triton
import triton.language as tl


@triton.jit
def split3(x):
    """hi, mid, lo of an fp32 block (1)."""
    hi = x.to(tl.bfloat16)
    rest = x - hi.to(tl.float32)
    mid = rest.to(tl.bfloat16)
    lo = (rest - mid.to(tl.float32)).to(tl.bfloat16)
    return hi, mid, lo


@triton.jit
def dot_left(x, y):
    """x y for an fp32 block x and activations y, summed in fp32 (2) (3)."""
    if y.dtype == tl.bfloat16:
        hi, mid, lo = split3(x)
        acc = tl.dot(lo, y, out_dtype=tl.float32)
        acc = tl.dot(mid, y, acc=acc, out_dtype=tl.float32)
        return tl.dot(hi, y, acc=acc, out_dtype=tl.float32)
    return tl.dot(x, y.to(tl.float32), input_precision="ieee")


@triton.jit
def dot_right(x, y):
    """x y for activations x and an fp32 block y, summed in fp32 (2) (3)."""
    if x.dtype == tl.bfloat16:
        hi, mid, lo = split3(y)
        acc = tl.dot(x, lo, out_dtype=tl.float32)
        acc = tl.dot(x, mid, acc=acc, out_dtype=tl.float32)
        return tl.dot(x, hi, acc=acc, out_dtype=tl.float32)
    return tl.dot(x.to(tl.float32), y, input_precision="ieee")


@triton.jit
def dot_inputs(x, y):
    """x y for two blocks of activations of one type, summed in fp32."""
    if x.dtype == tl.bfloat16:
        return tl.dot(x, y, out_dtype=tl.float32)
    return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")


@triton.jit
def dot_both(x, y, SPLIT: tl.constexpr):
    """x y for two fp32 blocks, summed in fp32: on the tensor cores (4) where SPLIT, otherwise in fp32 (3)."""
    if SPLIT:
        hi, mid, lo = split3(x)
        y_hi, y_mid, y_lo = split3(y)
        acc = tl.dot(lo, y_lo, out_dtype=tl.float32)
        acc = tl.dot(mid, y_lo, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(lo, y_mid, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(hi, y_lo, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(mid, y_mid, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(lo, y_hi, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(hi, y_mid, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(mid, y_hi, acc=acc, out_dtype=tl.float32)
        return tl.dot(hi, y_hi, acc=acc, out_dtype=tl.float32)
    return tl.dot(x, y, input_precision="ieee")
