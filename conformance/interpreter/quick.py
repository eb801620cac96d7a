"""The interpreter without what it does again and again to the same end.

Before every call of a device function Triton's interpreter replaces all builtins of the language anew, though the launch has
replaced them; it builds a table of formats for every array, and the shape of every type and tensor from wrapped numbers. That
took two thirds of the time of a kernel of many small functions. Inside `quick()` each is done once; what is computed is the
same.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class Nothing:
    """Stands for what was replaced where nothing was."""

    def restore(self) -> None:
        """Nothing to put back."""


@contextmanager
def quick() -> Iterator[None]:
    """Replace the builtins once a launch, and look up formats and shapes, while the block runs."""
    places = {
        (interpreter, "_patch_lang"): _once,
        (interpreter, "_get_np_dtype"): _kept,
        (tl.core.block_type, "__init__"): _block,
        (tl.core.tensor, "__init__"): _tensor,
    }
    before = {place: getattr(*place) for place in places}
    for place, made in places.items():
        setattr(*place, made(before[place]))
    try:
        yield
    finally:
        for place, function in before.items():
            setattr(*place, function)


def _once(patch: Callable[..., Any]) -> Callable[..., Any]:
    """A function is passed over where every language module that it sees is replaced already."""

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
    """The format of every type, by its name."""
    found: dict[str, Any] = {}

    def look_once(dtype: Any) -> Any:
        if dtype.name not in found:
            found[dtype.name] = look(dtype)
        return found[dtype.name]

    return look_once


def _block(build: Callable[..., None]) -> Callable[..., None]:
    """What a type of blocks holds, by the name of its element and its shape."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def build_once(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in found:
            build(self, element_ty, shape)
            found[key] = dict(vars(self))
        vars(self).update(found[key], element_ty=element_ty)

    return build_once


def _tensor(build: Callable[..., None]) -> Callable[..., None]:
    """What a tensor holds beside its handle and its type, by the name of its type."""
    found: dict[str, dict[str, Any]] = {}

    def build_once(self: Any, handle: Any, type: Any) -> None:
        if type.name not in found:
            build(self, handle, type)
            found[type.name] = dict(vars(self))
        vars(self).update(found[type.name], handle=handle, type=type, dtype=type.scalar)

    return build_once
