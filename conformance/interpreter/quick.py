"""Make Triton's interpreter faster by avoiding repeated work.

Before every call of a device function Triton's interpreter replaces all builtins of the language again, although the launch
has done so. It builds a table of formats for every array, and the shape of every type and tensor from wrapped numbers. It
computes the common type of two operands of one type, and compares their shapes number by number. It creates every constant
again, and checks integer sums for overflow even when nothing is reported. This took five sixths of the time of a kernel with
many small functions. Inside `quick()` each is done once; the results are the same.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


class Nothing:
    """A placeholder where nothing was replaced."""

    def restore(self) -> None:
        """Nothing to put back."""


@contextmanager
def quick() -> Iterator[None]:
    """Replace the builtins once per launch, and cache formats and shapes, inside the block."""
    places = {
        (interpreter, "_patch_lang"): _once,
        (interpreter, "_get_np_dtype"): _kept,
        (tl.core.block_type, "__init__"): _block,
        (tl.core.tensor, "__init__"): _tensor,
        (TritonSemantic, "binary_op_type_checking_impl"): _alike,
        (TritonSemantic, "broadcast_impl_value"): _widened,
        (TritonSemantic, "binary_op_sanitize_overflow_impl"): _told,
    }
    before = {place: getattr(*place) for place in places}
    for place, made in places.items():
        function = made(plain(before[place]))
        function.__wrapped__ = before[place]  # type: ignore[attr-defined]
        setattr(*place, function)
    try:
        yield
    finally:
        for place, function in before.items():
            setattr(*place, function)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Triton as it was before any replacement, whose caches nobody shares."""
    return inspect.unwrap(function)


def _once(patch: Callable[..., Any]) -> Callable[..., Any]:
    """Skip a function if all language modules that it uses are already replaced."""

    @functools.cache
    def seen(fn: Callable[..., Any]) -> tuple[Any, ...]:
        return tuple(m for m in fn.__globals__.values() if inspect.ismodule(m) and m in (tl, tl.core))

    def patch_once(fn: Callable[..., Any]) -> Any:
        modules = seen(fn)
        if modules and not any(tl.core.is_builtin(module.load) for module in modules):
            return Nothing()
        return patch(fn)

    return patch_once


def _kept(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache the format of every type, by its name."""
    found: dict[str, Any] = {}

    def look_once(dtype: Any) -> Any:
        if dtype.name not in found:
            found[dtype.name] = look(dtype)
        return found[dtype.name]

    return look_once


def _block(build: Callable[..., None]) -> Callable[..., None]:
    """Cache the contents of a block type, by the name of its element and its shape."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def build_once(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in found:
            build(self, element_ty, shape)
            found[key] = dict(vars(self))
        vars(self).update(found[key], element_ty=element_ty)

    return build_once


def _tensor(build: Callable[..., None]) -> Callable[..., None]:
    """Cache the contents of a tensor other than its handle and its type, by the name of its type."""
    found: dict[str, dict[str, Any]] = {}

    def build_once(self: Any, handle: Any, type: Any) -> None:
        if type.name not in found:
            build(self, handle, type)
            found[type.name] = dict(vars(self))
        vars(self).update(found[type.name], handle=handle, type=type, dtype=type.scalar)

    return build_once


def _alike(check: Callable[..., Any]) -> Callable[..., Any]:
    """Leave two numbers of one type, or blocks of one type and shape, unchanged; pointers and quotients are checked. A plain
    number combined with an unchanged tensor becomes the same tensor every time."""
    numbers: dict[tuple[Any, ...], Any] = {}

    def check_unlike(
        self: Any, lhs: Any, rhs: Any, pointer: Any = False, other: Any = False, arithmetic: Any = True, quotient: Any = False
    ) -> Any:
        tensors = isinstance(lhs, tl.tensor) and isinstance(rhs, tl.tensor)
        if tensors and not quotient and lhs.type.name == rhs.type.name and not lhs.type.scalar.is_ptr():
            return lhs, rhs
        if type(rhs) not in (int, float) or not isinstance(lhs, tl.tensor) or lhs.type.scalar.is_ptr():
            return check(self, lhs, rhs, pointer, other, arithmetic, quotient)
        key = lhs.type.name, type(rhs), rhs, arithmetic, quotient
        if key in numbers:
            return lhs, numbers[key]
        left, right = check(self, lhs, rhs, pointer, other, arithmetic, quotient)
        if left is lhs:
            numbers[key] = right
        return left, right

    return check_unlike


def _widened(widen: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the types of two operands of different shapes, by the names of their types."""
    found: dict[tuple[str, str], tuple[Any, Any]] = {}

    def widened(self: Any, operand: Any, to: Any) -> Any:
        if to is None:
            return operand
        if operand.type.is_block():
            return self.tensor(self.builder.create_broadcast(operand.handle, [int(size) for size in to.shape]), to)
        return self.tensor(self.builder.create_splat(to.to_ir(self.builder), operand.handle), to)

    def widen_once(self: Any, lhs: Any, rhs: Any) -> Any:
        key = lhs.type.name, rhs.type.name
        if key not in found:
            wide = widen(self, lhs, rhs)
            ranks = {len(operand.shape) for operand in (lhs, rhs)} - {0}
            if len(ranks) < 2:
                left, right = (None if new is old else new.type for new, old in zip(wide, (lhs, rhs), strict=True))
                found[key] = left, right
            return wide
        left, right = found[key]
        return widened(self, lhs, left), widened(self, rhs, right)

    return widen_once


def _told(check: Callable[..., None]) -> Callable[..., None]:
    """Check for overflow only if it is reported, in debug mode."""

    def check_told(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        if self.builder.options.debug:
            check(self, lhs, rhs, operation)

    return check_told
