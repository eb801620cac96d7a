"""Checks a request before its body is read: the key, the Host header, and the size."""

import secrets
from collections.abc import Sequence

from fastapi.responses import JSONResponse
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .network.address import is_own
from .refusal import Refused, quoted

OPEN = "/health"
"""The path that needs no key."""
READ = 16
"""A body that is too large is read up to this many times its limit, so that the client receives the answer."""


class Guard:
    """An app that requires a key (None: a Host that names this server instead) and limits the body; answers are counted.
    Units: `most` bytes.

    DNS rebinding: a web page's own domain may resolve to this server's address, so that the browser lets the page read the
    answers. Host then holds that domain, and the request is refused.
    """

    def __init__(self, app: ASGIApp, key: str | None, most: int, count: Counter, hosts: Sequence[str] = ()) -> None:
        self.app, self.most, self.count, self.hosts = app, most, count, {"localhost", *map(str.lower, hosts)}
        self.key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.count.labels(message["status"]).inc()
            await send(message)

        refusal = self.refusal(scope["path"], scope["headers"])
        if refusal is None:
            await self.app(scope, self.counted(receive), counting)
            return
        left, more = READ * self.most, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, counting)

    def refusal(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> Refused | None:
        keys = [value for name, value in headers if name == b"authorization"]
        if self.key is not None and path != OPEN:
            said = "the API key is wrong or missing" if len(keys) < 2 else f"there are {len(keys)} Authorization headers"
            if len(keys) != 1 or not secrets.compare_digest(keys[0], self.key):
                return Refused(401, f"{said}; send one header Authorization: Bearer KEY", code="invalid_api_key")
        named = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if self.key is None and not (len(named) == 1 and is_own(named[0], self.hosts)):
            said = f"the Host of the request is {quoted(', '.join(named))}, which does not name this server"
            told = "use an IP address or localhost, or start the server with --known-host NAME or with a key"
            return Refused(400, f"{said}; {told}", code="unknown_host")
        length = dict(headers).get(b"content-length", b"0")
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
