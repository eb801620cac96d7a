"""A small tree of this repository's form: a launcher of one kernel, and a part that times it."""

from pathlib import Path

KERNEL = '''"""Says nothing."""
import torch
import triton
import triton.language as tl


@triton.jit
def decay(x):
    return tl.exp(x)


@triton.jit
def small_kernel(x, y, n, tree, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, decay(value) * 3.0 + 1.0, mask=at < n)


def small(x, tree):
    y = torch.empty_like(x)
    small_kernel[(triton.cdiv(x.shape[0], 64),)](x, y, x.shape[0], tree, BLOCK=64, num_warps=4)
    return y
'''
PART = """from collections import namedtuple

import torch
from importlib import import_module

from perf_gates.gpu.clock import graph_us

Timing = namedtuple("Timing", "model operation batch us")
NAMES = {names}


def cases():
    yield from ((name,) for name in NAMES)


def timings(name):
    small = import_module(NAMES[name]).small
    x, tree = torch.randn(256, device="cuda"), torch.tensor([[True, False], [True, True]]).cuda()
    return [Timing("small", name, 1, graph_us([lambda: small(x, tree)], {{}}))]
"""
OTHER_TREE = PART.replace("[True, True]]", "[False, True]]")
CLOCK = """from contextlib import contextmanager


@contextmanager
def compiling():
    yield


def graph_us(*_):
    raise RuntimeError("times")
"""


def write(folder: Path, variants: dict[str, str]) -> Path:
    """A tree whose parts `small` and `other` time each variant of the kernel, in a module of its own, of which one may lie in
    another folder; `other` with another tree of drafts. The tree itself is in another folder in every run."""
    modules = {name: f"{'deep.inside.' if 'folder' in name else ''}variant_{i}" for i, name in enumerate(variants)}
    for name, text in variants.items():
        file = folder / "kernels" / f"{modules[name].replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    gpu = folder / "perf_gates" / "gpu"
    (gpu / "kernels").mkdir(parents=True)
    for package in (gpu.parent, gpu, gpu / "kernels"):
        (package / "__init__.py").touch()
    (gpu / "clock.py").write_text(CLOCK)
    for name, text in (("small", PART), ("other", OTHER_TREE)):
        (gpu / "kernels" / f"{name}.py").write_text(text.format(names=modules))
    return folder
