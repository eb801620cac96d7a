"""A small llama-server over the float64 reference: its options, its HTTP form, its slots, and faults to plant.

`home` makes the folder that the adapter of llama.cpp starts it from. As in the real one, a closed connection is seen late:
here the slot stays busy until somebody has looked at the slots some times, or waits for this one.
"""

import argparse
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import numpy as np

from conformance.engines.checkpoint import read
from conformance.engines.diagnosis import models
from conformance.engines.oracle import Oracle

ROOT = Path(__file__).parents[3]
LOOKS = 3
"""How often somebody looks at the slots before a closed connection is seen."""
SERVER = """#!{python}
import sys
sys.path[:0] = [{root!r}]
from tests.conformance.engines.fake_llama import main
main()
"""
CONVERT = "import sys\nfrom pathlib import Path\nPath(sys.argv[2]).write_text(sys.argv[1])\n"
OPTIONS = (
    "--host", "--model", "-np", "-c", "-t", "-tb", "-td", "-fa", "-ctk", "-ctv", "-ctkd", "-ctvd", "-ub", "-b", "--cache-ram",
    "--spec-type", "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m", "-md", "--spec-draft-n-max",
)  # fmt: skip


def home(folder: Path, fault: str = "") -> Path:
    """A folder as `build_llama` makes it, with this server in it."""
    folder.mkdir()
    (folder / "llama-server").write_text(SERVER.format(python=sys.executable, root=str(ROOT)))
    (folder / "llama-server").chmod(0o755)
    (folder / "convert.py").write_text(CONVERT)
    (folder / "fault").write_text(fault)
    return folder


class Slot:
    """The tokens of the last request, and the states after each number of them."""

    def __init__(self) -> None:
        self.busy, self.orphan = False, False
        self.looks = self.waiting = 0
        self.tokens, self.states = list[int](), list[Any]()


class Model:
    """The reference, and the server's slots."""

    def __init__(self, given: Any, fault: str) -> None:
        self.given, self.fault = given, fault
        weights = read(Path(Path(given.model).read_text()))
        if fault == "another model":
            weights = next(other for name, other in models(weights) if name == "rotary positions of 1 of a head")
        self.oracle = Oracle(weights)
        self.drafter = None if given.md is None else Oracle(read(Path(Path(given.md).read_text())))
        self.slots = [Slot() for _ in range(int(given.np))]
        self.free = threading.Condition()
        self.work = threading.Lock()

    def taken(self, body: dict[str, Any]) -> Slot:
        """A free slot: the one that was asked for, or that with the longest common prefix."""
        asked = body.get("id_slot", -1)
        with self.free:
            some = self.slots if asked < 0 else [self.slots[asked % len(self.slots)]]
            for slot in some:
                slot.waiting += 1
            self.free.notify_all()
            self.free.wait_for(lambda: any(not slot.busy for slot in some))
            for slot in some:
                slot.waiting -= 1
            found = max((slot for slot in some if not slot.busy), key=lambda slot: common(slot.tokens, body["prompt"]))
            found.busy = True
            return found

    def looked(self) -> list[bool]:
        """Which slots are busy."""
        with self.free:
            for slot in self.slots:
                slot.looks += slot.orphan
            self.free.notify_all()
            return [slot.busy for slot in self.slots]

    def released(self, slot: Slot) -> None:
        with self.free:
            self.free.wait_for(lambda: not slot.orphan or slot.looks >= LOOKS or slot.waiting)
            slot.busy = slot.orphan = False
            slot.looks = 0
            self.free.notify_all()

    def read(self, slot: Slot, tokens: list[int]) -> Any:
        """Read tokens behind those of a slot. The logits after each."""
        with self.work:
            forward = self.oracle.forward(tokens, slot.states[-1] if slot.states else None, len(slot.tokens))
            for n in range(1, len(tokens) + 1):
                slot.states.append(self.after(forward, slot, n))
        slot.tokens += tokens
        return forward.logits

    def after(self, forward: Any, slot: Slot, n: int) -> Any:
        """The states after n tokens of a forward pass; a cache also holds those before it."""
        found = []
        for trace, state in zip(forward.traces, self.oracle.states(forward, n), strict=True):
            before = len(slot.tokens)
            found.append(state if trace.cache is None else trace.at(before + n))
        return found

    def begin(self, slot: Slot, body: dict[str, Any]) -> tuple[Any, int]:
        """Read a prompt, behind what the slot holds of it. The logits after it; how many tokens were there."""
        prompt = body["prompt"]
        past = min(common(slot.tokens, prompt), len(prompt) - 1) if body["cache_prompt"] else 0
        late = self.fault == "a checkpoint one token late" and 0 < past < len(slot.tokens)
        last = slot.states[past] if late else None
        slot.tokens, slot.states = slot.tokens[:past], slot.states[:past]
        if late:
            slot.states[-1] = last
        return self.read(slot, prompt[past:])[-1], past

    def drafts(self, slot: Slot, token: int, most: int) -> list[int]:
        text = [*slot.tokens, token]
        kind = self.given.spec_type
        if kind == "ngram-simple":
            m = int(self.given.spec_ngram_simple_size_m)
            at = next((n for n in range(len(text) - 2, 0, -1) if text[n] == token), None)
            return [] if at is None or self.fault == "never drafts" else text[at + 1 : at + 1 + m][:most]
        found = list[int]()
        if self.drafter is not None:
            with self.work:
                for _ in range(min(most, int(self.given.spec_draft_n_max))):
                    found.append(int(self.drafter.forward((*text, *found)).logits[-1].argmax()))
        return found

    def tokens(self, slot: Slot, body: dict[str, Any], counts: dict[str, int]) -> Any:
        """Token and log-probability, one after another; all of a window before the next."""
        rng = np.random.default_rng(body["seed"])
        logits, counts["cache_n"] = self.begin(slot, body)
        left = body["n_predict"]
        waiting = [self.drawn(logits, body, rng)]
        yield waiting[0]
        left -= 1
        while left > 0:
            token = waiting[-1][0]
            drafts = self.drafts(slot, token, left - 1)
            if drafts and self.fault == "aborts":
                os.write(2, b"failed to remove sequence 1 with p0=2, p1=-1\n")
                os.abort()
            rows = self.read(slot, [token, *drafts])
            waiting = list[Any]()
            for n, row in enumerate(rows):
                waiting.append(self.drawn(row, body, rng))
                if n == len(drafts) or waiting[-1][0] != drafts[n]:
                    break
            counts["draft_n"] += len(drafts)
            counts["draft_n_accepted"] += len(waiting) - 1
            end = len(slot.tokens) - len(drafts) + len(waiting) - 1
            kept = slot.states[-1] if self.fault == "rejected drafts stay" else slot.states[end - 1]
            slot.tokens, slot.states = slot.tokens[:end], [*slot.states[: end - 1], kept]
            for one, p in waiting:
                yield one, 0.0 if drafts and self.fault == "log-probabilities of 0" else p
            left -= len(waiting)

    def drawn(self, logits: Any, body: dict[str, Any], rng: Any) -> tuple[int, float]:
        """A token, with its log-probability."""
        token = int(logits.argmax())
        if body["temperature"]:
            p = np.exp((logits - logits.max()) / body["temperature"])
            token = min(int(np.searchsorted(np.cumsum(p / p.sum()), rng.uniform())), len(p) - 1)
        return token, float(logits[token] - logits.max() - np.log(np.exp(logits - logits.max()).sum()))


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Handler(BaseHTTPRequestHandler):
    model: Model

    def do_GET(self) -> None:
        if self.path == "/slots":
            self.answer(200, [{"id": n, "is_processing": busy} for n, busy in enumerate(self.model.looked())])
        else:
            self.answer(200, {"status": "ok"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        slot = self.model.taken(body)
        try:
            self.complete(slot, body)
        finally:
            self.model.released(slot)

    def complete(self, slot: Slot, body: dict[str, Any]) -> None:
        counts = {"draft_n": 0, "draft_n_accepted": 0, "cache_n": 0}
        ids, probs, ended = list[int](), list[float](), "limit"
        for token, p in self.model.tokens(slot, body, counts):
            ids.append(token)
            probs.append(p)
            if slot.orphan:
                return
            if body["stream"]:
                one = [{"id": token, "logprob": p}]
                self.event(slot, {"stop": False, "tokens": [token], "completion_probabilities": one})
            if f"<{token}>" in body["stop"] and self.model.fault != "a stop that is not seen":
                ended = "word"
                break
        last = {"stop": True, "tokens": [], "stop_type": ended, "timings": counts}
        if body["stream"]:
            self.event(slot, last)
            return
        given = [{"id": token, "logprob": p} for token, p in zip(ids, probs, strict=True)]
        self.answer(200, last | {"tokens": ids, "completion_probabilities": given[: len(ids) - (ended == "word")]})

    def event(self, slot: Slot, said: dict[str, Any]) -> None:
        try:
            self.wfile.write(b"" if self.began else b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            self.began = True
            self.wfile.write(f"data: {json.dumps(said)}\n\n".encode())
        except OSError:
            slot.orphan = True

    began = False

    def answer(self, status: int, said: Any) -> None:
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *given: Any) -> None:
        return


class Served(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in OPTIONS:
        parser.add_argument(option)
    for flag in ("--slots", "--no-warmup"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    fault = (Path(sys.argv[0]).parent / "fault").read_text()
    if fault == "does not start":
        raise SystemExit("error loading model: unknown architecture")
    Handler.model = Model(given, fault)
    with Served(given.host, Handler) as server:
        server.serve_forever()
