"""The engine for texts: a folder in, texts and statistics out.

engine = ssmspec_fast.load("checkpoints/mamba2", drafter="checkpoints/mamba2-drafter", method="replay-buffer")
done = engine.generate(["def mean(values):\\n"], engine.settings(128))
print(done.completions[0].text, done.statistics.tau)
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from ssmspec_ref.errors import ParameterError

from .accept import Acceptance
from .accept.processors import Sampling
from .draft import Drafter
from .methods import Method
from .parts import Parts
from .requests import Finish, Settings
from .tokenizer import Stream, Tokenizer
from .watch import Counts, Seen, Watched, count

Prompt: TypeAlias = str | Sequence[int]


@dataclass(frozen=True)
class Piece:
    """What one window added to a request, as text: its accepted drafts, and the target's own token behind them."""

    request: int
    drafts: str
    own: str
    window: Seen


Show: TypeAlias = Callable[[Piece], None]


@dataclass(frozen=True)
class Completion:
    """One prompt's: its tokens, their text without an end of sequence (None without a tokenizer), why it ended."""

    tokens: tuple[int, ...]
    text: str | None
    finish: Finish
    statistics: Counts


@dataclass(frozen=True)
class Generation:
    """All prompts', in their order, and the statistics of all of them together."""

    completions: tuple[Completion, ...]
    statistics: Counts


class Generator:
    """An engine with a tokenizer (None: prompts are tokens)."""

    def __init__(self, engine: Watched, tokenizer: Tokenizer | None = None) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    def settings(self, max_tokens: int = 128, stop: Iterable[Prompt] = (), eos: Iterable[int] | None = None) -> Settings:
        """When a request ends; without `eos` at the end of sequence of the model's config.

        Raises: BudgetError, ParameterError.
        """
        ends = self.engine.model.config.eos if eos is None else tuple(eos)
        return Settings(max_tokens, ends, tuple(tuple(self.encode(text)) for text in stop))

    def generate(self, prompts: Sequence[Prompt], settings: Settings | None = None, show: Show | None = None) -> Generation:
        """Every prompt's completion; `show` receives every window as it is decided.

        Raises: EmptyWindow, ParameterError, LengthError, before any work.
        """
        if isinstance(prompts, str):
            raise ParameterError("prompts came as one string; give a list of prompts")
        tokens = [self.encode(prompt) for prompt in prompts]
        settings = self.settings() if settings is None else settings
        seen: list[list[Seen]] = [[] for _ in tokens]
        shown = None if show is None else Shown(self.tokenizer, settings, show)

        def watch(window: Seen) -> None:
            seen[window.request].append(window)
            if shown is not None:
                shown(window)

        self.engine.show = watch
        began = time.perf_counter()
        results = self.engine.generate(tokens, settings)
        seconds = time.perf_counter() - began
        done = tuple(
            Completion(r.tokens, self.text(r.tokens, settings), r.finish, count(windows))
            for r, windows in zip(results, seen, strict=True)
        )
        return Generation(done, count((window for windows in seen for window in windows), seconds))

    def encode(self, prompt: Prompt) -> list[int]:
        """Raises: ParameterError for text without a tokenizer."""
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise ParameterError("a prompt came as text, but the folder has no tokenizer.json; give its tokens")
        return self.tokenizer.encode(prompt)

    def text(self, tokens: tuple[int, ...], settings: Settings) -> str | None:
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in settings.eos else tokens)


class Shown:
    """Windows as pieces of text; an end of sequence is not shown."""

    def __init__(self, tokenizer: Tokenizer | None, settings: Settings, show: Show) -> None:
        self.tokenizer, self.settings, self.show = tokenizer, settings, show
        self.streams: dict[int, Stream] = {}

    def __call__(self, window: Seen) -> None:
        drafts, own = window.tokens[: window.accepted], window.tokens[window.accepted :]
        self.show(Piece(window.request, self.text(window.request, drafts), self.text(window.request, own), window))

    def text(self, request: int, tokens: tuple[int, ...]) -> str:
        if self.tokenizer is None:
            return ""
        stream = self.streams.setdefault(request, Stream(self.tokenizer))
        return stream.add(*(token for token in tokens if token not in self.settings.eos))


def load(
    folder: str | Path,
    *,
    drafter: str | Path | Drafter | None = None,
    method: str | Method | None = None,
    acceptance: str | Acceptance | None = None,
    mode: str = "bitwise",
    device: str = "cpu",
    dtype: torch.dtype | str | None = None,
    drafts: int = 4,
    slots: int = 8,
    cache: int = 2048,
    sampling: Sampling | None = None,
    seed: int = 0,
    memory: int | None = None,
    rows: int = 1,
    tree: str | None = None,
) -> Generator:
    """An engine on a folder's checkpoint, for `slots` prompts at once with at most `cache` tokens each, prompt and output.

    `drafter` is a folder, "ngram" or "lookup", which draft `drafts` tokens in each of `rows` chains, or a `tree`, as in
    `choices.Drafting`; or an object of one's own. Names of methods and rules are those of `choices`. In the mode "bitwise"
    greedy output is plain decoding's, bit for bit; "fast" may round otherwise.
    Units: `memory` is the bytes that may be taken.
    Raises: CheckpointError, ConfigRefused, TokenizerMismatch, Unsupported, ParameterError, MemoryRefused, before any work.
    """
    return Parts(
        folder, drafter, method, acceptance, mode, device, dtype, drafts, slots, cache, sampling, seed, memory, rows, tree
    ).load()
