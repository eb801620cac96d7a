"""What tests of the engine are given: a pair of small trained checkpoints, and attention as on a GPU."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and its drafter."""
    from .trained import pair

    return pair(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention reads all places of a cache, whatever is committed, so that no shape follows from a value."""
    from ssmspec_fast.operations import torch_attention

    monkeypatch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)
