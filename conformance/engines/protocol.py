"""The messages between judge and engine: one JSON object per line, each question answered by one line.

    -> {"do": "start", "protocol": 1, "model": DIR, "options": {..}}
    <- {"name", "version", "dtype", "can": [..]}            or {"refused": "why"}
    -> {"do": "generate", "requests": [{"ids", "most", ..}]}
    <- {"answers": [{"ids", "logprobs", "finish", ..}]}     or {"error": "why"}
    -> {"do": "stop"}

`start` may be sent again: the engine must then be created from scratch. Documentation: docs/reference/engine-protocol.md.
"""

from typing import Annotated, Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 1
LONG = 1 << 16
"""Most tokens in one answer."""
Token: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 31)]
Text: TypeAlias = Annotated[str, Field(max_length=2000)]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 31)]
Feature = Literal["batch", "join", "cancel", "stop", "drafts", "sample", "seed", "logprobs", "preempt", "graphs", "drafter"]
Finish = Literal["length", "stop", "cancelled"]


class Line(BaseModel):
    """A record of the protocol. An unknown field, or one of another type, is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


Dtype = Literal["float32", "bfloat16", "float64"]
"""The format in which an engine must compute."""


class Options(Line):
    """A configuration. An engine refuses options that it does not support, with the reason; it never runs something else
    instead.

    `speculation` names the drafter: "ngram" (from the request's own tokens) or "model" (`drafter` is its folder). `drafts` is
    the number of tokens drafted per window. `chunk` is the most prompt tokens per step (None: the engine's default).
    `cache` allows reuse of state from earlier requests for prompts with a common prefix. `slots` requests run at once.
    `tokens` is the room for the tokens of all running requests, so little that some of them are preempted (None: enough for
    all); sent only to an engine that says "preempt". `graphs` turns on steps that are recorded and replayed, or compiled,
    which otherwise run operation by operation; sent only to an engine that says "graphs". `varied` lets requests set their
    own `drafts`, up to this option, and name their `drafter`; sent only to an engine that says "drafts" or "drafter".
    """

    speculation: Literal["ngram", "model"] | None = None
    drafter: str | None = None
    drafts: Annotated[int, Field(ge=1, le=64)] = 4
    chunk: Annotated[int, Field(ge=1)] | None = None
    cache: bool = False
    slots: Annotated[int, Field(ge=1, le=256)] = 2
    tokens: Annotated[int, Field(ge=1)] | None = None
    graphs: Literal[True] | None = None
    varied: Literal[True] | None = None
    dtype: Dtype = "float32"


class Start(Line):
    """The first question: which checkpoint to load, and how to run it."""

    do: Literal["start"] = "start"
    protocol: Literal[1] = 1
    model: str
    options: Options = Options()


class Started(Line):
    """The engine is ready. `dtype` is that of weights and activations in this run, `state` that of recurrent states.

    `can` lists what requests may use: "batch" (several at once), "join" (`after`), "cancel", "stop" (`stop`), "drafts" (a
    number per request), "drafter" (one of `drafters`, per request), "sample" (a temperature), "seed" (a sampled request
    follows its seed, and the target's own token is drawn first, so that speculation must not change it), "logprobs";
    "preempt" and "graphs" for the options `tokens` and `graphs`. `block` is the number of tokens that are kept and found
    again together: prompts are drawn around it. `rereads` says that a rejected draft costs one more target token: the engine
    reads the accepted tokens again from a copy of the state, and drafts nothing for the next one. `drafters` are the names
    that requests may give in this run, where the option `varied` is set; `drafts` is the most drafts of a request, if the
    options did not say it (a server's).
    """

    name: Text
    version: Text
    dtype: Literal["float32", "bfloat16", "float16", "float64"]
    state: Literal["float32", "bfloat16", "float16", "float64"] | None = None
    can: tuple[Feature, ...] = ()
    rereads: bool = False
    block: Annotated[int, Field(ge=1, le=4096)] | None = None
    drafters: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    drafts: Annotated[int, Field(ge=0, le=64)] | None = None
    note: Text = ""


class Request(Line):
    """One request of tokens. `most` is its budget; `stop` ends it at a token, which is part of the answer.

    `after` is the number of windows (steps) of the earlier requests after which it joins, `cancel` the number of its tokens
    after which it is cancelled; `drafts` is the most tokens to draft for it, if it differs from the configuration (0: none);
    `drafter` names its drafter, if it is not that of the configuration.
    """

    ids: tuple[Token, ...]
    most: Annotated[int, Field(ge=1, le=LONG)]
    stop: tuple[Token, ...] = ()
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    drafts: Annotated[int, Field(ge=0, le=64)] | None = None
    drafter: Text | None = None
    after: Count = 0
    cancel: Annotated[int, Field(ge=1)] | None = None


class Generate(Line):
    """Requests that are served together, in any order; answers are in the order of the requests."""

    do: Literal["generate"] = "generate"
    requests: Annotated[tuple[Request, ...], Field(min_length=1)]


class Answer(Line):
    """The tokens of one request, including the stop token. Log-probabilities are those of the emitted tokens, natural, before
    temperature; null if unknown, as a whole or for single tokens. Counts are null if unknown; `preempted` counts how often a
    running request lost its place and began again later, of this one or, where that is all that is known, of all in the
    first answer."""

    ids: Annotated[tuple[Token, ...], Field(max_length=LONG)]
    logprobs: tuple[float | None, ...] | None = None
    finish: Finish = "length"
    drafted: Count | None = None
    accepted: Count | None = None
    cached: Count | None = None
    preempted: Count | None = None


class Answers(Line):
    answers: tuple[Answer, ...]


class Refused(Line):
    """Sent before any work: the engine does not support this configuration or request."""

    refused: Text


class Failed(Line):
    """An error; the engine is still running."""

    error: Text


class Stop(Line):
    do: Literal["stop"] = "stop"


class Engine(Protocol):
    """An object that transports these messages: `program.Program`, `http.Server`."""

    def start(self, model: str, options: Options) -> Started: ...

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]: ...

    def close(self) -> None: ...
