"""A small package with every form that a closure hash follows, and copies of it with edits; it is never imported."""

from pathlib import Path

FILES = {
    "__init__.py": '"""Says."""\n\nfrom .deep import scan as scan\n',
    "shared/__init__.py": "from .math import softplus as soft\nfrom . import math\n",
    "shared/math.py": '''"""Says."""

import triton
import triton.language as tl

EXACT: tl.constexpr = tl.constexpr(3)


@triton.jit
def softplus(x):
    """Says."""
    return tl.maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))


@triton.jit
def log1p(e):
    w = 1.0 + e  # says
    return tl.log(w) * EXACT


@triton.jit
def unused(e):
    return e + 1
''',
    "shared/launch.py": """import os
from functools import cache

import torch

LIMITS = [16]
LIMITS.append(32)
AS_WRITTEN = {"enable_fp_fusion": False}
FEW, MANY = 4, 8
COUNT = 0
REGISTRY = {}
if os.environ.get("SLOW"):
    PROGRAMS = 2
else:
    PROGRAMS = 12


@cache
def overlaps(device):
    return torch.cuda.get_device_capability(device)[0] >= 9


def overlapped(device):
    on = overlaps(device)
    return {"OVERLAP": on, **({"launch_pdl": True} if on else {})}


def register(name):
    REGISTRY[name] = PROGRAMS + 1


def again():
    global COUNT
    COUNT = FEW + 2
""",
    "shared/tuning.py": """H200 = {"scan": {"block": 64, "warps": 4}, "other": {"block": 32, "warps": 8}}
B200 = {"scan": {"block": 128, "warps": 4}, "other": {"block": 16, "warps": 2}}
GPUS = {"h200": H200, "b200": B200}
STAGES = {"scan": 3, "other": 2}
WHOLE = {"scan": 5, "other": 6}
""",
    "records.py": '''from dataclasses import dataclass, field

from .shared import launch


@dataclass(frozen=True)
class Ring:
    """Says."""

    x: object
    size: int = 16

    @property
    def strides(self):
        return self.x.stride(), entry(self.size)

    def arguments(self, first=1):
        return [self.x, first]


class Longer(Ring):
    def arguments(self, first=2):
        return [self.x, first, launch.MANY]


class Untyped:
    def moved(self, by):
        return by + 7


def entry(size):
    return size * 2
''',
    "deep/__init__.py": "from .launchers import scan\n",
    "deep/kernels/__init__.py": "",
    "deep/kernels/tile.py": """import triton
import triton.language as tl

from ...shared import soft
from ... import shared as common


@triton.jit(do_not_specialize=["run"])
def scan_kernel(S, y, slots, run, low, T: tl.constexpr, WIDTH: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr = 2):
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(0)
    wait = "mov.u32 $0, $1;"
    at = tl.inline_asm_elementwise(wait, "=r,r", [b], dtype=tl.int32, is_pure=True, pack=1)
    total = 0.0
    for t in tl.range(0, T, num_stages=STAGES):
        total += part(S, at=at + t, scale=low)
    if slots is not None:
        total = common.math.log1p(total)
    tl.store(y + at * run, soft(total) * WIDTH)


@triton.jit
def part(S, at, scale):
    return tl.load(S + at, mask=at < 16, other=0.0) * scale
""",
    "deep/launchers.py": '''import functools

import torch
import triton

from ..records import Ring
from ..shared import launch as lib
from ..shared.tuning import GPUS, STAGES, WHOLE
from .kernels import tile


def scan(S, ring: Ring, *, slots=None, warps: int = 4, gpu="h200", limit=0.5):
    """Says.

    At length.
    """
    from .kernels.tile import scan_kernel as kernel

    def time(run, cost=1):
        return run * cost + lib.COUNT

    y = torch.empty_like(S)
    runs = [time(k) for k in range(1, 4)]
    best = min(runs, key=lambda k: k * lib.PROGRAMS)
    if best > lib.FEW and lib.LIMITS:
        raise ValueError(f"{best:>4} runs came{lib.FEW!r} at most")
    row, depth = GPUS[gpu]["scan"], STAGES["scan"]
    common = {"T": ring.size, "WIDTH": row["block"]}
    kernel[(triton.cdiv(len(S), row["block"]), *ring.strides)](
        S, y, slots, best, low=limit, **common, STAGES=depth, num_warps=warps, num_stages=2, **lib.AS_WRITTEN,
        **lib.overlapped(S.device),
    )
    return y, ring.arguments(), other_rows(WHOLE["scan"]), given(S)


def given(thing):
    return thing.moved(3), lib.REGISTRY, functools.partial(torch.add, alpha=2)


def other_rows(count):
    try:
        found = max(count, 1)
    except (TypeError, ValueError) as error:
        raise ValueError("no count") from error
    match found:
        case 1 | 2:
            return [found]
        case [first, *rest] if rest:
            return [first]
        case int(value):
            return {k: v for k, v in enumerate(range(value)) if v % 2}
    return not found


def other(S):
    tile.scan_kernel[(1,)](S, S, None, 1, 2.0, T=1, WIDTH=STAGES["other"], OVERLAP=False)
''',
}

Edit = tuple[str, str, str]
"""File, text, and what stands there instead, at every place."""


def written(folder: Path, *edits: Edit, moved: dict[str, str] | None = None) -> Path:
    """The package `sample` in a folder, edited; `moved` gives files other names."""
    files = dict(FILES)
    for name, old, new in edits:
        assert old in files[name], f"{name} does not hold {old!r}"
        files[name] = files[name].replace(old, new)
    for name, text in files.items():
        file = folder / "sample" / (moved or {}).get(name, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "sample"
