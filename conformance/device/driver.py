"""GPUs as reported by the CUDA driver, called through ctypes; no framework is needed.

Source: CUDA Driver API, device management and primary contexts.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator

LIBRARY = "libcuda.so.1"
LONGEST = 100
"""Maximum length of a GPU's name."""
SECONDS = 60
"""Time limit in seconds; the driver may start slowly on a machine with many GPUs."""


def gpus() -> list[str]:
    """The names of the GPUs of this machine; empty without a driver.

    Runs in a separate process, because a process that has started the driver can no longer fork workers that use it.
    """
    command = [sys.executable, "-I", "-S", __file__]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
        names: list[str] = json.loads(told)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return []
    return names


def opened() -> list[str]:
    """The names of the GPUs on which this process holds a primary context: PyTorch, JAX, CuPy and Triton make one."""
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # nothing in this process has loaded the driver
        return []
    return [name for number, name in _devices(library) if _active(library, number)]


def lost() -> bool:
    """Whether this process can no longer use its GPU: after a read outside memory, for one, every later call fails.

    Source: CUDA Driver API, `cuCtxSynchronize`: such an error leaves the process in an inconsistent state.
    """
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except (OSError, AttributeError):
        return False
    return bool(library.cuCtxSynchronize() not in USABLE)


USABLE = (0, 3, 201)
"""Success, and that there is no context: CUDA_SUCCESS, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_INVALID_CONTEXT."""


def _devices(library: ctypes.CDLL) -> Iterator[tuple[int, str]]:
    count = ctypes.c_int()
    if library.cuDeviceGetCount(ctypes.byref(count)):
        return
    for number in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(LONGEST)
        if not library.cuDeviceGet(ctypes.byref(device), number) and not library.cuDeviceGetName(name, LONGEST, device):
            yield device.value, name.value.decode(errors="replace")


def _active(library: ctypes.CDLL, device: int) -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    return not library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) and bool(active.value)


def _main() -> None:
    """Print the names as JSON."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        print("[]")
        return
    print(json.dumps([name for _, name in _devices(library)] if library.cuInit(0) == 0 else []))


if __name__ == "__main__":
    _main()
