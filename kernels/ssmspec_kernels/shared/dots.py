"""Matrix products that keep the full precision of an fp32 operand.

With bf16 activations one operand of each product is already bf16. The other one, fp32, is cut into three bf16 parts

    hi = the first 8 bits of x    mid = those of x - hi    lo = x - hi - mid    (1)

which together hold the 24 bits of x, unless lo underflows. Products of bf16 are exact in fp32, so three bf16 products with
fp32 sums (2) equal a product of fp32 operands, on the tensor cores and without tf32. fp16 and fp32 activations take one fp32
product (3). Two fp32 operands take nine bf16 products (4), summed from the small to the large. Eight products leave out lo
lo: after two cuts of 8 bits lo < 2^-15 |x|, so lo lo is less than 2^-30 |x y|, a 64th of the roundoff of fp32.

If a launcher asks for bf16 products, an fp32 operand is rounded to nearest instead, and one product is taken (5).

The parts are truncated, not rounded: hi is the upper half of the bits of x, and one instruction packs two of them into a
register of the product. Conversions run at an eighth of that rate.
"""

import triton
import triton.language as tl


@triton.jit
def cut(x):
    """The first 8 bits of an fp32 block, as bf16, and the rest: both exact. A value that is not finite has a NaN as its
    rest."""
    bits = x.to(tl.int32, bitcast=True)
    part = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return part, x - (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def split3(x):
    """hi, mid, lo of an fp32 block (1)."""
    hi, rest = cut(x)
    mid, rest = cut(rest)
    lo, rest = cut(rest)
    return hi, mid, lo


@triton.jit
def dot_left(x, y, ROUND: tl.constexpr = False):
    """x y for an fp32 block x and activations y, summed in fp32 (2) (3); (5) if ROUND."""
    if ROUND:
        acc = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), out_dtype=tl.float32)
    elif y.dtype == tl.bfloat16:
        hi, mid, lo = split3(x)
        acc = tl.dot(lo, y, out_dtype=tl.float32)
        acc = tl.dot(mid, y, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(hi, y, acc=acc, out_dtype=tl.float32)
    else:
        acc = tl.dot(x, y.to(tl.float32), input_precision="ieee")
    return acc


@triton.jit
def dot_onto(acc, x, y):
    """acc + x y for fp32 blocks acc and x and activations y (2) (3)."""
    if y.dtype == tl.bfloat16:
        hi, mid, lo = split3(x)
        return dot_cut_onto(acc, hi, mid, lo, y)
    return tl.dot(x, y.to(tl.float32), acc=acc, input_precision="ieee")


@triton.jit
def dot_cut_onto(acc, hi, mid, lo, y):
    """acc + (hi + mid + lo) y (2)."""
    acc = tl.dot(lo, y, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(mid, y, acc=acc, out_dtype=tl.float32)
    return tl.dot(hi, y, acc=acc, out_dtype=tl.float32)


@triton.jit
def dot_right(x, y, ROUND: tl.constexpr = False):
    """x y for activations x and an fp32 block y, summed in fp32 (2) (3); (5) if ROUND."""
    if ROUND:
        acc = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), out_dtype=tl.float32)
    elif x.dtype == tl.bfloat16:
        hi, mid, lo = split3(y)
        acc = tl.dot(x, lo, out_dtype=tl.float32)
        acc = tl.dot(x, mid, acc=acc, out_dtype=tl.float32)
        acc = tl.dot(x, hi, acc=acc, out_dtype=tl.float32)
    else:
        acc = tl.dot(x.to(tl.float32), y, input_precision="ieee")
    return acc


@triton.jit
def dot_onto_right(acc, x, y, SPLIT: tl.constexpr):
    """acc + x y for activations x and fp32 blocks acc and y: in parts (2) if SPLIT (x is bf16), otherwise (3)."""
    if SPLIT:
        hi, mid, lo = split3(y)
        return dot_cut_right(acc, x, hi, mid, lo)
    return acc + dot_right(x, y)


@triton.jit
def dot_cut_right(acc, x, hi, mid, lo):
    """acc + x (hi + mid + lo) (2)."""
    acc = tl.dot(x, lo, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(x, mid, acc=acc, out_dtype=tl.float32)
    return tl.dot(x, hi, acc=acc, out_dtype=tl.float32)


@triton.jit
def dot_inputs(x, y):
    """x y for two blocks of activations of one type, summed in fp32."""
    if x.dtype == tl.bfloat16:
        return tl.dot(x, y, out_dtype=tl.float32)
    return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")


@triton.jit
def dot_both(x, y, SPLIT: tl.constexpr, ROUND: tl.constexpr = False, NINTH: tl.constexpr = True):
    """x y for two fp32 blocks, summed in fp32: on the tensor cores (4) if SPLIT, otherwise in fp32 (3); (5) if ROUND."""
    if ROUND:
        acc = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), out_dtype=tl.float32)
    elif SPLIT:
        hi, mid, lo = split3(x)
        y_hi, y_mid, y_lo = split3(y)
        acc = dot_cut(hi, mid, lo, y_hi, y_mid, y_lo, NINTH)
    else:
        acc = tl.dot(x, y, input_precision="ieee")
    return acc


@triton.jit
def dot_cut(hi, mid, lo, y_hi, y_mid, y_lo, NINTH: tl.constexpr):
    """(hi + mid + lo) (y_hi + y_mid + y_lo), all products or all but lo y_lo (4)."""
    if NINTH:
        acc = tl.dot(lo, y_lo, out_dtype=tl.float32)
        acc = tl.dot(mid, y_lo, acc=acc, out_dtype=tl.float32)
    else:
        acc = tl.dot(mid, y_lo, out_dtype=tl.float32)
    acc = tl.dot(lo, y_mid, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(hi, y_lo, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(mid, y_mid, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(lo, y_hi, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(hi, y_mid, acc=acc, out_dtype=tl.float32)
    acc = tl.dot(mid, y_hi, acc=acc, out_dtype=tl.float32)
    return tl.dot(hi, y_hi, acc=acc, out_dtype=tl.float32)
