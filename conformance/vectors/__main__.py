"""`python -m conformance.vectors`: generate the vectors again; `--check` only reports whether that changes anything."""

import sys

from ..main import run_command
from .generate import main

if __name__ == "__main__":
    sys.exit(run_command(main))
