"""A run of tensors whose peak a process and the counter are compared by: a child of `test_memory_gpu`.

    python tests/fast/memory_counted.py

prints a line of JSON: what the peak of the process grew by, and what was counted.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from ssmspec_fast.models.counting import Counting
from tests.fast.memory_taken import rss


def several(n: int) -> Tensor:
    """Views, results that replace others, and pieces that are kept: at most 5 n numbers of 8 bytes, and a few more."""
    x = torch.zeros(n, dtype=torch.float64)
    kept = [x[: n // 2] + 1, x.view(2, -1).t().contiguous()]
    y = torch.where(x > 0, x, torch.cat(kept[:1] * 2))
    del x
    kept.append(torch.gather(y, 0, torch.arange(n // 4)))
    y = y * 2
    return torch.cat([y, *kept[::2]]).cumsum(0)


def main() -> None:
    with Counting(real=True):
        several(1000)
    Path("/proc/self/clear_refs").write_text("5")
    before = rss("VmRSS")
    with Counting(real=True) as counting:
        several(13_000_000)
    print(json.dumps({"grown": rss("VmHWM") - before, "counted": counting.peak}))


if __name__ == "__main__":
    main()
