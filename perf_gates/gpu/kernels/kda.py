"""Steps and scans of Kimi Delta Attention beside the delta rule's plain step: `python -m perf_gates.gpu.kernels.kda`.

At the shape of Kimi-Linear, each launch in a CUDA graph over states that no cache holds, as in `steps`; gates are
projections, with a lower bound. Printed for each number of rows are microseconds, the time of the bytes at the run's copy
bandwidth, the share of that bandwidth, and the ratio to the plain step of the delta rule, which has a decay per head. With
`--tiles` other tiles of the scan too: lanes along k, value channels, warps.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from perf_gates.gpu.clock import copies_for, copy_bytes_per_us, empty_launch_us
from perf_gates.machine import need_gpu
from perf_gates.static.shapes import BATCHES, KDA

from .steps import Timing, bf16, kernel, timed

WINDOW, PLAIN = 5, "step of the delta rule"
TILES = ((8, 16, 1), (8, 32, 2), (8, 32, 4), (8, 64, 4), (16, 32, 4))


def cases() -> Iterator[tuple[str, int]]:
    """Models and rows."""
    yield from ((model, batch) for model in KDA for batch in BATCHES)


def timings(model: str, batch: int, tiles: Sequence[tuple[int, int, int]] = ()) -> list[Timing]:
    """The delta rule's step, then those of Kimi Delta Attention, with each of the tiles."""
    g, h, k, v = KDA[model]
    pool = torch.randn(batch * copies_for(batch * h * k * v * 4), h, k, v, device="cuda")
    A = -torch.rand(h, device="cuda")
    found: list[Timing] = []

    def run(name: str, t: int, by_channel: bool = True, **how: Any) -> None:
        q, key, value = bf16(batch, t, g, k), bf16(batch, t, g, k), bf16(batch, t, h, v)
        rule = "kda_scan" if by_channel else "delta_scan"
        gate, beta = bf16(batch, t, h, k) if by_channel else bf16(batch, t, h), bf16(batch, t, h)
        bias = torch.randn(h, k, device="cuda") if by_channel else torch.randn(h, device="cuda")
        launcher, given = kernel(rule), {"A": A, "dt_bias": bias} | ({"lower_bound": -5.0} if by_channel else {}) | how
        launch = lambda s, o: launcher(pool, q, key, value, gate, beta, **given, slots=s, out=o)  # noqa: E731
        write = {"write_state": how.get("write_state", True), "gate": 2}
        bytes_ = int(kernel(rule, "traffic_bytes")(batch, t, g, h, k, v, **write))
        found.append(Timing(model, name, batch, timed(launch, batch, bytes_, value, pool), bytes_))

    run(PLAIN, 1, by_channel=False)
    run("step", 1)
    run(f"scan of {WINDOW}", WINDOW)
    run(f"window of {WINDOW}, not written", WINDOW, write_state=False)
    for tile in tiles:
        run(f"step, tile {tile}", 1, tiles=tile)
        run(f"scan of {WINDOW}, tile {tile}", WINDOW, tiles=tile)
    return found


def lines(found: list[Timing], copy: float) -> Iterator[str]:
    """A line for each measurement of one number of rows; `copy` is the copy bandwidth in bytes per microsecond."""
    plain = next(one.us for one in found if one.operation == PLAIN)
    for one in found:
        least = one.bytes / copy
        yield (
            f"{one.batch:4} rows  {one.operation:32} {one.us:9.2f} us  bytes {least:9.2f} us  "
            f"{least / one.us:5.2f} of copy  {one.us / plain:6.3f} plain steps"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_gates.gpu.kernels.kda", description=__doc__)
    parser.add_argument("--tiles", action="store_true", help="other tiles too")
    options = parser.parse_args(argv)
    need_gpu(parser)
    copy = copy_bytes_per_us()
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e6:.2f} TB/s, empty launch {empty_launch_us():.2f} us", flush=True)
    for model, batch in cases():
        print("\n".join(lines(timings(model, batch, TILES if options.tiles else ()), copy)), flush=True)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
