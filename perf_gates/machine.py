"""Where and with which code a measurement was made: the GPU, the versions, and the code of the kernels."""

import functools
import os
import platform
import subprocess

from ssmspec_ref.errors import OptionError

from .digest import texts


def fingerprint() -> dict[str, str]:
    """GPU, driver, versions, the commit if known, and hashes of the kernels and of the code that measures."""
    import torch
    import triton

    from .digest.launches import settings

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "timing": timing_hash(),
        "code": texts.text(),
        "settings": settings(),
    } | made_with()


def made_with() -> dict[str, str]:
    """The code that a result was made with: the commit if known, and a hash of the kernels."""
    return {"commit": os.environ.get("SSMSPEC_COMMIT") or _said(["git", "rev-parse", "HEAD"]), "kernels": kernels_hash()}


def need_gpu() -> None:
    """Raises: OptionError if there is no GPU; a measuring command asks before it writes or removes anything."""
    import torch

    if not torch.cuda.is_available():
        raise OptionError("torch sees no GPU, and this measurement needs one; `ssmspec gates check` needs none")


def clock_mhz() -> int | None:
    """The current clock of the GPU's processors, for the first device of this process; None if unknown."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    said = _said(["nvidia-smi", "-i", first, "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"])
    return int(said) if said.isdigit() else None


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip().split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def kernels_hash() -> str:
    """A hash of the text of the kernels, which names their revision in a result (`digest.record`)."""
    return texts.kernels_text()


@functools.cache
def timing_hash() -> str:
    """A hash of the code that measures times and checks timed outputs."""
    return texts.of_files([texts.package("perf_gates") / "gpu" / f"{name}.py" for name in ("clock", "output_guard")])
