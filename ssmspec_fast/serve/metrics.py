"""The metrics that Prometheus reads at /metrics."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The metrics of one server. Units: seconds, tokens."""

    def __init__(
        self, running: Callable[[], float], waiting: Callable[[], float], engine: Callable[[], float] = float
    ) -> None:
        self.registry = CollectorRegistry()
        given: dict[str, Any] = {"registry": self.registry, "namespace": "ssmspec"}
        self.answers = Counter("answers", "Answers by HTTP status; 499: the client had gone.", ["status"], **given)
        self.closed = Counter("closed_connections", "Connections that the server closed, by reason.", ["reason"], **given)
        self.prompt = Counter("prompt_tokens", "Tokens of prompts that were accepted.", **given)
        self.completion = Counter("completion_tokens", "Tokens of completions.", **given)
        self.drafted = Counter("drafted_tokens", "Tokens that were drafted.", **given)
        self.accepted = Counter("accepted_tokens", "Drafted tokens that were accepted.", **given)
        self.first = Histogram("first_token_seconds", "From a request to its first token.", buckets=SECONDS, **given)
        self.whole = Histogram("answer_seconds", "From a request to the end of its answer.", buckets=SECONDS, **given)
        for name, said, count in (("running", "in a slot", running), ("waiting", "in the queue", waiting)):
            Gauge(f"{name}_completions", f"Completions {said}.", **given).set_function(count)
        Gauge("engine_seconds", "Processor time of the engine's thread.", **given).set_function(engine)

    def text(self) -> bytes:
        return generate_latest(self.registry)
