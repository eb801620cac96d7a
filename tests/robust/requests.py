"""Hostile requests, each of which is to be refused: the bytes that are sent, by name.

    python -m tests.robust.requests PORT SECONDS

sends them all, one after the other, again and again. `corpus(seed)` draws other values of the same kinds.
"""

import json
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

PLAIN: dict[str, Any] = {"prompt": "x", "max_tokens": 2, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
NUMBERS = (
    "n",
    "max_tokens",
    "logprobs",
    "min_tokens",
    "top_k",
    "temperature",
    "top_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "drafts",
)
SWITCHES = ("stream", "ignore_eos", "return_token_ids", "return_tokens_as_token_ids")
UNSUPPORTED: dict[str, Any] = {
    "echo": True,
    "best_of": 2,
    "suffix": "x",
    "logit_bias": {"1": 5},
    "min_p": 0.5,
    "tools": [{}],
    "tool_choice": "auto",
    "functions": [{}],
    "response_format": {"type": "json_object"},
    "speculation": {},
    "skip_special_tokens": True,
}
PATHS = (
    "/",
    "/v1",
    "/v1/",
    "/v1/completions/",
    "//v1/completions",
    "/v1//completions",
    "/v1/../v1/completions",
    "/v1/%2e%2e/health",
    "/V1/completions",
    "/v1/completions%00",
    "/v1/completions%0d%0aX:y",
    "/v1/engines",
    "/v1/models/../../etc/passwd",
    "/v1/models/%2fetc%2fpasswd",
    "/docs",
    "/redoc",
    "/.git/config",
    "/v1/completions;x",
    "/" + "a" * 8000,
    "/%ff%fe",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/generate",
    "/metrics/",
    "/openapi.json/",
    "/health/x",
    "/%",
    "/{name}",
)


def deep(levels: int, inside: str = "1") -> str:
    return "[" * levels + inside + "]" * levels


def wrong_numbers(rng: random.Random) -> list[Any]:
    huge = rng.randrange(2**130, 2**200)
    return [
        "5",
        True,
        [],
        {},
        [rng.random()],
        {"a": 1},
        huge,
        -huge,
        "x" * rng.randrange(600, 60_000),
        [[1]] * rng.randrange(600, 9000),
    ]


def fields(rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Bodies of completions with one wrong field."""
    for name in NUMBERS:
        for n, value in enumerate(wrong_numbers(rng)):
            yield f"{name} {n}", PLAIN | {name: value}
    for name in SWITCHES:
        for n, value in enumerate(("true", 1, 0.5, [], {"a": True})):
            yield f"{name} {n}", PLAIN | {name: value}
    for name, value in UNSUPPORTED.items():
        yield f"unsupported {name}", PLAIN | {name: value}
    for n in range(8):
        yield f"unknown {n}", PLAIN | {rng.choice("abc") * rng.randrange(1, 700) + str(n): 1}
    yield "many fields", PLAIN | {f"k{n}": 1 for n in range(rng.randrange(65, 60_000))}
    yield "negative n", PLAIN | {"n": -rng.randrange(1, 99)}
    yield "many choices", PLAIN | {"n": rng.randrange(17, 2**31)}
    yield "no temperature", PLAIN | {"temperature": -rng.random() - 0.01}
    yield "no top_p", PLAIN | {"top_p": 0}
    yield "drafts", PLAIN | {"drafts": rng.randrange(99, 2**31)}
    yield "drafter", PLAIN | {"drafter": "../" * rng.randrange(1, 99)}
    yield "model", PLAIN | {"model": "m" * rng.randrange(1, 500)}
    yield "seed", PLAIN | {"seed": -rng.randrange(1, 2**60)}
    yield "penalty", PLAIN | {"presence_penalty": rng.choice((-1, 1)) * 10 ** rng.randrange(3, 300)}
    yield "no token left", PLAIN | {"min_tokens": 1, "stop_token_ids": [*range(768)]}
    yield "foreign option", PLAIN | {"stream_options": {"include_usage": True, "x": 1}}


def prompts(rng: random.Random) -> Iterator[tuple[str, Any]]:
    long = rng.randrange(200_000, 240_000)
    for name, prompt in {
        "objects": [{}] * long,
        "lists": [[1]] * (long // 2),
        "texts": ["a"] * (long // 2),
        "empty": "",
        "none": [],
        "number": 5,
        "letters": "a b " * long,
        "tokens": [1] * (long // 2),
        "token too large": [1, 10**6],
        "negative token": [-1],
        "mixed": ["a", 1],
        "empty list": [[]],
        "floats": [0.5],
        "switches": [True],
        "deep": [[[[1]]]],
        "object": {"a": 1},
        "surrogate": "\ud800",
        "list of a surrogate": ["x", "\udfff"],
        "null in a list": [None],
        "letter": "a" * 5000,
        "wide letters": "\U0001f600" * 50_000,
        "zeros": "\0" * 200_000,
        "marks": "\u0301" * 100_000,
        "lines": "\n" * 300_000,
    }.items():
        yield f"prompt: {name}", PLAIN | {"prompt": prompt}
    for name, change in {
        "long": "a" * 100_000,
        "many": [f"a{n}" for n in range(80_000)],
        "empty": "",
        "one empty": ["a", ""],
        "number": 5,
        "numbers": [1],
        "deep": [["a"]],
        "seventeen": ["a"] * 17,
        "a long one": ["a" * 257],
        "null": [None],
    }.items():
        yield f"stop: {name}", PLAIN | {"stop": change}
    for name, ends in {
        "many": [1] * 300_000,
        "text": ["1"],
        "huge": [2**70],
        "negative": [-5],
        "deep": [[1]],
        "one": 1,
    }.items():
        yield f"stop tokens: {name}", PLAIN | {"stop_token_ids": ends}


def chats(rng: random.Random) -> Iterator[tuple[str, Any]]:
    user = {"role": "user", "content": "x"}
    for name, change in {
        "none": [],
        "text": "x",
        "number": 5,
        "objects": [{}] * 200_000,
        "no role": [{"content": "x"}],
        "no content": [{"role": "user"}],
        "list role": [user | {"role": ["user"]}],
        "deep": [user | {"content": [[[[[[[["x"]]]]]]]]}],
        "image": [user | {"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
        "tools": [user | {"tool_calls": [{}]}],
        "many parts": [user | {"content": [{"type": "text", "text": "x"}] * 100_000}],
        "template": [user | {"content": "{{ ''.__class__ }}" * 9000}],
        "long name": [user | {"name": "n" * 100_000}],
        "surrogate": [user | {"content": "\ud800"}],
        "number content": [user | {"content": 5}],
        "null": [None],
        "a text that is none": [user | {"content": [{"type": "text"}]}],
        "long": [user | {"content": "a b " * 200_000}],
    }.items():
        yield f"chat: {name}", CHAT | {"messages": change}


def bodies(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Bodies that are no object, or no JSON."""
    count = rng.randrange(90_000, 200_000)
    for n, text in enumerate(
        (
            "",
            " ",
            "null",
            "true",
            "5",
            '"x"',
            "[]",
            "[{}]",
            "{",
            "}",
            '{"prompt"',
            '{"prompt": "x",}',
            "{'prompt': 'x'}",
            '{"prompt": NaN}',
            '{"prompt": Infinity}',
            '{"prompt": "x", "temperature": NaN}',
            '{"temperature": 1e999, "prompt": "x"}',
            '{"prompt": "\\x"}',
            '{"prompt": "' + "a" * 100,
            "\ufeff{}",
            "{}",
            deep(count),
            deep(count, ""),
            "[" * count,
            '{"a":' * count,
            '{"prompt": ' + deep(9) + "}",
            '{"seed": ' + "9" * 5000 + ', "prompt": "x"}',
            '{"prompt": "x", "prompt": 5}',
            "x" * count,
            "\0" * 99,
            "--x\r\nContent-Disposition: form-data\r\n\r\n",
            "prompt=x",
            "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
        )
    ):
        yield f"body {n}", text.encode()
    yield "no UTF-8", b'{"prompt": "\xff\xfe"}'
    yield "UTF-16", '{"prompt": 5}'.encode("utf-16")
    yield "too large", b'{"prompt": "' + b"a" * (1 << 20) + b'"}'


def sent(body: bytes, path: str = "/v1/completions", *more: str, method: str = "POST", host: str = "localhost") -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *more,
    ]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


def heads(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Requests that are none, or ask for something else."""
    body = json.dumps(PLAIN).encode()
    for path in PATHS:
        yield f"path {path[:30]}", sent(body, path)
    for method in ("GET", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "OPTIONS", "PROPFIND", "x" * 200):
        yield f"method {method[:10]}", sent(body, method=method)
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "",
        "x" * 9000,
        "text/json",
    ):
        yield f"type {kind[:12]}", sent(body).replace(b"application/json", kind.encode())
    for host in ("evil.example", "localhost.evil.example", "localhost@evil.example", "", "[::1", "localhost, x", "a" * 9000):
        yield f"host {host[:20]}", sent(body, host=host)
    line = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    yield from {
        "no request": b"no request\r\n\r\n",
        "zeros": bytes(999),
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(99),
        "version": b"POST /v1/completions HTTP/9.9\r\n\r\n",
        "old": b"POST /v1/completions\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "long head": line + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
        "many headers": line + b"".join(b"X%d: y\r\n" % n for n in range(2000)) + b"\r\n",
        "two hosts": line + b"Host: evil.example\r\nContent-Length: 2\r\n\r\n{}",
        "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
        "two lengths": line + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "length of text": line + b"Content-Length: x\r\n\r\n",
        "negative length": line + b"Content-Length: -1\r\n\r\n",
        "huge length": line + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
        "length and chunks": line + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "two encodings": line + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "a chunk of text": line + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "folded": line + b"X: a\r\n b: c\r\n\r\n",
        "huge chunk": line + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n",
        "bytes of chunks": line + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 30_000,
        "space before the colon": line + b"X : y\r\n\r\n",
        "no name": line + b": y\r\n\r\n",
        "zero in a header": line + b"X: a\0b\r\n\r\n",
        "absolute": b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "a smuggled one": line + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    }.items()


def corpus(seed: int = 0) -> dict[str, bytes]:
    """Every request, by its name."""
    rng = random.Random(seed)
    found = {name: sent(json.dumps(body).encode()) for part in (fields, prompts) for name, body in part(rng)}
    found |= {name: sent(json.dumps(body).encode(), "/v1/chat/completions") for name, body in chats(rng)}
    found |= {name: sent(body) for name, body in bodies(rng)}
    return found | dict(heads(rng))


def answer(port: int, raw: bytes, timeout: float = 30) -> bytes:
    """What the server sends until it closes the connection, or a whole answer; nothing if it resets it."""
    found = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=timeout) as client:
        with suppress(OSError):
            client.sendall(raw)
        while part := client.recv(1 << 16):
            found += part
            head, _, body = found.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
            if length.isdigit() and len(body) >= int(length):
                break
    return found


def main(port: int, seconds: float) -> None:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for raw in corpus(count).values():
            answer(port, raw)
            if time.monotonic() > end:
                break
        count += 1


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
