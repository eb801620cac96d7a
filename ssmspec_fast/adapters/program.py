"""The engine as a program for `ssmspec conform engine`: JSON lines on standard input and output.

    python -m ssmspec_fast.adapters.program [--method NAME] [--mode fast] [--device cuda]

The lines are those of docs/reference/engine-protocol.md. Requests go through the scheduler: they join after the step that
they name, may be cancelled between steps, and share the slots. On a GPU steps can be recorded as graphs; their answers have
no log-probabilities, which would be read after the next step has overwritten them.
"""

import json
import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from ssmspec_ref.errors import SpecError, Unsupported

from ..accept import Acceptance
from ..accept.naive import Naive
from ..cli.refusal import run_command
from ..engine.emitted_windows import EmittedWindow
from ..engine.graphs import CUDARecorder, Recorder
from ..engine.requests import Settings
from ..engine.sampling import Sampling
from ..engine.scheduler import Scheduler, Served
from ..engine.window import Proposal, Verdict
from ..models.build import Parts

CAN = ("batch", "join", "cancel", "stop", "sample", "seed", "logprobs", "drafts", "drafter")
CACHE = 512


class Recorded:
    """Wraps an acceptance rule and keeps the log-probability of each accepted token, by slot."""

    def __init__(self, inner: Acceptance) -> None:
        self.inner = inner
        self.found: dict[int, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, proposal: Proposal, logits: Tensor, sequences: Any, operations: Any) -> Verdict:
        verdict = self.inner(proposal, logits, sequences, operations)
        run, rows = verdict.run, logits[verdict.row]
        nodes = run.path.long().clamp_min(0)
        chosen = torch.log_softmax(rows.double(), -1).gather(1, nodes[..., None].expand(-1, -1, rows.shape[-1]))
        probs = chosen.gather(2, run.tokens.long().clamp_min(0)[..., None])[..., 0]
        self.found = {
            slot: values[:count]
            for slot, values, count in zip(verdict.slots.tolist(), probs.tolist(), run.advanced.tolist(), strict=True)
        }
        return verdict


class Running:
    """One request in progress."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.number = -1
        self.logprobs: list[float] | None = []
        self.tokens = 0
        self.drafted, self.accepted = 0, 0
        self.served: Served | None = None

    @property
    def overdue(self) -> bool:
        """Whether it must be cancelled now."""
        cancel = self.asked.get("cancel")
        return cancel is not None and self.tokens >= cancel

    def answer(self) -> dict[str, Any]:
        """The answer line. Raises: RuntimeError for a request that failed."""
        assert self.served is not None
        if self.served.ending == "failed":
            raise RuntimeError(self.served.why)
        ids, ending = list(self.served.tokens), self.served.ending
        if ending == "cancelled":
            ids = ids[: self.asked["cancel"]]
        finish = ending if ending in ("length", "cancelled") else "stop"
        counts = {"drafted": self.drafted, "accepted": self.accepted, "cached": 0}
        logprobs = None if self.logprobs is None else self.logprobs[: len(ids)]
        return {"ids": ids, "logprobs": logprobs, "finish": finish, **counts}


class EngineAdapter:
    """The engine of a configuration; `method`, `mode` and `device` come from the command line. A `recorder` records steps."""

    def __init__(self, method: str | None = None, mode: str = "bitwise", device: str = "cpu") -> None:
        self.method, self.mode, self.device = method, mode, device
        self.recorder: type[Recorder] | None = CUDARecorder if device.startswith("cuda") else None

    def start(self, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        """Loads the engine. Raises: Unsupported for a prefix cache, or graphs without a GPU, and the errors of loading."""
        if options.get("cache"):
            raise Unsupported("this engine has no prefix cache; omit the option cache")
        if options.get("graphs") and self.recorder is None:
            raise Unsupported("steps are recorded on a GPU only; give --device cuda, or omit the option graphs")
        torch.set_num_threads(1)
        speculation = options.get("speculation")
        drafter: Any = options.get("drafter") if speculation == "model" else speculation
        if options.get("varied"):
            drafter = {speculation: drafter} | {"ngram": "ngram"}
        rule: Any = Naive(Sampling(temperature=0.0))
        self.rule: Recorded | None = None
        if not options.get("graphs"):
            self.rule = rule = Recorded(rule)
        parts = Parts(
            folder, drafter, self.method if drafter else None, rule, self.mode, self.device, options["dtype"],
            options["drafts"], options["slots"], CACHE,
        )  # fmt: skip
        self.engine = parts.load().engine
        if options.get("chunk"):
            self.engine.target.chunk = options["chunk"]
        if self.rule is None and self.recorder is not None:
            self.engine.recorder = self.recorder()
        can = (*CAN, *(["graphs"] if self.recorder is not None else []))
        return {
            "name": "ssmspec",
            "version": version("ssmspec"),
            "dtype": options["dtype"],
            "can": can,
            "drafters": self.engine.drafter.names,
        }

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raises: the errors of submitting a request, and RuntimeError for one that failed."""
        running = [Running(asked) for asked in requests]
        scheduler = Scheduler(self.engine, Settings(1))
        try:
            self.serve(scheduler, running)
        finally:
            scheduler.close()
        return [one.answer() for one in running]

    def serve(self, scheduler: Scheduler, running: list[Running]) -> None:
        """Submits, takes turns and cancels until every request has ended."""
        waiting = sorted(running, key=lambda one: one.asked.get("after", 0))
        live: dict[int, Running] = {}

        def show(window: EmittedWindow) -> None:
            one = live[window.request]
            one.tokens += len(window.tokens)
            if self.rule is None:
                one.logprobs = None
            elif one.logprobs is not None:
                slot = next(slot for slot, request in scheduler.running.items() if request.number == window.request)
                one.logprobs += self.rule.found[slot][: len(window.tokens)]
            one.drafted += window.drafted
            one.accepted += min(window.accepted, window.drafted)

        turns = 0
        while waiting or live:
            while waiting and (waiting[0].asked.get("after", 0) <= turns or not live):
                one = waiting.pop(0)
                one.number = scheduler.submit(one.asked["ids"], settings(one.asked), show=show)
                live[one.number] = one
            done = scheduler.turn()
            cancelled = [scheduler.cancel(number) for number, one in live.items() if one.overdue]
            for served in [*done, *(found for found in cancelled if found is not None)]:
                live.pop(served.number).served = served
            turns += 1


def settings(asked: dict[str, Any]) -> Settings:
    """The settings of a request; only its seed determines the random numbers."""
    sampling, seed = Sampling(temperature=asked.get("temperature", 0.0)), asked.get("seed", 0)
    own = {name: asked.get(name) for name in ("drafts", "drafter")}
    return Settings(asked["most"], tuple(asked.get("stop", ())), (), sampling, seed, **own)


def main(
    method: Annotated[str | None, typer.Option(help="How drafts are verified and rejected ones undone.")] = None,
    mode: Annotated[str, typer.Option(help="bitwise or fast.")] = "bitwise",
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Answers requests until "stop". What the engine prints goes to standard error."""
    adapter = EngineAdapter(method, mode, device)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "stop":
            return
        answer: dict[str, Any]
        try:
            if question["do"] == "start":
                answer = adapter.start(question["model"], question["options"])
            else:
                answer = {"answers": adapter.generate(question["requests"])}
        except (SpecError, OSError) as error:
            answer = {"refused": f"{type(error).__name__}: {error}"[:1900]}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:1900]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.exit(run_command(main))
