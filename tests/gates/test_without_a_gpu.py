"""Without a GPU the commands that measure on one end with a sentence, before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.main import run_command
from perf_gates.gpu import memory
from perf_gates.gpu.one_launch import __main__ as one_launch
from perf_gates.gpu_gates import __main__ as gpu_gates
from perf_gates.real_text import __main__ as real_text

COMMANDS: dict[str, tuple[Callable[..., Any], list[str], str]] = {
    "memory": (memory.main, [], ""),
    "one launch": (one_launch.main, [], "needs one"),
    "gates": (gpu_gates.main, [], "torch sees no GPU"),
    "real text": (real_text.main, ["--part", "b"], "need a GPU"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_gpu_measuring_is_refused_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main, words, said = COMMANDS[name]
    assert run_command(main, [*words, "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
