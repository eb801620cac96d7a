"""A connection that waits for its client only so long, and one of only so many.

    idle -> head -> body -> (answered) -> idle ..

It waits for a request to begin, then for the rest of its head and of its body; while it is answered, the client waits. Of
the connections that wait, one is closed when there are too many, the oldest of the client that has the most: half-sent
requests shut nobody out.
"""

import asyncio
import os
from collections import Counter
from http import HTTPStatus
from typing import Any

import h11
from fastapi.responses import JSONResponse
from prometheus_client import Counter as Metric
from uvicorn.protocols.http.h11_impl import H11Protocol

from ssmspec_ref.errors import ParameterError

from ..refusal import Refused
from .address import client_of

SECONDS = {"idle": 15.0, "head": 10.0, "body": 30.0}
"""How long a connection waits: for a request to begin, for its whole head, then for its whole body."""
STALLED = 30.0
"""Seconds in which a client must read what the system no longer buffers."""
HEAD = 1 << 14
"""Bytes of the head of a request."""
PIECE = 1 << 14
"""Bytes that are read at once: the event loop turns to others after each piece."""
LINES = 20_000
"""Line ends in a body that comes in chunks: a chunk of one byte costs as much as one of thousands."""
WAITING = 256
"""Most connections that wait."""
ACCEPTED = 64
"""Connections accepted in one turn of the event loop; they are counted some turns later."""
OTHERS = 4 * ACCEPTED + 64
"""File descriptors for connections that are not counted yet, and for everything else."""


class Room:
    """Room for WAITING connections that wait and `answered` others. `closed` counts the closed ones by reason; `ending`: new
    ones are closed, too, which were accepted just before the end."""

    def __init__(self, answered: int, closed: Metric) -> None:
        self.most, self.closed, self.ending = WAITING + answered, closed, False
        self.waiting: dict[Connection, None] = {}
        """The oldest first."""

    def next(self) -> "Connection":
        """The one to close: that has waited the longest, of the client with the most."""
        many = Counter(one.peer for one in self.waiting)
        most = max(many.values())
        return next(one for one in self.waiting if many[one.peer] == most)


class Connection(H11Protocol):
    """uvicorn's, with a phase (None: it is being answered) and a timer for it."""

    def __init__(self, *given: Any, room: Room, **named: Any) -> None:
        super().__init__(*given, **named)
        self.room = room
        self.phase: str | None = None
        self.peer, self.lines = "", 0
        self.timer: asyncio.TimerHandle | None = None
        self.stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        transport.max_size = PIECE
        super().connection_made(transport)
        self.peer = client_of(self.client)
        self.enter("idle")
        if self.room.ending:
            self.shutdown()
        elif len(self.room.waiting) > WAITING or len(self.connections) > self.room.most:
            oldest = self.room.next()
            if oldest is self:
                self.answer(Refused(503, f"all {self.room.most} connections are in use; ask again", code="no_connection"))
            oldest.end("crowded")

    def data_received(self, data: bytes) -> None:
        self.lines = self.lines + data.count(b"\r\n") if self.phase == "body" else 0
        if self.lines > LINES and any(name == b"transfer-encoding" for name, _ in self.headers):
            self.answer(Refused(400, "the body comes in too many chunks; send it whole, with its Content-Length"))
            self.end("chunks")
            return
        super().data_received(data)
        self.advance("head")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.advance("idle")

    def advance(self, between: str) -> None:
        """Enters the phase that the client's side of the protocol is in; `between` is that before a whole head."""
        if self.transport.is_closing():
            self.stall()  # an answer that is not read keeps it open
        self.enter({h11.IDLE: between, h11.SEND_BODY: "body"}.get(self.conn.their_state))

    def enter(self, phase: str | None) -> None:
        if phase == self.phase or self.transport.is_closing():
            return
        self.leave()
        self.phase = phase
        if phase is not None:
            self.room.waiting[self] = None
            self.timer = self.loop.call_later(SECONDS[phase], self.expire)

    def leave(self) -> None:
        """It no longer waits."""
        self.room.waiting.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()

    def expire(self) -> None:
        """The client has taken too long."""
        phase = str(self.phase)
        if phase != "idle":
            said = f"the {phase} of the request did not arrive within {SECONDS[phase]:g} s; send it at once"
            self.answer(Refused(408, said, code="request_timeout"))
        self.end(phase)

    def end(self, reason: str) -> None:
        """Closes it now; what it was asked for is dropped."""
        self.room.closed.labels(reason).inc()
        self.leave()
        self.connections.discard(self)
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()

    def answer(self, refusal: Refused) -> None:
        """Sends a refusal, if no answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        made = JSONResponse(refusal.body, refusal.status, refusal.headers | {"Connection": "close"})
        response = h11.Response(
            status_code=refusal.status, headers=made.raw_headers, reason=HTTPStatus(refusal.status).phrase
        )
        for event in (response, h11.Data(data=bytes(made.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")

    def send_400_response(self, msg: str) -> None:
        self.answer(Refused(400, f"this is no request of HTTP/1.1, or its head is longer than {HEAD} bytes; send another"))
        self.transport.close()

    def shutdown(self) -> None:
        """Closes it when it waits; otherwise after its answer."""
        if self not in self.room.waiting:
            super().shutdown()
            return
        if self.phase != "idle":
            self.answer(Refused(503, "the server is shutting down; ask again", code="shutting_down"))
        self.end("shutdown")

    def stall(self) -> None:
        """Closes it soon if the client does not read."""
        self.stalled = self.stalled or self.loop.call_later(STALLED, self.end, "stalled")

    def unstall(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
        self.stalled = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.unstall()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.leave()
        self.unstall()


def check_descriptors(connections: int) -> None:
    """Lifts the process's limit of open files if these connections need more. Raises: ParameterError if it cannot."""
    if os.name != "posix":
        return
    import resource

    needed = connections + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise ParameterError(
            f"{connections} connections need {needed} open files, but this process may have {hard}; "
            "give a smaller --queue, or raise the limit (ulimit -n)"
        )
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
