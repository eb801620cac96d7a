"""Pieces of completions as JSON, in the formats of OpenAI's two endpoints. A whole answer is all its pieces, joined."""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from ..models.tokenizer import LOST, Tokenizer
from .asked import Asked
from .choice import Piece
from .logits import Logprob


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces of each choice joined into one, in the order of the choices."""
    found: dict[int, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.index, []).append(piece)
    return [whole(found[index]) for index in sorted(found)]


def whole(pieces: Sequence[Piece]) -> Piece:
    """The pieces of one choice as one; what ended it is said by the last."""
    lists: dict[str, Any] = {
        name: tuple(chain(*(getattr(p, name) for p in pieces))) for name in ("tokens", "logprobs", "begins")
    }
    counts = {name: sum(getattr(piece, name) for piece in pieces) for name in ("drafted", "accepted")}
    return replace(pieces[-1], text="".join(piece.text for piece in pieces), **lists, **counts)


def usage(prompts: Sequence[Sequence[int]], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Token counts; drafts are reported under OpenAI's names for predictions. Units: tokens."""
    every = list(pieces)
    made, drafted, accepted = (sum(n) for n in zip(*((len(p.tokens), p.drafted, p.accepted) for p in every), strict=True))
    given = sum(map(len, prompts))
    details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    return {
        "prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made,
        "completion_tokens_details": details, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


class Answers:
    """The answer to one request at /v1/completions, from a model with this name."""

    kind = chunk = "text_completion"
    prefix = "cmpl"

    def __init__(self, asked: Asked, model: str, tokenizer: Tokenizer | None, prompts: Sequence[list[int]]) -> None:
        self.asked, self.tokenizer, self.prompts = asked, tokenizer, prompts
        self.named = cache(self.name_of)
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        choices = [self.choice(piece) for piece in joined(pieces)]
        return self.head | {"object": self.kind, "choices": choices, "usage": usage(self.prompts, pieces)}

    def event(self, *pieces: Piece, **more: Any) -> dict[str, Any]:
        return self.head | {"object": self.chunk, "choices": [self.choice(piece, True) for piece in pieces]} | more

    def choice(self, piece: Piece, part: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = {"index": piece.index, "finish_reason": piece.finish, "stop_reason": piece.reason}
        found |= self.said(piece, part) | {"logprobs": self.logprobs(piece) if self.asked.wanted is not None else None}
        if self.asked.return_token_ids:
            prompt = {} if part else {"prompt_token_ids": self.prompts[piece.index // self.asked.n]}
            found |= {"token_ids": piece.tokens} | prompt
        return found

    def said(self, piece: Piece, part: bool) -> dict[str, Any]:
        return {"text": piece.text}

    def logprobs(self, piece: Piece) -> dict[str, Any]:
        return {
            "tokens": [self.named(one.token) for one in piece.logprobs],
            "token_logprobs": [one.logprob for one in piece.logprobs],
            "top_logprobs": [{self.named(token): p for token, p in listed(one)} for one in piece.logprobs],
            "text_offset": piece.begins,
        }

    def name_of(self, token: int) -> str:
        """A token's text; its number if the request wants numbers, or if it is not a whole character."""
        text = LOST if self.tokenizer is None or self.asked.return_tokens_as_token_ids else self.tokenizer.decode([token])
        return f"token_id:{token}" if LOST in text else text


class ChatAnswers(Answers):
    """The same at /v1/chat/completions."""

    kind, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.begun = set[int]()

    def said(self, piece: Piece, part: bool) -> dict[str, Any]:
        if not part:
            return {"message": {"role": "assistant", "content": piece.text}}
        role = {} if piece.index in self.begun else {"role": "assistant"}
        self.begun.add(piece.index)
        return {"delta": role | {"content": piece.text}}

    def logprobs(self, piece: Piece) -> dict[str, Any]:
        def entry(token: int, p: float) -> dict[str, Any]:
            name = self.named(token)
            return {"token": name, "logprob": p, "bytes": None if name == f"token_id:{token}" else list(name.encode())}

        return {
            "content": [
                entry(one.token, one.logprob) | {"top_logprobs": [entry(*pair) for pair in one.top]} for one in piece.logprobs
            ]
        }


def listed(one: Logprob) -> list[tuple[int, float]]:
    """The token itself, then the most likely ones."""
    return [(one.token, one.logprob), *(pair for pair in one.top if pair[0] != one.token)]
