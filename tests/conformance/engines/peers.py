"""Faults planted in other engines by patching their Python, each caught and named by the judge; nothing is rebuilt.

python tests/conformance/engines/peers.py --engine mlx|transformers|vllm --python ENGINE [--fault NAME]

The plain output comes from the engine without the fault, except for a fault that makes it another model. Exits with 1 if a
fault is missed, or is named otherwise.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.engines import cli
from conformance.engines.judge import Found
from conformance.engines.known import ENGINES, opener
from conformance.engines.laws import SAME
from conformance.engines.program import Program
from conformance.engines.protocol import Answer, Engine, Options, Request, Started
from conformance.engines.small import pair

HERE = Path(__file__).parent
SHRINKING = 30.0
"""Seconds to spend on shrinking a failure, unless the user says otherwise."""


@dataclass(frozen=True)
class Planted:
    """A fault: where it shows, which laws may name it, and a word of its explanation."""

    family: str
    configuration: str
    laws: tuple[str, ...]
    explained: str = ""
    schedules: int = 40
    samples: int = 0

    @property
    def another_model(self) -> bool:
        return self.laws[0] in SAME


KEPT = "log-probabilities kept"
"""The name of a wrong state that shows in a log-probability before it shows in a token."""
BATCH, AGAIN, DRAFTS = ("batch", "join", "cancel"), ("cache", "continuation", "fork", KEPT), ("speculation", KEPT)
FAULTS = {
    "mlx": {
        "a_joining_request_loses_its_state": Planted("mamba2", "plain", BATCH),
        "chunks_begin_from_nothing": Planted("mamba2", "chunk-8", ("chunk", KEPT), "a state that was not kept"),
        "window_of_the_convolution_lost": Planted("mamba2", "cache", AGAIN, "a window of the convolution that was not kept"),
        "one_rejected_draft_stays": Planted("llama", "model-3", DRAFTS),
        "a_decay_that_was_dropped": Planted(
            "qwen3_5", "plain", ("tokens", "log-probabilities"), "a decay that was dropped", 2
        ),
    },
    "transformers": {
        "padding_enters_the_state": Planted("mamba2", "plain", ("batch",)),
        "rejected_drafts_stay": Planted("llama", "model-3", DRAFTS),
        "the_drafter_keeps_rejected_drafts": Planted("llama", "model-3", ("drafter followed",)),
        "the_state_of_the_request_before": Planted("mamba2", "plain", ("repeated", "continuation", "fork", "batch")),
        "a_decay_that_was_dropped": Planted("bamba", "plain", ("tokens", "log-probabilities"), "a decay that was dropped", 2),
    },
    "vllm": {
        "a_decay_that_was_dropped": Planted("mamba2", "plain", SAME, "a decay that was dropped", 2),
        "the_state_of_the_request_before": Planted("mamba2", "plain", ("repeated", "continuation", "fork", "batch", KEPT)),
        "chunks_begin_from_nothing": Planted("mamba2", "chunk-8", ("chunk", KEPT)),
        "every_draft_is_accepted": Planted("llama", "ngram-4", DRAFTS),
        "rejected_drafts_keep_their_places": Planted("llama", "ngram-4", DRAFTS),
        "the_bonus_token_from_column_0": Planted("llama", "ngram-4", DRAFTS),
        "an_end_in_the_bonus_token_is_not_seen": Planted("llama", "model-3", ("stop",)),
        "a_hit_of_another_prompt": Planted("llama", "cache", AGAIN),
        "blocks_of_another_request": Planted("llama", "plain", BATCH),
        "one_seed_for_all": Planted("llama", "plain", ("sampled law",), "", 1, 240),
        "a_preempted_request_keeps_its_count": Planted("llama", "tight", ("preemption", "batch", KEPT)),
    },
}


class Kept:
    """The engine without a fault, started once for all faults of a family; closed at the end."""

    def __init__(self, opened: Callable[[], Engine]) -> None:
        self.opened = opened
        self.engine: Engine | None = None
        self.said: Started | None = None

    def start(self, model: str, options: Options) -> Started:
        if self.engine is None or self.said is None:
            self.engine = self.opened()
            self.said = self.engine.start(model, options)
        return self.said

    def generate(self, requests: tuple[Request, ...]) -> tuple[Answer, ...]:
        assert self.engine is not None
        return self.engine.generate(requests)

    def close(self) -> None:
        """The judge of one fault has ended; others follow."""

    def end(self) -> None:
        if self.engine is not None:
            self.engine.close()


def judged(engine: str, python: str, fault: str, folder: Path, shrink: float, right: Kept) -> Found:
    """The configuration in which a fault shows."""
    planted = FAULTS[engine][fault]
    known = ENGINES[engine]
    words = [python, str(HERE / f"planted_{engine}.py"), known.words[0], fault]
    target, drafter = pair(planted.family, folder)
    options = {planted.configuration: cli.configurations(drafter, cli.Tier.smoke, "float32")[planted.configuration]}

    def wrong() -> Program:
        return Program(words, once=known.once)

    plain = wrong if planted.another_model else lambda: right
    return cli.judged(wrong, plain, target, options, False, (planted.schedules, 0, planted.samples), lambda *_: None, shrink)


def missed(planted: Planted, found: Found) -> str:
    """Why a fault counts as missed; empty if it was caught and named."""
    if not found.red:
        return f"nothing was found in {found.schedules} schedules"
    laws = {law for failure in found.failures for law in (failure.law, *needed(failure.finding))}
    if not laws & set(planted.laws) or any(found.outcome(c, law) == "died" for c, law in found.cells):
        return f"named otherwise: {[f'{failure.law}: {failure.finding}' for failure in found.failures]}"
    if not any(planted.explained in failure.explained for failure in found.failures):
        return f"explained otherwise: {[failure.explained for failure in found.failures]}"
    return ""


def needed(finding: str) -> list[str]:
    """The features that a failure needs, of `needs: batch, fork; ..`."""
    start, _, rest = finding.partition("needs: ")
    return [] if start or not rest else rest.partition(";")[0].split(", ")


def lines(engine: str, python: str, faults: list[str], shrink: float) -> Iterator[tuple[bool, str]]:
    """Whether each fault was caught, and a line about it."""
    kept = {planted.family: Kept(opener(engine, python)) for planted in FAULTS[engine].values()}
    for fault in faults:
        with tempfile.TemporaryDirectory() as made:
            found = judged(engine, python, fault, Path(made), shrink, kept[FAULTS[engine][fault].family])
        why = missed(FAULTS[engine][fault], found)
        said = [f"{f.law}: {f.finding}{f'; {f.explained}' if f.explained else ''}" for f in found.failures]
        yield not why, f"{found.engine}: {fault}: {'MISSED: ' + why if why else 'caught: ' + ' | '.join(said)}"
    for one in kept.values():
        one.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=FAULTS, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--fault", action="append")
    parser.add_argument("--shrink", type=float, default=SHRINKING)
    given = parser.parse_args()
    caught = []
    for well, line in lines(given.engine, given.python, given.fault or list(FAULTS[given.engine]), given.shrink):
        caught.append(well)
        print(line, flush=True)
    print(f"{sum(caught)} of {len(caught)} planted faults caught")
    sys.exit(0 if all(caught) else 1)


if __name__ == "__main__":
    main()
