"""llama.cpp as an engine: llama-server, started once for each configuration, asked over HTTP with token ids.

python with_llama.py [HOME] [--slots-by-id]        HOME: what `build_llama` made; else `llama` in this Python's environment

With `--slots-by-id` requests that run together say which slot they want (`id_slot`), so that some wait for a busy one.

Checkpoints are converted to GGUF in float32 and kept, by the hash of their files, in the folder for temporary files. A
request that others join, or that is cancelled, is streamed: it is cancelled by closing its connection. The server sees that
late, so that the next round waits until no slot is busy.
"""

import atexit
import contextlib
import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lines import Refuse, serve

BY_ID = "--slots-by-id"
GIVEN = [word for word in sys.argv[1:] if word != BY_ID]
HOME = Path(GIVEN[0] if GIVEN else Path(sys.prefix) / "llama").resolve()
LENGTH = 512
"""Tokens of one slot."""
MORE = 128
"""Tokens added to the budget of a request that will be cancelled, so that it still runs then."""
LONGEST = 70
"""Characters of a folder in which a socket may lie: its whole address may have 107."""
STARTING = 240.0
LOOK = 0.002
"""Seconds between two looks at what cannot be waited for otherwise."""


class Line(http.client.HTTPConnection):
    """A connection to a server that listens on a path."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class EngineAdapter:
    """One running server."""

    process: Any = None

    def __init__(self) -> None:
        long = len(tempfile.gettempdir()) > LONGEST
        self.folder = tempfile.TemporaryDirectory(prefix="llama-", dir="/tmp" if long else None)
        self.address = str(Path(self.folder.name) / "server.sock")
        self.log = Path(self.folder.name) / "log"
        atexit.register(self.close)

    def start(self, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        self.close()
        if options["dtype"] != "float32":
            raise Refuse("the adapter converts to float32 and computes in it; ask for float32")
        if not (HOME / "llama-server").is_file():
            raise Refuse(f"{HOME} holds no llama-server; build_llama.py makes one")
        self.options = options
        words = [str(HOME / "llama-server"), "--host", self.address, "--model", str(converted(Path(folder)))]
        words += self.words(options)
        with contextlib.suppress(OSError):
            os.unlink(self.address)
        own = os.environ | {"GGML_NO_BACKTRACE": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
        until = time.monotonic() + STARTING
        while self.health() != 200:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"llama-server did not start: {self.last()}")
            time.sleep(LOOK)
        can = ["batch", "join", "cancel", "stop", "sample", "seed", "logprobs"]
        return {"name": "llama.cpp", "version": version(), "dtype": "float32", "can": can, "rereads": True}

    def words(self, options: dict[str, Any]) -> list[str]:
        """The server's options of a configuration."""
        slots, drafts = options["slots"], options["drafts"]
        words = ["-np", slots, "-c", slots * LENGTH, "-t", 1, "-tb", 1, "--slots", "--no-warmup", "-fa", "off"]
        words += ["-ctk", "f32", "-ctv", "f32"]
        if options.get("chunk"):
            words += ["-ub", options["chunk"], "-b", max(options["chunk"], slots * (drafts + 1))]
        if not options.get("cache"):
            words += ["--cache-ram", 0]
        if options.get("speculation") == "ngram":
            words += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 1, "--spec-ngram-simple-size-m", drafts]
        elif options.get("speculation"):
            words += ["--spec-type", "draft-simple", "-md", converted(Path(options["drafter"])), "--spec-draft-n-max", drafts]
            words += ["-ctkd", "f32", "-ctvd", "f32", "-td", 1]
        return [str(word) for word in words]

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        running = Running(len(requests))
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda n: self.one(n, requests, running), range(len(requests))))
        self.settled()
        return answers

    def one(self, n: int, requests: list[dict[str, Any]], running: "Running") -> dict[str, Any]:
        try:
            running.wait(n, requests[n].get("after", 0))
            return self.asked(n, requests, running)
        except (OSError, http.client.HTTPException) as error:
            self.gone(error)
        finally:
            running.end(n)

    def asked(self, n: int, requests: list[dict[str, Any]], running: "Running") -> dict[str, Any]:
        request = requests[n]
        cancel = request.get("cancel")
        joined = any(other.get("after") for other in requests[n + 1 :])
        body: dict[str, Any] = {
            "prompt": request["ids"], "n_predict": request["most"] + MORE * bool(cancel), "stream": bool(cancel or joined),
            "temperature": request.get("temperature", 0), "seed": request.get("seed", 0), "samplers": ["temperature"],
            "return_tokens": True, "n_probs": 1, "post_sampling_probs": False,
            "cache_prompt": bool(self.options.get("cache")), "stop": [f"<{token}>" for token in request.get("stop", ())],
        }  # fmt: skip
        if len(requests) > 1 and BY_ID in sys.argv:
            body["id_slot"] = n % self.options["slots"]
        with contextlib.closing(Line(self.address)) as line:
            line.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            answer = line.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"/completion answered {answer.status}: {answer.read(500).decode(errors='replace')}")
            if not body["stream"]:
                said = json.loads(answer.read())
                return finished(said, said["tokens"], said.get("completion_probabilities") or [])
            return self.streamed(answer, n, request, running)

    def streamed(self, answer: Any, n: int, request: dict[str, Any], running: "Running") -> dict[str, Any]:
        """Read events until the last one, or until the request is to be cancelled."""
        ids: list[int] = []
        probs: list[Any] = []
        for raw in answer:
            if not raw.startswith(b"data: "):
                continue
            said = json.loads(raw[6:])
            if "error" in said:
                raise RuntimeError(f"/completion: {json.dumps(said['error'])[:500]}")
            if said["stop"]:
                return finished(said, ids, probs)
            for token in said["tokens"]:
                ids.append(token)
                probs += (said.get("completion_probabilities") or [{}])[:1]
                running.step(n, len(ids))
                if len(ids) == request.get("cancel"):
                    ended = "stop" if token in request.get("stop", ()) else "cancelled"
                    return {"ids": ids, "logprobs": [one.get("logprob") for one in probs], "finish": ended}
        raise http.client.HTTPException("the stream ended without its last event")

    def settled(self) -> None:
        """Wait until no slot is busy."""
        try:
            while any(slot["is_processing"] for slot in self.get("/slots")):
                time.sleep(LOOK)
        except (OSError, http.client.HTTPException) as error:
            self.gone(error)

    def get(self, path: str) -> Any:
        with contextlib.closing(Line(self.address)) as line:
            line.request("GET", path)
            answer = line.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{path} answered {answer.status}")
            return json.loads(answer.read())

    def health(self) -> int:
        """The status of /health, or 0 where nobody answers yet."""
        try:
            with contextlib.closing(Line(self.address)) as line:
                line.request("GET", "/health")
                return line.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0

    def gone(self, error: Exception) -> Any:
        """The connection broke. Ends the adapter where the server has ended, with its last words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        if self.process.poll() is None:
            raise RuntimeError(f"llama-server runs but no longer answers: {error}") from error
        code = self.process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        os.write(2, f"llama-server {how}: {self.last()}\n".encode())
        os._exit(70)

    def last(self) -> str:
        """The last line of the server's log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process = None


class Running:
    """The requests of a round: how many tokens each has, and which have ended."""

    def __init__(self, count: int) -> None:
        self.tokens, self.over, self.changed = [0] * count, [False] * count, threading.Condition()

    def wait(self, n: int, after: int) -> None:
        """Until an earlier request has this many tokens, or all earlier ones have ended."""
        with self.changed:
            self.changed.wait_for(lambda: all(self.over[:n]) or max(self.tokens[:n], default=after) >= after)

    def step(self, n: int, tokens: int) -> None:
        with self.changed:
            self.tokens[n] = tokens
            self.changed.notify_all()

    def end(self, n: int) -> None:
        with self.changed:
            self.over[n] = True
            self.changed.notify_all()


def finished(said: dict[str, Any], ids: list[int], probs: list[Any]) -> dict[str, Any]:
    """An answer from the last event; the server leaves out the log-probability of a stop token."""
    timings = said.get("timings") or {}
    logprobs = [one.get("logprob") for one in probs][: len(ids)]
    return {
        "ids": ids, "logprobs": logprobs + [None] * (len(ids) - len(logprobs)),
        "finish": "stop" if said["stop_type"] == "word" else "length", "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0), "cached": timings.get("cache_n", 0),
    }  # fmt: skip


def version() -> str:
    """Of the distribution that the server was built from."""
    made = HOME / "made"
    return " ".join(made.read_text().split()[:2]) if made.is_file() else "?"


def converted(folder: Path) -> Path:
    """The checkpoint as GGUF. Raises: Refuse if the converter fails."""
    hashed = hashlib.sha256(f"{version()} {HOME}".encode())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        hashed.update(path.name.encode() + path.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"ssmspec-gguf-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    file = kept / f"{hashed.hexdigest()[:32]}.gguf"
    if not file.is_file():
        made = file.with_name(f"{os.getpid()}-{file.name}")
        words = [sys.executable, str(HOME / "convert.py"), str(folder), str(made)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
            raise Refuse(f"llama.cpp cannot convert this checkpoint: {lines[-1]}")
        made.rename(file)
    return file


if __name__ == "__main__":
    serve(EngineAdapter())
