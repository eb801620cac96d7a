"""Who may use a server: without a key only this machine, unless that is said; with one only who sends it."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import Result

from ssmspec_fast.cli import serve
from ssmspec_fast.cli.refusal import REFUSED
from ssmspec_fast.serve.guard import Guard
from ssmspec_fast.serve.network.address import bound, is_loopback

from ..commands import called as invoked
from .serving import KEY, Running, opened, rest, sent, serving

NAMES = {"here": "127.0.0.1", "there": "0.0.0.0", "maps": "::ffff:127.0.0.1", "maps-there": "::ffff:0.0.0.0"}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolved(host: str, *given: Any, **named: Any) -> Any:
        return real(NAMES.get(host, host), *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the command would serve; it loads nothing."""
    found = list[str]()

    def run(self: Any, sockets: Any) -> None:
        found.append(sockets[0].getsockname()[0])
        sockets[0].close()

    made = type("Served", (), {"run": run})
    monkeypatch.setattr(serve, "_server", lambda *given: made())
    return found


def called(*words: str, key: str | None = None) -> Result:
    return invoked(serve.app, "--checkpoint", "x", "--port", "0", *words, **{serve.KEY: key})  # type: ignore[arg-type]


LOOPBACK = ("127.0.0.1", "localhost", "127.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "here", "maps", "2130706433")
OTHERS = ("0.0.0.0", "0", "::", "::ffff:0.0.0.0", "there", "maps-there")


def can(host: str) -> bool:
    try:
        bound(host, 0).close()
    except Exception:
        return False
    return True


@pytest.fixture
def host(request: pytest.FixtureRequest) -> str:
    if not can(request.param):
        pytest.skip("this machine has no such address")
    return str(request.param)


@pytest.mark.parametrize("host", LOOPBACK, indirect=True)
def test_this_machine_needs_no_key(host: str, addresses: list[str]) -> None:
    found = called("--host", host)
    assert (found.exit_code, found.stderr, len(addresses)) == (0, "", 1)


@pytest.mark.parametrize("host", OTHERS, indirect=True)
def test_an_address_that_others_reach_needs_a_key_or_a_word(host: str, addresses: list[str]) -> None:
    found = called("--host", host)
    assert (found.exit_code, addresses) == (REFUSED, [])
    assert found.stderr == (
        f"OptionError: --host {host} is reached from other machines, and there is no key; set SSMSPEC_API_KEY, or give "
        "--no-key, with which whoever reaches it may use this server\n"
    )
    for words, key in ((["--no-key"], None), (["--api-key", "k"], None), ([], "k")):
        found = called("--host", host, *words, key=key)
        assert (found.exit_code, found.stderr) == (0, "")
    assert len(addresses) == 3


def test_most_spellings_can_be_tried_here() -> None:
    assert sum(map(can, (*LOOPBACK, *OTHERS))) >= 9


@pytest.mark.parametrize("host", ["", "h" * 300, "no.such.host.invalid", "1.2.3.4", "a..b"])
def test_an_address_that_is_none_is_refused_in_a_line(host: str, addresses: list[str]) -> None:
    found = called("--host", host, "--no-key")
    if host or found.exit_code:
        assert found.exit_code == REFUSED
        assert found.stderr.startswith(f"ParameterError: cannot listen at {host[:100]} port 0: ")
        assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["", " ", "\t\n ", "\u3000"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_key_that_was_not_filled_in_is_refused(key: str, host: str, addresses: list[str]) -> None:
    """click takes an empty variable for one that is not set."""
    for found in (called("--host", host, key=key), called("--host", host, "--api-key", key)):
        assert (found.exit_code, addresses) == (REFUSED, [])
        assert "OptionError: the API key is empty (" in found.stderr
    assert called("--host", host, "--no-key", key=key).exit_code == REFUSED


@pytest.mark.parametrize("key", ["k\n", " k", "k\0k", "schl\u00fcssel", "k\tk"])
def test_a_key_that_no_client_can_send_is_refused(key: str, addresses: list[str]) -> None:
    found = called("--api-key", key)
    assert found.exit_code == REFUSED
    assert "begins or ends with a space, or holds what no header can" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_key_and_none_are_not_both_meant(addresses: list[str]) -> None:
    for found in (called("--no-key", "--api-key", "k"), called("--no-key", key="k")):
        assert found.exit_code == REFUSED
        assert "and --no-key; give one of them" in found.stderr


def test_the_option_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serve.KEY, "of the variable")
    assert serve.key_of("of the option", False) == "of the option"
    assert serve.key_of(None, False) == "of the variable"
    monkeypatch.delenv(serve.KEY)
    assert serve.key_of(None, False) is None


def test_a_planted_rule_that_sees_only_one_spelling_is_caught() -> None:
    wrong = 0
    for host in (host for host in (*LOOPBACK, *OTHERS) if can(host)):
        with bound(host, 0) as listening:
            assert is_loopback(listening) == (host in LOOPBACK)
            wrong += (listening.getsockname()[0] == "127.0.0.1") != (host in LOOPBACK)
    assert wrong


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(key=KEY) as found:
        yield found


def status(running: Running, path: str, *keys: str, method: str = "GET") -> int:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *(f"Authorization: {key}" for key in keys)]
    with opened(running, "\r\n".join([*lines, "", ""]).encode()) as client:
        return int(rest(client).split()[1])


RIGHT = f"Bearer {KEY}"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/openapi.json", "/", "/nowhere", "//health", "/health/", "/v1/completions"]
)
def test_every_path_but_one_needs_the_key(running: Running, path: str) -> None:
    wrong = (
        (),
        *((key,) for key in (KEY, f"bearer {KEY}", "", "Bearer", "Bearer ", "Bearer wrong", "Bearer a", f"{RIGHT}s")),
    )
    assert {status(running, path, *keys) for keys in wrong} == {401}
    assert status(running, path, RIGHT) != 401
    assert status(running, "/health") == 200
    assert sent(running, "", "GET", path, Authorization="Bearer wrong")[2]["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("keys", [(RIGHT, RIGHT), (RIGHT, "Bearer wrong"), ("Bearer wrong", RIGHT), ("", RIGHT)])
def test_of_two_keys_none_counts(running: Running, keys: tuple[str, ...]) -> None:
    assert status(running, "/v1/models", *keys) == 401
    assert status(running, "/v1/models", RIGHT) == 200


REFUSAL = Guard.refusal


@pytest.mark.parametrize(
    ("guard", "keys"),
    [
        (lambda self, path, headers: REFUSAL(self, path, list(dict(headers).items())), ("Bearer wrong", RIGHT)),
        (lambda self, path, headers: None, ("Bearer wrong",)),
    ],
    ids=["takes the last key", "asks for nothing"],
)
def test_a_planted_guard_is_caught(guard: Any, keys: Any, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "refusal", guard)
    assert status(running, "/v1/models", *keys) == 200


def test_without_a_key_every_path_is_open_and_the_bodies_are_described() -> None:
    with serving(2) as open_to_all:
        assert [status(open_to_all, path) for path in ("/metrics", "/openapi.json", "/health")] == [200] * 3
        described = sent(open_to_all, "", "GET", "/openapi.json")[2]
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    forms = described["components"]["schemas"]
    assert body == {"$ref": "#/components/schemas/Chat"}
    assert forms["Chat"]["properties"]["messages"]["items"] == {"$ref": "#/components/schemas/Message"}
    assert {"Completion", "Message", "StreamOptions"} <= set(forms)
