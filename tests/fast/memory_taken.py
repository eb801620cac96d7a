"""The growth of a process's peak while an engine is loaded and used, beside what was stated: a child of `test_memory_stated`.

    python tests/fast/memory_taken.py FOLDER OPTIONS TOKENS BUDGET

prints a line of JSON. OPTIONS are those of `Parts`; every slot gets a prompt of so many tokens, and a budget.
"""

import gc
import json
import sys
from pathlib import Path

import torch

from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.models.build import Parts


def rss(field: str) -> int:
    """VmRSS or VmHWM. Units: bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    tokens, budget = int(sys.argv[3]), int(sys.argv[4])
    if "sampling" in options:
        options["sampling"] = Sampling(**options["sampling"])
    small = Parts(folder, **options | {"slots": 1, "cache": 40}).load()
    small.engine.generate([[1, 2, 3]], Settings(2))  # what is done once only is not counted
    del small
    gc.collect()
    parts = Parts(folder, **options)
    Path("/proc/self/clear_refs").write_text("5")
    before = rss("VmRSS")
    engine = parts.load().engine
    vocabulary = engine.model.config.vocabulary
    prompts = torch.randint(0, vocabulary, (engine.slots, tokens), generator=torch.Generator().manual_seed(0)).tolist()
    engine.generate(prompts, Settings(budget))
    print(json.dumps({"grown": rss("VmHWM") - before, "stated": parts.memory.peak, "text": str(parts.memory)}))


if __name__ == "__main__":
    main()
