"""Checks a request before its body is read: the key, and the size."""

import secrets

from fastapi.responses import JSONResponse
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .refusal import Refused

READ = 16
"""A body that is too large is read up to this many times its limit, so that the client receives the answer."""


class Guard:
    """An app that requires a key (None: no key) and limits the body; answers are counted. Units: `most` bytes."""

    def __init__(self, app: ASGIApp, key: str | None, most: int, count: Counter) -> None:
        self.app, self.most, self.count = app, most, count
        self.key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count.labels(message["status"]).inc()
            await send(message)

        headers = dict(scope["headers"])
        refusal = self.refusal(scope["path"], headers)
        if refusal is None:
            await self.app(scope, self.counted(receive), counting)
            return
        left, more = READ * self.most, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, counting)

    def refusal(self, path: str, headers: dict[bytes, bytes]) -> Refused | None:
        given, guarded = headers.get(b"authorization", b""), self.key is not None and path.startswith("/v1/")
        if guarded and not secrets.compare_digest(given, self.key or b""):
            return Refused(401, "the API key is wrong or missing; send Authorization: Bearer KEY", code="invalid_api_key")
        length = headers.get(b"content-length", b"0")
        return too_large(self.most) if length.isdigit() and int(length) > self.most else None

    def counted(self, receive: Receive) -> Receive:
        """Counts a body without a declared length, up to the limit."""
        seen = 0

        async def take() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, str(too_large(self.most)))
            return message

        return take


def too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most} bytes; send less, or raise --most-bytes")
