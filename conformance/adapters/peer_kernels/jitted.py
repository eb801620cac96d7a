"""Rebind Triton's functions in modules that imported them under their own names.

The interpreter replaces functions in the modules where Triton defines them; a name bound earlier keeps the old function.
Import this module after the interpreter has been chosen.
"""

from importlib import import_module

import torch
import triton
import triton.language as tl


@triton.jit
def exp(x):  # type: ignore[no-untyped-def]
    return tl.exp(x)


@triton.jit
def exp2(x):  # type: ignore[no-untyped-def]
    return tl.exp2(x)


@triton.jit
def _at(x_ptr, y_ptr):  # type: ignore[no-untyped-def]
    tl.store(y_ptr, tl.exp(tl.load(x_ptr)))


def exp_at(x: float, device: str) -> float:
    """e^x in float32, rounded as kernels on this device round it."""
    given = torch.tensor([x], dtype=torch.float32, device=device)
    came = torch.full_like(given, float("nan"))
    _at[(1,)](given, came)
    return float(came)


FUNCTIONS = {"exp": exp, "exp2": exp2}


def bind(home: str, *names: str) -> None:
    """Bind names of a module to Triton's current functions. Raises: ImportError if the module lacks one of the names."""
    kernels = import_module(home)
    for name in names:
        if not hasattr(kernels, name):
            raise ImportError(f"{home} has no {name}; its kernels cannot be interpreted", name=home)
        setattr(kernels, name, FUNCTIONS[name])
