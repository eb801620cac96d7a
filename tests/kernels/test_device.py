"""What tests on a GPU share between their processes."""

import subprocess
import sys
from pathlib import Path

from tests.kernels.device import Turn

ASK = "import sys; from fcntl import *; flock(open(sys.argv[1]), LOCK_EX | LOCK_NB)"


def free(file: Path) -> bool:
    """Whether another process gets it at once."""
    return subprocess.run([sys.executable, "-c", ASK, str(file)], capture_output=True, check=False).returncode == 0


def test_large_tensors_are_of_one_process_at_a_time(tmp_path: Path) -> None:
    turn = Turn(tmp_path / "turn")
    turn.take()
    assert not free(turn.file)
    turn.take()  # again, in the same test: nothing to wait for
    turn.give_back()
    assert free(turn.file)
    turn.give_back()
    turn.take()
    assert not free(turn.file)
    turn.give_back()
