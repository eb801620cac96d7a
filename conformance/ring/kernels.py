"""Triton's interpreter over the ring: a kernel runs unchanged, and its registers of floats hold elements.

load, store        names in memory, elements in registers (`codes`)
cast               the identity; of an integer, the integer
+, *, fma, dot     mod 2^64, as NumPy's uint64
exp, exp2, sqrt    `algebra`
bit operations     of a float: the upper half of its bits, taken to cut it into parts of bf16, is the whole of it, and what
                   is left is 0; anything else raises NotInRing, as comparisons do
softplus, silu     device functions of these names are opaque
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, ReduceOps, TensorHandle

from ..errors import NotInRing
from ..interpreter.faithful import BINARY, COMPARISONS, UNARY
from ..interpreter.quick import plain, quick
from . import algebra
from .codes import Codes

MEMORY = {tl.float32: np.uint32, tl.bfloat16: np.uint16, tl.float64: np.uint64, tl.float16: np.uint16}
HALF, REST = 16, -65536
"""The shift and the mask that take the upper half of the bits of an fp32."""


class FloatBits:
    """The bits of floats, of which only the upper half can be taken."""

    def __init__(self, held: Any, dtype: Any) -> None:
        self.held, self.dtype = held, dtype
        self.attr: dict[str, Any] = {}

    @property
    def data(self) -> Any:
        raise NotInRing("it computes with the bits of a float")

    def get_element_ty(self) -> Any:
        return self.dtype


@contextmanager
def interpreted(codes: Codes) -> Iterator[None]:
    """Run kernels over the ring inside the block."""
    builder = interpreter.interpreter_builder
    methods, kept = _methods(codes), dict(vars(builder))
    places = {
        (interpreter, "_get_np_dtype"): _registers(plain(interpreter._get_np_dtype)),
        (interpreter, "_validate_np_data_size"): lambda *given: True,
        (ReduceOps, "sum"): plain(ReduceOps.sum),
        (ReduceOps, "min_max"): _integers_only(plain(ReduceOps.min_max)),
        (InterpretedFunction, "__call__"): _opaque(InterpretedFunction.__call__),
    }
    before = {place: getattr(*place) for place in places}
    try:
        for place, made in places.items():
            setattr(*place, made)
        for name, method in methods.items():
            setattr(builder, name, method)
        with quick(), np.errstate(over="ignore"):
            yield
    finally:
        for name in methods:
            if name in kept:
                setattr(builder, name, kept[name])
            else:
                delattr(builder, name)
        for place, function in before.items():
            setattr(*place, function)


def _registers(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The format of registers: elements for floats."""

    def registers(kind: Any) -> Any:
        return np.dtype(np.uint64) if _is_float(kind) else look(kind)

    return registers


def _is_float(kind: Any) -> bool:
    scalar = kind.scalar
    return not isinstance(scalar, tl.pointer_type) and scalar.is_floating()


def _handle(data: Any, dtype: Any) -> TensorHandle:
    return TensorHandle(np.asarray(data, dtype=np.uint64), dtype.scalar)


def _methods(codes: Codes) -> dict[str, Callable[..., Any]]:
    """The methods of the builder that differ over the ring."""
    plain_builder = InterpreterBuilder
    builder = interpreter.interpreter_builder
    found: dict[str, Callable[..., Any]] = {}

    def of(name: str) -> Callable[..., Any]:
        return getattr(plain_builder, name).__get__(builder)

    for name in (*BINARY, *UNARY, *COMPARISONS, "fabs", "clampf"):
        if hasattr(plain_builder, f"create_{name}"):
            found[f"create_{name}"] = _refused(name)
    for name in ("fadd", "fsub", "fmul", "fma", "dot"):
        found[f"create_{name}"] = of(f"create_{name}")
    for name, rule in (("exp", algebra.exp), ("exp2", algebra.exp), ("sqrt", algebra.sqrt), ("precise_sqrt", algebra.sqrt)):
        found[f"create_{name}"] = lambda a, rule=rule: _handle(rule(a.data), a.dtype)
    found["create_rsqrt"] = lambda a: _handle(algebra.inverse(algebra.sqrt(a.data)), a.dtype)
    for name in ("fdiv", "precise_divf"):
        found[f"create_{name}"] = lambda a, b: _handle(a.data * algebra.inverse(b.data), a.dtype)
    for name, limited in (("minimumf", algebra.minimum), ("minnumf", algebra.minimum), ("maximumf", algebra.maximum)):
        found[f"create_{name}"] = lambda a, b, limited=limited: _handle(limited(a.data, b.data), a.dtype)
    for name, kind in (("fp16", tl.float16), ("bf16", tl.bfloat16), ("fp32", tl.float32), ("fp64", tl.float64)):
        found[f"get_{name}"] = lambda value, kind=kind: _handle([algebra.constant(value)], kind)

    found["cast_impl"] = _cast
    found["create_fp_to_fp"] = lambda src, dst, _rounding: _cast(src, dst)
    found["create_bitcast"] = _bitcast
    for name, right in (("create_ashr", HALF), ("create_lshr", HALF), ("create_and", REST)):
        found[name] = _upper_half(of(name), right)

    def load(pointers: Any, mask: Any, other: Any, cache: Any, eviction: Any, volatile: Any) -> TensorHandle:
        kind = pointers.get_element_ty()
        if not _is_float(kind):
            return of("create_masked_load")(pointers, mask, other, cache, eviction, volatile)
        width = MEMORY[kind]
        bits = interpreter._interpreter.load(pointers.data, mask.data, np.zeros(pointers.data.shape, width), np.dtype(width))
        held = _elements(codes, bits, kind)
        return _handle(np.where(mask.data, held, 0 if other is None else other.data), kind)

    def store(pointers: Any, value: Any, mask: Any, cache: Any, eviction: Any) -> Any:
        kind = pointers.get_element_ty()
        if not _is_float(kind):
            return of("create_masked_store")(pointers, value, mask, cache, eviction)
        live = np.broadcast_to(mask.data, pointers.data.shape)
        names = codes.encode(np.where(live, np.broadcast_to(value.data, live.shape), 0))
        return interpreter._interpreter.store(pointers.data, _memory(names, kind), np.ascontiguousarray(live))

    found |= {"create_masked_load": load, "create_masked_store": store, "create_atomic_rmw": _refused_floats(of)}
    return found


def _elements(codes: Codes, bits: Any, kind: Any) -> Any:
    if kind == tl.bfloat16:
        return codes.decode(bits)
    if kind == tl.float32:
        return codes.of_numbers(bits.view(np.float32))
    raise NotInRing(f"it reads {kind}; names are numbers of bf16 and fp32")


def _memory(names: Any, kind: Any) -> Any:
    """The bits of names in memory of a format."""
    if kind == tl.bfloat16:
        return names
    if kind == tl.float32:
        return names.astype(np.uint32) << np.uint32(16)
    raise NotInRing(f"it writes {kind}; names are numbers of bf16 and fp32")


def _cast(src: Any, dst: Any) -> Any:
    """The identity between floats; integers and truth values as elements; the upper half of bits stays what it is."""
    scalar = dst.scalar
    if isinstance(src, FloatBits):
        return FloatBits(src.held, scalar)
    if _is_float(src.dtype) and _is_float(scalar):
        return TensorHandle(src.data, scalar)
    if _is_float(src.dtype):
        raise NotInRing("it casts a float to an integer")
    if _is_float(scalar):
        return _handle(algebra.constants(src.data), scalar)
    return InterpreterBuilder.cast_impl(interpreter.interpreter_builder, src, dst)


def _bitcast(src: Any, dst: Any) -> Any:
    scalar = dst.scalar
    if isinstance(src, FloatBits):
        return _handle(src.held, scalar) if _is_float(scalar) else FloatBits(src.held, scalar)
    if _is_float(src.dtype):
        return FloatBits(src.data, scalar)
    if _is_float(scalar):
        raise NotInRing("it makes a float of bits")
    return InterpreterBuilder.create_bitcast(interpreter.interpreter_builder, src, dst)


def _upper_half(method: Callable[..., Any], right: int) -> Callable[..., Any]:
    """A bit operation that takes the upper half of a float's bits, which is all of it; of integers as it is."""

    def call(lhs: Any, rhs: Any) -> Any:
        if not isinstance(lhs, FloatBits):
            return method(lhs, rhs)
        if not np.all(rhs.data == right):
            raise NotInRing("it takes other bits of a float than the upper half")
        return lhs

    return call


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*given: Any) -> Any:
        raise NotInRing(f"{name} of floats has no rule in the ring")

    return refuse


def _refused_floats(of: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    def atomic(operation: Any, pointer: Any, value: Any, *rest: Any) -> Any:
        if _is_float(value.dtype):
            raise NotInRing("it adds floats atomically")
        return of("create_atomic_rmw")(operation, pointer, value, *rest)

    return atomic


def _integers_only(method: Callable[..., Any]) -> Callable[..., Any]:
    def min_max(self: ReduceOps, value: Any, *given: Any, **named: Any) -> Any:
        first = value[0] if isinstance(value, tuple) else value
        if _is_float(first.dtype):
            raise NotInRing("it takes the largest or smallest of floats")
        return method(self, value, *given, **named)

    return min_max


def _opaque(call: Callable[..., Any]) -> Callable[..., Any]:
    """Device functions that are opaque functions of their argument."""

    def called(self: Any, *given: Any, **named: Any) -> Any:
        name = self.fn.__name__
        if name not in OPAQUE:
            return call(self, *given, **named)
        (x,) = given
        return tl.core.tensor(_handle(OPAQUE[name](x.handle.data), x.handle.dtype), x.type)

    return called


OPAQUE: dict[str, Callable[[Any], Any]] = {
    "softplus": algebra.softplus,
    "sigmoid": algebra.sigmoid,
    "silu": lambda x: x * algebra.sigmoid(x),
}
