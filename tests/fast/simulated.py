"""An engine's time, without an engine: the chosen drafts drive a clock of known costs, over texts of known acceptance.

What a step costs is a table; besides, it costs something to bring the states up to date after drafts, to let a drafter catch
up, and to record or compile the first step of a shape. Steps are launched ahead, as with graphs, or read at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ssmspec_fast.draft import Drafter
from ssmspec_fast.draft.chooser import CATCH_UP, Chosen, chosen
from ssmspec_fast.draft.costs import StepTimes
from ssmspec_fast.engine.rounds import Outcome
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal


class Machine(NamedTuple):
    """Times of a step by the tokens of its window, of a change from drafts, of catching up, of the first step of a shape, and
    of a prompt; `ahead`: steps are launched before the last one is read. `host` is what the host takes for a launch. `scale`
    multiplies a window's extra time at a batch. Units: us."""

    us: dict[int, float]
    settle: float = 0.0
    catch_up: float = 0.0
    record: float = 0.0
    prompt: float = 0.0
    ahead: bool = True
    host: float = 100.0

    def step(self, tokens: int) -> float:
        below, above = max(n for n in self.us if n <= tokens), min(n for n in self.us if n >= tokens)
        part = (tokens - below) / (above - below) if above > below else 0.0
        return self.us[below] + part * (self.us[above] - self.us[below])


class Stub(Drafter):
    """Drafts nothing: the simulation knows what would be accepted."""

    on_device = True

    def __init__(self, drafts: int, follows: bool = False) -> None:
        self.nodes, self.follows, self.reads = 1 + drafts, follows, (1 + drafts, 32) if follows else None

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        raise NotImplementedError


Text = Sequence[int]
"""How many drafts of the longest window are accepted after each of its tokens."""


@dataclass
class Run:
    """A clock (seconds), and what was done: the drafts of every step."""

    machine: Machine
    seconds: float = 0.0
    device: float = 0.0
    chose: list[int] = field(default_factory=list)
    recorded: set[tuple[int, int]] = field(default_factory=set)
    silent: bool = True

    def clock(self) -> float:
        return self.seconds

    def launch(self, rows: int, drafts: int) -> float:
        """Launches a step; returns when the device has done it."""
        held, silent = self.machine, drafts <= 0
        self.chose.append(drafts)
        shape = 1 << (rows - 1).bit_length(), drafts
        first = shape not in self.recorded
        self.recorded.add(shape)
        settle = held.settle if silent and not self.silent else 0.0
        self.silent = silent
        self.seconds += 1e-6 * (held.host + settle + held.record * first)
        us = held.step(1 + max(0, drafts)) + held.catch_up * (drafts == CATCH_UP)
        self.device = max(self.device, self.seconds) + 1e-6 * us
        return self.device

    def decode(self, texts: Sequence[Text], slots: int, drafts: int | Chosen) -> float:
        """The time of all texts, `slots` at once, with these drafts at every step, or with chosen ones."""
        began, waiting, running = self.seconds, list(range(len(texts))), dict[int, list[int]]()
        rounds: list[tuple[float, dict[int, list[int]], int]] = []
        self.silent = True
        while waiting or running or rounds:
            free = [slot for slot in range(slots) if slot not in running][: len(waiting)]
            for slot in free:
                running[slot] = [waiting.pop(0), 0]
            if free:
                self.seconds = max(self.seconds, self.device) + 1e-6 * self.machine.prompt * len(free)
                if isinstance(drafts, Chosen):
                    drafts.start(None, torch.tensor(free))  # type: ignore[arg-type]
            if running:
                choice = drafts.choose_shape(len(running)) if isinstance(drafts, Chosen) else drafts
                rounds.append((self.launch(len(running), choice), dict(running), choice))
            while len(rounds) > (1 if running and self.machine.ahead else 0):
                self.read(rounds.pop(0), running, texts, drafts)
        return self.seconds - began

    def read(
        self, one: tuple[float, dict[int, list[int]], int], running: dict[int, list[int]], texts: Sequence[Text],
        drafts: int | Chosen,
    ) -> None:  # fmt: skip
        done, rows, choice = one
        self.seconds = max(self.seconds, done)
        emitted, ended = dict[int, int](), []
        for slot, state in rows.items():
            if running.get(slot) is not state:
                continue
            text = texts[state[0]]
            emitted[slot] = min(1 + min(max(0, choice), text[state[1]]), len(text) - state[1])
            state[1] += emitted[slot]
            if state[1] >= len(text):
                ended.append(slot)
                del running[slot]
        if isinstance(drafts, Chosen):
            if ended:
                drafts.release(torch.tensor(ended))
            drafts.read_round(Outcome(choice, len(rows), emitted, tuple(ended)))


def gains(
    machine: Machine, texts: Sequence[Text], most: int, slots: int = 1, *, follows: bool = False, warm: int = 64,
    make: Callable[[Drafter, StepTimes], Chosen] = chosen, chose: list[int] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Speed-ups over plain decoding: always drafting, and chosen drafts, after the beginnings of two groups of texts."""
    found = []
    for how in (0, most, None):
        run = Run(machine)
        drafts = make(Stub(most, follows), StepTimes(run.clock)) if how is None else how
        short = [text[:warm] for text in texts[: 2 * slots]]
        groups = [[text] for text in short] if slots == 1 else [short]
        for group in groups if warm else ():
            run.decode(group, slots, drafts)
        run.chose.clear()
        groups = [[text] for text in texts] if slots == 1 else [list(texts)]
        found.append(sum(run.decode(group, slots, drafts) for group in groups))
        if chose is not None and how is None:
            chose += run.chose
    return found[0] / found[1], found[0] / found[2]
