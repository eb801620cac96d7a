"""The stand-in for torchvision can be imported by the names that engines import, and does not replace one that is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.engines.adapters import stand_in

IMPORTS = """
import torchvision.io
from torchvision import transforms
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.functional import pil_to_tensor
from torchvision.transforms.v2 import functional
print(torchvision.__version__, InterpolationMode.BICUBIC, v2.Resize)
"""


def test_its_names_can_be_imported_and_a_second_run_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(stand_in, "find_spec", lambda name: None)
    stand_in.main()
    path = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("0.0.0 None <class"), done.stderr
    made = tmp_path / "torchvision" / "__init__.py"
    made.write_text("there = True\n")
    monkeypatch.setattr(stand_in, "find_spec", lambda name: object())
    stand_in.main()
    assert made.read_text() == "there = True\n"
