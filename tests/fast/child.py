"""Scripts of this folder in a process of their own: what they print."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def output_of(script: str, *words: Any, seconds: float = 600, without: str = "", **variables: str) -> str:
    """Runs it with more variables, and without one; one that ends badly fails with the end of its error output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    environment.pop(without, None)
    command = [sys.executable, str(Path(__file__).parent / script), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
