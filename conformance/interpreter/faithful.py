"""A more accurate interpreter: bf16 casts round to nearest even, bf16 arithmetic is rounded fp32, tf32 dots round their
operands.

Triton's interpreter (3.6 to 3.9) stores a bf16 tensor as 16-bit integers. It truncates in the cast from fp32, it adds and
multiplies the integers, and it computes every dot of fp32 exactly, whatever precision is requested. Inside `faithful()`:

    cast      fp32 -> bf16 to nearest even; bf16 -> anything through fp32                    (1)
    a op b    of bf16: in fp32, then rounded to bf16; comparisons and selections in fp32      (2)
    dot       of bf16: operands as fp32, summed in fp32; of fp32 with tf32: operands rounded  (3)
    sum, max  of bf16: in fp32, then rounded                                                  (4)

tf32x3 counts as exact: its error, about 2^-22, is below that of the fp32 sums around it.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, TensorHandle

from .quick import quick
from .rounding import from_bf16, to_bf16, to_tf32

BINARY = ("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf", "minimumf", "maximumf", "minnumf", "maxnumf")
UNARY = ("fneg", "exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil")
COMPARISONS = tuple(f"fcmp{order}{rule}" for order in "OU" for rule in ("LT", "GT", "LE", "GE", "EQ", "NE"))


@contextmanager
def faithful() -> Iterator[None]:
    """Round like the hardware inside the block, and overflow without a warning. Blocks may be nested."""
    builder = interpreter.interpreter_builder
    if "cast_impl" in vars(builder):
        yield
        return
    reduce_sum, min_max = ReduceOps.sum, ReduceOps.min_max
    for name, method in _repaired(builder).items():
        setattr(builder, name, method)
    ReduceOps.sum, ReduceOps.min_max = _reduced(reduce_sum), _reduced(min_max)
    try:
        with quick(), np.errstate(all="ignore"):  # the hardware overflows without a warning
            yield
    finally:
        ReduceOps.sum, ReduceOps.min_max = reduce_sum, min_max
        for name in _repaired(builder):
            if name in vars(builder):
                delattr(builder, name)


def _repaired(builder: InterpreterBuilder) -> dict[str, Callable[..., Any]]:
    methods: dict[str, Callable[..., Any]] = {"cast_impl": _cast(builder), "create_dot": _dot(builder)}
    methods["create_fp_to_fp"] = lambda src, dst, _rounding: methods["cast_impl"](src, dst)
    methods["get_bf16"] = lambda value: TensorHandle(to_bf16(np.array([value], dtype=np.float32)), tl.bfloat16)
    for name in BINARY + UNARY + COMPARISONS:
        if hasattr(InterpreterBuilder, f"create_{name}"):
            methods[f"create_{name}"] = _in_fp32(getattr(InterpreterBuilder, f"create_{name}"), builder)
    methods["create_fma"] = _in_fp32(InterpreterBuilder.create_fma, builder)
    return methods


def _is_bf16(value: Any) -> bool:
    return isinstance(value, TensorHandle) and bool(value.dtype.scalar == tl.bfloat16)


def _up(value: Any) -> Any:
    return TensorHandle(from_bf16(value.data), tl.float32) if _is_bf16(value) else value


def _down(value: TensorHandle) -> TensorHandle:
    if value.data.dtype == bool:
        return TensorHandle(value.data, tl.int1)
    return TensorHandle(to_bf16(value.data.astype(np.float32)), tl.bfloat16)


def _cast(builder: InterpreterBuilder) -> Callable[..., TensorHandle]:
    def cast(src: TensorHandle, dst_type: Any) -> TensorHandle:  # (1)
        if dst_type.scalar == tl.bfloat16:
            return src if _is_bf16(src) else _down(src)
        return InterpreterBuilder.cast_impl(builder, _up(src), dst_type)

    return cast


def _in_fp32(method: Callable[..., TensorHandle], builder: InterpreterBuilder) -> Callable[..., TensorHandle]:
    def call(*args: Any) -> TensorHandle:  # (2)
        if not any(_is_bf16(a) for a in args):
            return method(builder, *args)
        return _down(method(builder, *(_up(a) for a in args)))

    return call


def _dot(builder: InterpreterBuilder) -> Callable[..., TensorHandle]:
    def dot(a: TensorHandle, b: TensorHandle, d: TensorHandle, precision: Any, *rest: Any) -> TensorHandle:  # (3)
        if str(precision).rsplit(".", 1)[-1].upper() == "TF32" and a.dtype.scalar == tl.float32:
            a, b = TensorHandle(to_tf32(a.data), tl.float32), TensorHandle(to_tf32(b.data), tl.float32)
        return InterpreterBuilder.create_dot(builder, _up(a), _up(b), d, precision, *rest)

    return dot


def _narrowed(value: Any) -> Any:
    bits = _down(value.handle).data
    return bits if value.type.is_block() else bits[0]


def _reduced(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def reduce(self: ReduceOps, value: Any, *args: Any, **kwargs: Any) -> Any:  # (4)
        first = value[0] if isinstance(value, tuple) else value
        if not _is_bf16(first.handle):
            return method(self, value, *args, **kwargs)
        widened = tl.core.tensor(_up(first.handle), first.type.with_element_ty(tl.float32) if first.shape else tl.float32)
        result = method(self, widened, *args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        rounded = tuple(self.to_tensor(_narrowed(p), tl.bfloat16) if p.dtype == tl.float32 else p for p in parts)
        return rounded if isinstance(result, tuple) else rounded[0]

    return reduce
