"""Where a call of an implementation ran, and with which packages. The calling process observes this; it is never copied from
an argument."""

import re
import sys
from importlib import metadata
from typing import Any

from ..errors import AdapterUnavailable
from . import driver

CPU, INTERPRETER, ELSEWHERE = "cpu", "Triton interpreter", "not seen: a process of its own"
PACKAGES = ("ssmspec", "numpy", "torch", "transformers", "triton", "jax", "mlx", "vllm", "sglang", "fla", "mamba_ssm")
NAME = re.compile(r"cpu|interpreter|cuda(:\d+)?")
launches = 0
"""Kernels that this process has run in Triton's interpreter."""


def check(device: str) -> None:
    """Refuse a device that does not exist, or that this machine lacks.

    Raises: AdapterUnavailable.
    """
    if not NAME.fullmatch(device):
        raise AdapterUnavailable(f"--device {device!r} is not a device; give cpu, cuda, cuda:1 or interpreter")
    if not device.startswith("cuda"):
        return
    found, number = driver.gpus() or _of_torch(), int(device.partition(":")[2] or 0)
    if not found:
        raise AdapterUnavailable(
            f"--device {device} needs a GPU, and none is visible (no CUDA driver, or CUDA_VISIBLE_DEVICES hides it); "
            "omit --device to run on the CPU, or give --device interpreter for Triton kernels"
        )
    if number >= len(found):
        raise AdapterUnavailable(f"--device {device} does not exist; the GPUs are {_numbered(found)}")


def _numbered(names: list[str]) -> str:
    return ", ".join(f"cuda:{number} ({name})" for number, name in enumerate(names))


def _of_torch() -> list[str]:
    """GPUs of other vendors, which PyTorch also calls cuda."""
    try:
        import torch
    except ImportError:
        return []
    if not getattr(torch.version, "hip", None) or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


class Watch:
    """Observes one call: create it before the call, query it afterwards."""

    def __init__(self) -> None:
        self.allocated, self.launched = _allocations(), launches

    def place(self) -> str:
        """The GPUs by name, "Triton interpreter", or "cpu".

        A GPU counts if PyTorch allocated memory on it during the call or holds memory there; for other frameworks, if this
        process has opened it.
        """
        now = _allocations()
        if now:
            names = [name for name, (count, held) in now.items() if held or count > self.allocated.get(name, (0, 0))[0]]
        else:
            names = driver.opened()
        return ", ".join(dict.fromkeys(names)) or (INTERPRETER if launches > self.launched else CPU)


def _allocations() -> dict[str, tuple[int, int]]:
    """For each GPU that PyTorch has opened: the number of allocations, and the bytes held."""
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", lambda: False)():
        return {}
    found: dict[str, tuple[int, int]] = {}
    for number in range(cuda.device_count()):
        told = cuda.memory_stats(number)
        name = cuda.get_device_name(number)
        count, held = found.get(name, (0, 0))
        found[name] = count + told.get("allocation.all.allocated", 0), held + told.get("allocated_bytes.all.current", 0)
    return found


def versions() -> dict[str, str]:
    """The versions of the packages that this process has imported."""
    found = {}
    for package in PACKAGES:
        module = sys.modules.get(package)
        if module is None and package != "ssmspec":
            continue
        try:
            found[package] = metadata.version(package.replace("_", "-"))
        except metadata.PackageNotFoundError:
            told = getattr(module, "__version__", "")
            if told:
                found[package] = str(told)
    return found
