"""One HTTP request in progress: pieces come from the engine's thread; if the client disconnects, the request is cancelled."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from .answers import Answers, usage
from .choice import Choice, Piece
from .metrics import Metrics
from .refusal import Refused
from .worker import Worker

GONE = 499
"""The status of an answer whose client has disconnected."""


class Call:
    """The choices of one request of a client. `make` builds them, given the function that receives their pieces."""

    def __init__(
        self, worker: Worker, metrics: Metrics, client: str, make: Callable[[Callable[[Piece], None]], Sequence[Choice]]
    ) -> None:
        self.worker, self.metrics, self.client, self.began = worker, metrics, client, time.monotonic()
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[Piece]()
        self.make, self.open, self.numbers = make, 0, list[int]()
        self.seen = list[Piece]()

    def begin(self) -> None:
        """Hands the choices to the worker, from any thread. Raises: as `Worker.submit`."""
        choices = self.make(self.hear)
        self.open = len(choices)
        self.numbers = self.worker.submit(choices, self.client)

    def hear(self, piece: Piece) -> None:
        """Receives a piece, in the engine's thread."""
        with suppress(RuntimeError):  # the server's loop has ended
            self.loop.call_soon_threadsafe(self.queue.put_nowait, piece)

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces as they arrive, until every choice has ended. Raises: Refused for the first choice that failed."""
        while self.open:
            piece = await self.queue.get()
            if piece.fault is not None:
                raise piece.fault
            if piece.tokens and not self.seen:
                self.metrics.first.observe(time.monotonic() - self.began)
            self.seen.append(piece)
            self.open -= piece.last
            yield piece

    def close(self) -> None:
        """Cancels what has not ended, and counts the tokens produced."""
        if self.open:
            for number in self.numbers:
                self.worker.cancel(number)
        self.metrics.whole.observe(time.monotonic() - self.began)
        for piece in self.seen:
            self.metrics.completion.inc(len(piece.tokens))
            self.metrics.drafted.inc(piece.drafted)
            self.metrics.accepted.inc(piece.accepted)

    async def answer(self, request: Request, answers: Answers) -> Response:
        """The whole answer. Raises: Refused."""

        async def collected() -> list[Piece]:
            return [piece async for piece in self.pieces()]

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        work, left = asyncio.ensure_future(collected()), asyncio.ensure_future(gone())
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=GONE)
            pieces = work.result()
            return await to_thread.run_sync(lambda: JSONResponse(answers.whole(pieces)))
        finally:
            work.cancel()
            left.cancel()
            self.close()


class Events(StreamingResponse):
    """The answer as server-sent events: one for each window, the usage if requested, then [DONE]."""

    def __init__(self, call: Call, answers: Answers) -> None:
        self.call, self.answers = call, answers
        super().__init__(self.lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.call.close()

    async def lines(self) -> AsyncIterator[str]:
        try:
            async for piece in self.call.pieces():
                yield line(self.answers.event(piece))
            if self.answers.asked.stream_options.include_usage:
                yield line(self.answers.event(usage=usage(self.answers.prompts, self.call.seen)))
        except Refused as fault:
            yield line(fault.body)
        yield "data: [DONE]\n\n"


def line(data: Any) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
