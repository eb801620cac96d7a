"""What a measurement was made on and with: the GPU, the versions, and the sources of the kernels."""

import hashlib
import importlib.util
import platform
from pathlib import Path

import torch
import triton


def fingerprint() -> dict[str, str]:
    """GPU, driver-visible versions, and a hash of the kernels' sources."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "kernels": kernels_hash(),
    }


def kernels_hash() -> str:
    """A hash over the sources of `ssmspec_kernels`, so that a result can be told from those of other kernels."""
    spec = importlib.util.find_spec("ssmspec_kernels")
    assert spec is not None
    assert spec.origin is not None
    digest = hashlib.sha256()
    for file in sorted(Path(spec.origin).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
