"""Code that runs on a node: calls a function by name, and reports where it ran."""

import importlib
import os
import platform
import socket
import time
from importlib import metadata
from typing import Any

from ..device import driver
from ..device.observed import PACKAGES as CHECKED
from ..errors import ConformanceError
from ..run.calls import tail
from .shipping import digest

PACKAGES = tuple(package for package in CHECKED if package != "ssmspec")
"""Packages that implementations compute with: their versions must be equal on all nodes."""


def call(function: str, given: tuple[Any, ...]) -> tuple[str, Any, dict[str, Any]]:
    """The answer of `package.module:function`, or how it was refused or failed; and where it ran."""
    begun, spent = time.time(), cpu_seconds()
    module, _, name = function.partition(":")
    try:
        said: tuple[str, Any] = "answer", getattr(importlib.import_module(module), name)(*given)
    except ConformanceError as error:
        said = "refused", (type(error).__name__, str(error))
    except Exception as error:
        said = "broke", tail(error)
    return *said, {**where(), "began": begun, "seconds": time.time() - begun, "cpu_seconds": cpu_seconds() - spent}


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, in seconds."""
    return sum(os.times()[:4])


def where() -> dict[str, Any]:
    """Host, devices and versions; the versions of all nodes must be equal."""
    return {
        "host": socket.gethostname(),
        "node": node_id(),
        "process": os.getpid(),
        "gpus": list(driver.gpus()),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {**versions(), "python": platform.python_version(), "sources": digest()},
    }


def versions() -> dict[str, str]:
    """Versions of the packages installed here; ours is identified by its sources, which are sent."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def node_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
