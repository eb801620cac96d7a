"""The largest launches of a kernel fit the shared memory of an H200 (sm_90), compiled without one."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from perf_gates.static.compiled import SHARED
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache, ssd_replay_scan
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window
from ssmspec_ref.errors import Unsupported

SCRIPT = """
import torch
from torch import bfloat16, bool, float16, int32
from perf_gates.static.capture import build, launches_of
from ssmspec_kernels.delta.delta_chunk_scan import delta_chunk_scan
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache, ssd_replay_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window

def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")

def window():
    b, t, h, p, n = 64, 128, 80, 64, 128
    return meta(b, h, p, n), [meta(b, t, h, p), meta(b, t, h), meta(h), meta(b, t, 1, n), meta(b, t, 1, n)]

def ssd():
    S, tokens = window()
    ssd_window(S, *tokens, z=meta(64, 128, 80, 64), live=meta(64, 128, dtype=bool))

def replay():
    S, tokens = window()
    cache = Cache(meta(64, 256, 80, 64), meta(64, 256, 80), meta(64, 256, 1, 128), meta(64, dtype=int32))
    ssd_replay_scan(S, cache, meta(64, dtype=int32), *tokens, z=meta(64, 128, 80, 64))

def prefill(k, gate, io, **options):
    g = meta(4096, 6, k) if gate else meta(4096, 6)
    tokens = meta(4096, 6, k, dtype=io), meta(4096, 6, k, dtype=io), meta(4096, 6, 256, dtype=io), g, meta(4096, 6)
    delta_chunk_scan(meta(8, 6, k, 256), *tokens, meta(9, dtype=int32), **options)

launches = launches_of(lambda: CALL)
"""
BYTES = "print(max(build(launch, 90).compiled.metadata.shared for launch in launches))"
STAGES = "print(launches[-1].kwargs['STAGES'])"
CALLS = {
    "replay()": 270336,
    "prefill(256, False, bfloat16, products='bf16')": 291840,
    "prefill(256, True, bfloat16, products='bf16')": 336896,
    "prefill(256, True, torch.float32)": 250368,
    "prefill(128, True, torch.float32, chunk=64)": 302592,
}
"""Bytes of the largest launch with the number of stages for models that were measured."""


@pytest.mark.nightly
@pytest.mark.parametrize("call", CALLS)
def test_the_largest_launch_fits_the_shared_memory_of_an_sm90(call: str) -> None:
    """Nightly: each is compiled for some seconds."""
    assert 0 < int(printed(call, BYTES)) <= SHARED[90] < CALLS[call]


@pytest.mark.parametrize("call", ["ssd()", "replay()"])
def test_a_long_window_in_fp32_loads_no_tile_ahead(call: str) -> None:
    """Both fit with one stage, in 212,992 bytes; with those of other windows they would take 253,952 and 270,336. `ssd` is
    not compiled here: that takes minutes."""
    assert printed(call, STAGES) == "1"


def printed(call: str, then: str) -> str:
    """What a process prints that captures the launches of a call, without Triton's interpreter."""
    command = [sys.executable, "-c", SCRIPT.replace("CALL", call) + then]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def tokens(io: torch.dtype, t: int = 65, n: int = 129) -> dict[str, Any]:
    shapes = (1, t, 1, 4), (1, t, 1), (1,), (1, t, 1, n), (1, t, 1, n)
    made = [torch.zeros(shape, dtype=io if len(shape) > 1 else torch.float32) for shape in shapes]
    return dict(zip(("x", "dt", "A", "B", "C"), made, strict=True))


def calls(io: torch.dtype) -> dict[str, Any]:
    S, given, mask = torch.ones(1, 1, 4, 129), tokens(io), torch.ones(1, 65, 65, dtype=torch.bool).tril()
    x, dt, B = (torch.zeros(1, 130, *each.shape[2:], dtype=io) for each in (given["x"], given["dt"], given["B"]))
    cache = Cache(x, dt, B, torch.zeros(1).int())
    return {
        "window": lambda: ssd_window(S, **given),
        "verify": lambda: ssd_window(S, **given, write_state=False),
        "tree": lambda: ssd_tree_scan(S, **given, ancestors=mask),
        "replay": lambda: ssd_replay_scan(S, cache, torch.zeros(1).int(), **given),
    }


@pytest.mark.parametrize(
    ("io", "refused"),
    [(torch.float32, {"window", "verify", "tree", "replay"}), (torch.float16, {"window", "verify", "tree", "replay"}),
     (torch.bfloat16, {"window"})],
)  # fmt: skip
def test_what_no_tile_makes_fit_is_refused(io: torch.dtype, refused: set[str]) -> None:
    for name in sorted(refused):
        with pytest.raises(Unsupported, match="65 tokens over states of 129 channels in torch"):
            calls(io)[name]()


def test_bf16_that_writes_no_state_is_not_refused() -> None:
    calls(torch.bfloat16)["verify"]()
