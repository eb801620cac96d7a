"""The interpreter without what it does again and again to the same end.

Before every call of a device function Triton's interpreter replaces all builtins of the language anew, though the launch has
replaced them; and it builds a table of formats for every array. Both took half of the time of a kernel of many small
functions. Inside `quick()` they are done once; what is computed is the same.
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
    """Replace the builtins once a launch, and look formats up, while the block runs."""
    before = {name: getattr(interpreter, name) for name in ("_patch_lang", "_get_np_dtype")}
    interpreter._patch_lang = _once(before["_patch_lang"])
    interpreter._get_np_dtype = _kept(before["_get_np_dtype"])
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(interpreter, name, function)


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
