"""All fuzzers of the readers in turn, for so many minutes; ends with 1 at the first error that has no name.

python tests/fast/readers/campaign.py --minutes 10
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SEEDS, EXAMPLES = 200, 1500
"""Mutated files of a child process, drawn configs of a run of pytest."""


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--minutes", type=float, default=10.0)
    until = time.monotonic() + 60 * reader.parse_args().minutes
    whole, turn = until - time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        guided = [sys.executable, str(HERE / "atheris_readers.py"), folder, str(int(whole / 3))]
        if not ended_well("atheris", guided, whole):
            return 1
        while time.monotonic() < until:
            files = [sys.executable, str(HERE / "mutated.py"), folder, str(turn * SEEDS), str(SEEDS)]
            drawn = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--hypothesis-seed={turn}",
                     str(HERE.parent / "test_readers.py"), "-k", "refused_by_a_named_error"]  # fmt: skip
            for name, command in (("mutated files", files), ("drawn configs", drawn)):
                if time.monotonic() < until and not ended_well(name, command, 600):
                    return 1
            turn += 1
    print(f"no error without a name: {whole / 60:.0f} minutes, {turn * SEEDS} mutated files, {turn * EXAMPLES} drawn configs")
    return 0


def ended_well(name: str, command: list[str], seconds: float) -> bool:
    """Run one fuzzer; what it said where it ended badly or not at all."""
    settings = os.environ | {"SSMSPEC_READER_EXAMPLES": str(EXAMPLES)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 60, env=settings)
    except subprocess.TimeoutExpired as late:
        print(f"{name} did not end: {' '.join(command)}\n{late.stdout!r:.2000}")
        return False
    if done.returncode:
        print(f"{name} ended with {done.returncode}: {' '.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-4000:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
