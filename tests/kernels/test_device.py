"""What tests on a GPU share between their processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.kernels import conftest, device, tensors

ASK = "import sys; from filelock import FileLock; FileLock(sys.argv[1]).acquire(blocking=False)"


class OnAGPU(torch.Tensor):
    is_cuda = True


def free() -> bool:
    """Whether another process gets it at once."""
    return (
        subprocess.run([sys.executable, "-c", ASK, device.LARGE.lock_file], capture_output=True, check=False).returncode == 0
    )


def test_large_tensors_are_of_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(tmp_path / "turn")
    monkeypatch.setattr(device, "LARGE", lock)
    monkeypatch.setattr(tensors, "LARGE", lock)
    assert free()
    for _ in range(2):  # a second tensor of the same test has nothing to wait for
        tensors.room(torch.zeros(1).as_subclass(OnAGPU), 4)
        assert not free()
    conftest._large_tensors_are_freed()
    assert free()
