"""Our engine without a process between: what a test that plants a fault judges."""

import json
from typing import Any

from conformance.engines.errors import EngineFailed, EngineRefused
from conformance.engines.program import fitting
from conformance.engines.protocol import Answer, Answers, Options, Request, Started
from ssmspec_fast.adapters.program import EngineAdapter
from ssmspec_ref.errors import SpecError


class Direct:
    """The adapter of our engine, spoken to in its own records. What is planted is there while it works, and only then; not at
    all where it is `right`."""

    def __init__(self, right: bool = False) -> None:
        self.adapter, self.right = EngineAdapter(), right

    def start(self, model: str, options: Options) -> Started:
        try:
            said: dict[str, Any] = self.work(self.adapter.start, model, options.model_dump())
        except SpecError as error:
            raise EngineRefused(str(error)) from error
        return Started.model_validate_json(json.dumps(said))

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        try:
            answers = self.work(self.adapter.generate, [request.model_dump() for request in requests])
        except Exception as error:  # what an adapter says of it
            raise EngineFailed(f"{type(error).__name__}: {error}") from error
        return fitting(requests, Answers.model_validate_json(json.dumps({"answers": answers})).answers)

    def work(self, ask: Any, *given: Any) -> Any:
        PLANTED.append(not self.right)
        try:
            return ask(*given)
        finally:
            PLANTED.pop()

    def close(self) -> None:
        return


PLANTED: list[bool] = []
"""Whether the engine that works now is the one with the fault."""
