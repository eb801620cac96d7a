"""Who asks, and for whom: a client's place in the queue, the names of this server, and a proxy in front of it."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ssmspec_fast.cli import serve
from ssmspec_fast.engine.scheduler import Scheduler
from ssmspec_fast.serve.network import connection
from ssmspec_fast.serve.network.address import client_of, is_own
from ssmspec_ref.errors import OptionError

from .serving import Ask, Running, closed, is_open, opened, sent, serving, until
from .test_slow_clients import HEAD

ASK = {"prompt": "x", "max_tokens": 2, "temperature": 0, "return_token_ids": True}


OWN = ("localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "10.1.2.3:1", "known", "Known:9")
FOREIGN = (
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", ":8000", "[::1", "::1]x",
    "known:", "127.0.0.1:x", "localhost:８０", "0x7f.1", "2130706433", "localhost, known", "known@evil.example",
)  # fmt: skip


@pytest.mark.parametrize("host", OWN)
def test_an_address_and_a_known_name_are_this_server(host: str) -> None:
    assert is_own(host, {"localhost", "known"})


@pytest.mark.parametrize("host", FOREIGN)
def test_another_name_is_not_this_server(host: str) -> None:
    """DNS rebinding: a page's own domain may resolve to this machine's address, but Host holds that domain."""
    assert not is_own(host, {"localhost", "known"})


def test_without_a_key_a_request_for_another_name_is_refused() -> None:
    with serving(hosts=("served.example",)) as running:
        own = ("localhost:80", "127.0.0.1", "[::1]", "SERVED.example:8000")
        assert {sent(running, "", "GET", "/v1/models", Host=host)[0] for host in own} == {200}
        for path in ("/v1/models", "/health", "/metrics", "/openapi.json", "/v1/models/"):
            status, _, found = sent(running, "", "GET", path, Host="evil.example")
            said = "the Host of the request is evil.example, which does not name this server; use an IP address or"
            assert (status, said in found["error"]["message"]) == (400, True)
        long = str(sent(running, "", "GET", "/v1/models", Host="e" * 5000))
        assert long.count("e" * 200) == 1
        assert "e" * 220 not in long


def test_with_a_key_any_name_will_do_and_no_answer_leads_to_it() -> None:
    with serving(key="k") as running:
        for path in ("/v1/models", "/v1/models/", "//v1/models"):
            status, *answer = sent(running, "", "GET", path, Host="evil.example", Authorization="")
            assert (status, "evil.example" in str(answer)) == (401, False)


def test_a_client_is_its_address_and_in_ipv6_its_network() -> None:
    assert client_of(("10.0.0.1", 5)) == "10.0.0.1" != client_of(("10.0.0.2", 5))
    assert client_of(("::ffff:10.0.0.1", 5)) == "10.0.0.1"
    assert client_of(("2001:db8::1", 5)) == client_of(("2001:db8::2:1", 5)) != client_of(("2001:db8:0:1::1", 5))
    assert client_of(("fe80::1%eth0", 5)) == "fe80::/64"
    assert client_of(None) == ""
    assert client_of(("no address", 0)) == "no address"


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engine takes no turn until the event is set."""
    go, real = threading.Event(), Scheduler.turn
    monkeypatch.setattr(Scheduler, "turn", lambda self: go.wait(60) and real(self))
    try:
        yield go
    finally:
        go.set()


def test_one_client_leaves_room_in_the_queue_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()
    with held_up(monkeypatch) as go, serving(1, queue=16, choices=8) as running, ExitStack() as stack:
        for _ in range(2):
            thread = threading.Thread(target=lambda: found.append(sent(running, ASK | {"n": 4})))
            thread.start()
            stack.callback(thread.join)
        assert until(lambda: len(running.service.worker.scheduler.waiting) == 8)
        status, _, refused = sent(running, ASK)
        assert status == 429
        told = "8 completions of this client are waiting, 1 more are too many; it may have 8; ask again later"
        assert told in refused["error"]["message"]
        other = threading.Thread(target=lambda: found.append(sent(running, ASK, own="127.0.0.2")))
        other.start()
        stack.callback(other.join)
        assert until(lambda: len(running.service.worker.scheduler.waiting) == 9)
        go.set()
    assert [status for status, *_ in found] == [200] * 3
    assert len(found[0][2]["choices"]) == 1  # the other client did not wait for the eight


def test_of_too_many_connections_those_of_the_client_with_the_most_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WAITING", 8)
    with serving() as running, ExitStack() as stack:
        mine = [stack.enter_context(opened(running, HEAD, "127.0.0.2")) for _ in range(2)]
        assert until(lambda: len(running.server.room.waiting) == 2)
        for _ in range(60):
            stack.enter_context(opened(running, HEAD))
        assert until(lambda: closed(running, "crowded") >= 54, 10)
        assert all(is_open(one) for one in mine)


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to `port` as a proxy does, and answers piece by piece."""

    protocol_version = "HTTP/1.1"
    port = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        before = self.headers.get("X-Forwarded-For")
        chain = f"{before}, {self.client_address[0]}" if before else self.client_address[0]
        given = {"Content-Type": self.headers["Content-Type"], "X-Forwarded-For": chain, "Host": "inner"}
        given |= {name: self.headers[name] for name in ("Authorization",) if name in self.headers}
        client.request("POST", self.path, body, given)
        answer = client.getresponse()
        self.send_response(answer.status)
        self.send_header("Connection", "close")
        self.end_headers()
        while piece := answer.read1():
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True
        client.close()

    def log_message(self, *given: Any) -> None: ...


@contextmanager
def proxied(running: Running) -> Iterator[int]:
    named = type("Named", (Proxy,), {"port": running.port})
    with ThreadingHTTPServer(("127.0.0.1", 0), named) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def clients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The clients of the requests that are queued from now on."""
    seen, real = list[str](), Scheduler.submit

    def submit(self: Scheduler, *given: Any, client: str = "", **more: Any) -> int:
        seen.append(client)
        return real(self, *given, client=client, **more)

    monkeypatch.setattr(Scheduler, "submit", submit)
    return seen


def test_behind_a_proxy_the_client_is_whom_the_proxy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot choose another name: the proxy's own entry is the last."""
    with serving(hosts=("inner",), proxies=("127.0.0.1",)) as running, proxied(running) as port:
        seen = clients(monkeypatch)
        for own, more in (("127.0.0.2", {}), ("127.0.0.3", {}), ("127.0.0.3", {"X_Forwarded_For": "127.0.0.2"})):
            status, _, answer = sent(running, ASK, port=port, own=own, **more)
            assert (status, tuple(answer["choices"][0]["token_ids"])) == (200, Ask("x", 2).alone()[0])
    assert seen == ["127.0.0.2", "127.0.0.3", "127.0.0.3"]


def test_with_nothing_in_front_the_client_is_who_connects_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as running:
        seen = clients(monkeypatch)
        assert sent(running, ASK, own="127.0.0.2", X_Forwarded_For="10.0.0.1")[0] == 200
    assert seen == ["127.0.0.2"]


def test_a_stream_passes_a_proxy_event_by_event() -> None:
    with serving(key="k", proxies=("127.0.0.1",)) as running, proxied(running) as port:
        body = ASK | {"stream": True}
        assert sent(running, body, port=port, Authorization="Bearer wrong")[0] == 401
        status, _, events = sent(running, body, port=port, Authorization="Bearer k")
    assert status == 200
    assert events.startswith("data: {")
    assert events.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("read", "right", "wrong", "said"),
    [
        (serve.hosts, ("served.example", "A-b_1"), ("", "served.example:80", "https://served.example", "a b", "a/b", "*"),
         r"give a name such as served\.example, without https:// and port"),
        (serve.addresses, ("10.0.0.0/8", "::1"), ("proxy.example", "*", "", "10.0.0.1/8"),
         r"give an address, or a network such as 10\.0\.0\.0/8"),
    ],
    ids=["a known host is a name alone", "a proxy is an address or a network"],
)  # fmt: skip
def test_what_names_no_host_is_refused(read: Any, right: tuple[str, ...], wrong: tuple[str, ...], said: str) -> None:
    assert read([*right]) == right
    for one in wrong:
        with pytest.raises(OptionError, match=said):
            read([one])
