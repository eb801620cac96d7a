"""The body of a request: every supported field, with its type; any other field is refused by name."""

from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ..engine.sampling import Sampling
from .refusal import quoted

IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
"""Fields that change no token: accepted and ignored."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "logit_bias": ({},),
    "min_p": (0,),
    "speculation": (),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (False,),
}
"""Known fields that are not supported: accepted if null, or if their value requests nothing."""
Item = TypeVar("Item")
Many: TypeAlias = Annotated[list[Item], Field(fail_fast=True)]
"""A list that is wrong at its first wrong item: pydantic makes an error for each otherwise."""
Count = Annotated[int, Field(ge=1, le=2**31)]
Penalty = Annotated[float, Field(ge=-100, le=100)]
"""Far beyond these a sum of logits and penalties is not finite."""


class Form(BaseModel):
    """Types are strict: text is not converted to a number. A null field takes its default."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for name, neutral in NEUTRAL.items():
            value = given.get(name)
            if value is not None and not any(value == one and type(value) is type(one) for one in neutral):
                raise ValueError(f"{name} is not supported; leave it out")
        unknown = next((name for name in given if name not in cls._names()), None)
        if unknown is not None:
            raise PydanticCustomError("unknown", "{name} is not known here", {"name": quoted(unknown)})
        return {name: value for name, value in given.items() if name in cls.model_fields and value is not None}

    @classmethod
    @cache
    def _names(cls) -> frozenset[str]:
        return frozenset({*cls.model_fields, *IGNORED, *NEUTRAL})


class StreamOptions(Form):
    include_usage: bool = False


class Asked(Form):
    """The fields that all completions share. `top_k` 0 or -1: all."""

    model: str | None = None
    n: Count = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31)] = 0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    seed: int | None = None
    drafts: Annotated[int, Field(ge=0, le=2**31)] | None = None
    drafter: str | None = None
    stop: str | Many[str] = []
    stop_token_ids: Many[int] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    @model_validator(mode="after")
    def _stops(self) -> "Asked":
        if not all(self.stops):
            raise ValueError("stop holds an empty text, with which every output ends; leave it out")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling(self) -> Sampling:
        """Raises: ParameterError."""
        return Sampling(
            self.temperature, max(0, self.top_k), self.top_p,
            self.repetition_penalty, self.presence_penalty, self.frequency_penalty, self.min_tokens,
        )  # fmt: skip

    @property
    def wanted(self) -> int | None:
        """How many of the most likely tokens are listed with each token; None: no log-probabilities."""
        raise NotImplementedError

    @property
    def budget(self) -> int | None:
        """The most tokens; None: as many as there is room for."""
        raise NotImplementedError


class Completion(Asked):
    """`POST /v1/completions`."""

    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    max_tokens: Count = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def wanted(self) -> int | None:
        return self.logprobs

    @property
    def budget(self) -> int | None:
        return self.max_tokens

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts; an empty list stays empty."""
        given: Any = self.prompt
        alone = isinstance(given, str) or (given and isinstance(given[0], int))
        return [given] if alone else given


class Text(Form):
    type: str
    text: str


class Message(Form):
    """One turn of a chat. Content is text, or a list of parts that are text."""

    role: str
    content: str | Many[Text]
    name: str | None = None

    @property
    def turn(self) -> dict[str, str]:
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": said} | ({} if self.name is None else {"name": self.name})


class Chat(Asked):
    """`POST /v1/chat/completions`."""

    messages: Annotated[Many[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @property
    def wanted(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def budget(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
