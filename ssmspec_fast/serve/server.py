"""uvicorn with the app: reports its address, and lets running requests finish before it stops."""

import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from .app import Service, build

AFTER = 5
"""Seconds for sending the last answers after the drain time is over."""


class Server(uvicorn.Server):
    """Serves on a listening socket; `ready` receives its address. After SIGTERM or SIGINT it takes no more requests, and
    running ones may take `drain` seconds. Units: seconds."""

    def __init__(self, service: Service, ready: Callable[[str], None], drain: int = 30) -> None:
        self.service, self.ready, self.drain = service, ready, drain
        given: dict[str, Any] = {"lifespan": "on", "log_level": "warning", "timeout_graceful_shutdown": drain + AFTER}
        super().__init__(uvicorn.Config(build(service), **given))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.worker.drain(self.drain)
        super().handle_exit(sig, frame)


def to_stderr(name: str) -> Callable[[str], None]:
    return lambda address: print(f"serving {name} at {address}", file=sys.stderr, flush=True)
