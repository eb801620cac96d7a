"""What all tests share."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # perf_gates is in no wheel; what is installed comes first
