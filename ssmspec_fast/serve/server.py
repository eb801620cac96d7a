"""uvicorn with the app: reports its address, lets running requests finish before it stops, and stops in time."""

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from .app import Service, build
from .network.connection import ACCEPTED, HEAD, SECONDS, Connection, Room, check_descriptors
from .network.log import CONFIG

LAST = 1.0
"""Seconds, the last of the drain, in which what is left is refused."""
LISTED = 1024
"""Connections that the system holds until they are accepted."""
CUT = 1
"""Exit code: requests were refused or cut when it ended."""


class Server(uvicorn.Server):
    """Serves on a listening socket; `ready` receives its address. After SIGTERM or SIGINT it takes no more requests, running
    ones may take `drain` seconds but the last, and then the process ends, whatever a thread does. Units: seconds.

    Raises: ParameterError if the process may not open as many files as there may be connections.
    """

    def __init__(self, service: Service, ready: Callable[[str], None], drain: int = 30) -> None:
        self.service, self.ready, self.drain = service, ready, drain
        room = self.room = Room(service.limits.queue + service.generator.engine.slots, service.metrics.closed)
        check_descriptors(room.most)
        given: dict[str, Any] = {"lifespan": "on", "loop": "asyncio", "ws": "none"}
        given |= {"log_level": "warning", "log_config": CONFIG}
        given |= {"http": partial(Connection, room=room), "h11_max_incomplete_event_size": HEAD, "backlog": ACCEPTED}
        given |= {"timeout_keep_alive": 1 + int(SECONDS["idle"]), "timeout_graceful_shutdown": max(1, drain)}
        given |= {"proxy_headers": bool(service.limits.proxies), "forwarded_allow_ips": list(service.limits.proxies)}
        super().__init__(uvicorn.Config(build(service), **given))
        self.end: float | None = None
        """When the process ends, after a signal."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Returns if no signal ended it. After a signal the process has ended, with 0 or CUT."""
        super().run(sockets)
        if self.end is not None:
            leave(self.service.worker.why)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(LISTED)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self.ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, a second one is the end."""
        if self.should_exit:
            leave(f"a second signal came, {signal.Signals(sig).name}; requests may be cut")
        self.should_exit, self.end = True, time.monotonic() + max(LAST, self.drain)
        faulthandler.dump_traceback_later(max(LAST, self.drain), exit=True, file=2)  # even if no thread can run Python

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        left = self.drain if self.end is None else self.end - time.monotonic()
        self.service.worker.drain(max(0.0, left - LAST))
        self.room.ending = True
        if self.end is not None:
            said = "--drain has passed; connections that are left are cut"
            asyncio.get_running_loop().call_later(left - LAST / 4, leave, said)
        await super().shutdown(sockets)


def leave(why: str) -> None:
    """Ends the process, without waiting for threads; `why` says what was not done."""
    if why:
        with suppress(OSError):  # standard error may be closed
            os.write(2, f"ssmspec serve: {why}\n".encode())
    os._exit(CUT if why else 0)


def to_stderr(name: str) -> Callable[[str], None]:
    return lambda address: print(f"serving {name} at {address}", file=sys.stderr, flush=True)
