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


@triton.jit
def cos(x):  # type: ignore[no-untyped-def]
    return tl.cos(x)


@triton.jit
def sin(x):  # type: ignore[no-untyped-def]
    return tl.sin(x)


@triton.jit
def tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


FUNCTIONS = {"exp": exp, "exp2": exp2, "cos_approx": cos, "sin_approx": sin, "tanh_approx": tanh}


def bind(home: str, *names: str) -> None:
    """Bind names of a module to Triton's current functions. Raises: ImportError if the module lacks one of the names."""
    kernels = import_module(home)
    for name in names:
        if not hasattr(kernels, name):
            raise ImportError(f"{home} has no {name}; its kernels cannot be interpreted", name=home)
        setattr(kernels, name, FUNCTIONS[name])
