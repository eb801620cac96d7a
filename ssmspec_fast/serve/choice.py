"""One completion in progress: windows of tokens in, pieces of an answer out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..engine.emitted_windows import EmittedWindow
from ..engine.requests import Settings
from ..engine.scheduler import Served
from .logits import Logprob, logprobs
from .refusal import Refused
from .writer import Writer


@dataclass(frozen=True)
class Piece:
    """One window of choice `index`, or its end: `finish` is None until then.

    `text` may lag behind `tokens` while it could become a stop string. `reason` is the stop string or the stop token that
    ended it. `begins` counts the characters written before each token.
    """

    index: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[Logprob, ...] = ()
    begins: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    finish: Literal["stop", "length"] | None = None
    reason: str | int | None = None
    fault: Refused | None = None

    @property
    def last(self) -> bool:
        return self.finish is not None or self.fault is not None


@dataclass
class Choice:
    """Receives windows, in the engine's thread, and passes pieces to `hear`. `key` is its place among the completions of one
    prompt, `wanted` as in `Asked.wanted`, `own` the model's end-of-sequence tokens."""

    index: int
    key: int
    prompt: list[int]
    settings: Settings
    writer: Writer
    wanted: int | None
    own: tuple[int, ...]
    hear: Callable[[Piece], None]
    over: bool = field(default=False, init=False)
    token: int = field(default=-1, init=False)

    def window(self, seen: EmittedWindow) -> bool:
        """Takes a window of this request; returns whether its text has reached a stop string, so that it is over."""
        text, begins = "", list[int]()
        for token in seen.tokens:
            begins.append(self.length)
            text += self.writer.add(token)
            if self.writer.stop:
                break
        tokens, self.token = seen.tokens[: len(begins)], ([self.token, *seen.tokens[: len(begins)]])[-1]
        said = list[Logprob]()
        if self.wanted is not None:
            assert seen.logits is not None
            said = logprobs(seen.logits[: len(tokens)], tokens, self.wanted)
        accepted = min(seen.accepted, len(tokens))
        self.over = bool(self.writer.stop)
        ended: dict[str, Any] = {"finish": "stop", "reason": self.writer.stop} if self.over else {}
        self.hear(Piece(self.index, tokens, text, tuple(said), tuple(begins), seen.drafted, accepted, **ended))
        return self.over

    @property
    def length(self) -> int:
        """Characters written so far, waiting ones included."""
        return 0 if self.writer.stream is None else self.writer.stream.shown

    def ended(self, served: Served) -> None:
        """Called when the request has left the engine."""
        if self.over:
            return
        self.over = True
        if served.ending == "failed":
            self.hear(Piece(self.index, fault=Refused(500, f"the engine failed on this request: {served.why or NAN}")))
            return
        if served.ending == "cancelled":  # perhaps while a window is written, in another thread
            self.hear(Piece(self.index, fault=Refused(503, "the server is shutting down; ask again", code="shutting_down")))
            return
        text = self.writer.rest()
        if self.writer.stop:
            self.hear(Piece(self.index, text=text, finish="stop", reason=self.writer.stop))
        elif served.ending == "length":
            self.hear(Piece(self.index, text=text, finish="length"))
        else:
            reason = None if self.token in self.own else self.token
            self.hear(Piece(self.index, text=text, finish="stop", reason=reason))


NAN = "its logits are no numbers"
