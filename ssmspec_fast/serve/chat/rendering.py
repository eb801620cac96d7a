"""A chat template, rendered in a separate process: a stranger's template may run without end, or take all memory.

Messages and texts are lines of JSON. The process sets its own limits of memory and of processor time for one chat, which the
operating system enforces; the next chat then gets a new process. It ends when its pipe is closed.
"""

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from ..refusal import Refused, quoted

SECONDS, BYTES, CHARACTERS = 2.0, 1 << 29, 1 << 24
"""Processor seconds and bytes of memory for one chat, and the characters of its text."""


class Rendering:
    """The process of one template. `special` are the texts of special tokens. Raises: ModuleNotFoundError."""

    def __init__(self, template: str, special: dict[str, str]) -> None:
        if find_spec("transformers") is None:
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
        self.given, self.lock = [template, special], threading.Lock()
        self.start()

    def start(self) -> None:
        code = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import main; main()"
        # -I: the working folder, perhaps a stranger's checkpoint with a json.py in it, is no place to import from
        command, pipe = [sys.executable, "-I", "-c", code, json.dumps(sys.path)], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.end = weakref.finalize(self, ended, self.process)
        self.answer(self.given, wait=False)

    def text(self, turns: Sequence[dict[str, str]]) -> str:
        """Raises: Refused for messages that the template does not take, and for a template that takes too much."""
        with self.lock:
            if self.process.poll() is not None:
                self.end()  # closes its pipes
                self.start()
            found = self.answer(turns)
            if not found:
                self.end()
                if self.process.returncode > 0:  # not by a signal
                    raise Refused(500, f"the process of the chat template ended with {self.process.returncode}; look into it")
        if "text" in found:
            return str(found["text"])
        if "wrong" in found:
            raise Refused(400, f"the chat template does not take these messages: {quoted(found['wrong'])}", "messages")
        said = f"the model's chat template took more than {SECONDS:g} s, {BYTES >> 20} MiB or {CHARACTERS} characters"
        raise Refused(500, f"{said} for these messages; send others, or serve another template", "messages")

    def answer(self, given: Any, wait: bool = True) -> dict[str, Any]:
        """What the process says, {} if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(given).encode() + b"\n")
            self.process.stdin.flush()
            return dict(json.loads(self.process.stdout.readline() or b"{}")) if wait else {}
        except (OSError, ValueError):  # ValueError: it ended in the middle of a line, or its pipes are closed
            return {}


def ended(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process, which has nothing to lose."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def main() -> None:
    """The process: a template, then one chat after the other."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template, special = json.loads(sys.stdin.buffer.readline() or b'["", {}]')
    limit_memory()
    for line in sys.stdin.buffer:
        turns = json.loads(line)
        limit_time(SECONDS)
        try:
            made: Any = render_jinja_template([turns], chat_template=template, add_generation_prompt=True, **special)
            text = made[0][0]
            said = json.dumps({"text": text} if len(text) <= CHARACTERS else {"long": len(text)})
        except (MemoryError, OverflowError, RecursionError):
            said = json.dumps({"long": 0})
        except Exception as error:  # of the template: it may raise anything
            said = json.dumps({"wrong": str(error)[:1000]})
        limit_time(0)
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


def limit_time(seconds: float) -> None:
    """The system ends the process after so much processor time; 0: no more."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def limit_memory() -> None:
    """To BYTES more than it has now, where the system can tell and limit it."""
    with suppress(ImportError, OSError):
        import resource

        with open("/proc/self/statm") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, held + BYTES))
