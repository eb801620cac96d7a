"""An engine with a tokenizer: prompts in, texts and statistics out."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ssmspec_ref.errors import ParameterError

from .engine.emitted_windows import Counts, EmittedWindow, StreamingEngine, count
from .engine.requests import Finish, Settings, tokens_of
from .engine.sampling import Sampling
from .models.tokenizer import Stream, Tokenizer

Prompt: TypeAlias = str | Sequence[int]


@dataclass(frozen=True)
class Piece:
    """What one window added to a request, as text: its accepted drafts, and the target's own token after them."""

    request: int
    drafts: str
    own: str
    window: EmittedWindow


Show: TypeAlias = Callable[[Piece], None]


@dataclass(frozen=True)
class Completion:
    """The completion of one prompt: tokens, text without the end-of-sequence token (None without a tokenizer), why it
    ended."""

    tokens: tuple[int, ...]
    text: str | None
    finish: Finish
    statistics: Counts


@dataclass(frozen=True)
class Generation:
    """The completions of all prompts, in order, and their joint statistics."""

    completions: tuple[Completion, ...]
    statistics: Counts


class Generator:
    """An engine with a tokenizer (None: prompts are lists of tokens)."""

    def __init__(self, engine: StreamingEngine, tokenizer: Tokenizer | None = None) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    def settings(
        self,
        max_tokens: int = 128,
        stop: Iterable[Prompt] = (),
        eos: Iterable[int] | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
    ) -> Settings:
        """Settings of a request: when it ends and how it is sampled. Without `eos` it ends at the config's end of sequence.

        Raises: BudgetError, ParameterError.
        """
        if isinstance(stop, str):
            raise ParameterError(f"stop is the text {stop!r}; give a list of texts: [{stop!r}]")
        ends = self.engine.model.config.eos if eos is None else tokens_of("eos", eos)
        return Settings(max_tokens, ends, tuple(tuple(self.encode(text)) for text in stop), sampling, seed)

    def generate(
        self,
        prompts: Sequence[Prompt],
        settings: Settings | Sequence[Settings] | None = None,
        show: Show | None = None,
        keys: Sequence[int] | None = None,
    ) -> Generation:
        """Completes every prompt; `show` receives every window of this call as it is decided.

        `settings` is one for all prompts, or a list with one for each; `keys` as for `Engine.generate`.
        Raises: EmptyWindow, ParameterError, LengthError, before any work; and the errors of `show`.
        """
        if isinstance(prompts, str):
            raise ParameterError("prompts is one string; give a list of prompts")
        tokens = [self.encode(prompt) for prompt in prompts]
        settings = self.settings() if settings is None else settings
        each = [settings] * len(tokens) if isinstance(settings, Settings) else list(settings)
        seen: list[list[EmittedWindow]] = [[] for _ in tokens]
        shown = None if show is None else Shown(self.tokenizer, each, show)

        def watch(window: EmittedWindow) -> None:
            seen[window.request].append(window)
            if shown is not None:
                shown(window)

        began = time.perf_counter()
        results = self.engine.generate(tokens, each, keys, watch)
        seconds = time.perf_counter() - began
        done = tuple(
            Completion(r.tokens, self.text(r.tokens, one), r.finish, count(windows))
            for r, one, windows in zip(results, each, seen, strict=True)
        )
        return Generation(done, count((window for windows in seen for window in windows), seconds))

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt. Raises: ParameterError for text if there is no tokenizer."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise ParameterError("a prompt is text, but the folder has no tokenizer.json; give its tokens")
        return self.tokenizer.encode(prompt)

    def text(self, tokens: tuple[int, ...], settings: Settings) -> str | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in settings.eos else tokens)


class Shown:
    """Passes windows on as pieces of text, without the end-of-sequence token."""

    def __init__(self, tokenizer: Tokenizer | None, settings: Sequence[Settings], show: Show) -> None:
        self.tokenizer, self.settings, self.show = tokenizer, settings, show
        self.streams: dict[int, Stream] = {}

    def __call__(self, window: EmittedWindow) -> None:
        drafts, own = window.tokens[: window.accepted], window.tokens[window.accepted :]
        self.show(Piece(window.request, self.text(window.request, drafts), self.text(window.request, own), window))

    def text(self, request: int, tokens: tuple[int, ...]) -> str:
        if self.tokenizer is None:
            return ""
        stream = self.streams.setdefault(request, Stream(self.tokenizer))
        return stream.add(*(token for token in tokens if token not in self.settings[request].eos))
