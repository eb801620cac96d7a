"""Prompts in, tokens out: the loop over windows of a batch of sequences that join, end and leave at different times.

    proposal = drafter(sequences)                        (1)
    logits   = target(feed of the window)                (2)
    verdict  = acceptance(proposal, logits), cut         (3)
    commit   : states, caches, cursors; then the tokens  (4)

One step is (1) to (4) for all rows at once; between steps, sequences that ended leave their slot and waiting ones take it.
Over graphs a step is one list of launches (`graphs`), and the host reads what became of it when the next one has been
launched: a sequence that has ended is padding until then.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from ssmspec_ref.errors import EmptyWindow, LengthError, ParameterError, SlotError

from .accept import Acceptance
from .accept.greedy import Greedy
from .decoder import Decoder
from .draft import Drafter
from .draft.nothing import Nothing
from .graphs import Graphs, Recorder, awake
from .methods import Method
from .methods.plain import Plain
from .model import Model
from .operations import Operations
from .operations.slots import sent
from .operations.torch_ops import TorchOperations
from .requests import Request, Result, Settings, finish
from .rounds import Round, launched
from .sequences import Sequences, new_sequences
from .window import Proposal, Verdict


class Engine:
    """A target, how it drafts, verifies and accepts, and room for `slots` sequences of `cache` tokens.

    With `graphs` (say `graphs.CUDARecorder()`) steps are recorded and replayed.

    Raises: Unsupported, ParameterError, MemoryRefused.
    """

    def __init__(
        self,
        model: Model,
        drafter: Drafter | None = None,
        method: Method | None = None,
        acceptance: Acceptance | None = None,
        *,
        operations: Operations | None = None,
        slots: int = 8,
        cache: int = 2048,
        memory: int | None = None,
        graphs: Recorder | None = None,
    ) -> None:
        self.model, self.recorder = model, graphs
        self.operations: Operations = TorchOperations() if operations is None else operations
        self.drafter: Drafter = Nothing() if drafter is None else drafter
        self.acceptance: Acceptance = Greedy() if acceptance is None else acceptance
        self.acceptance.check(self.drafter)
        self.drafter.check(model)
        self.target = Decoder(
            model,
            Plain() if method is None else method,
            self.operations,
            slots=slots,
            cache=cache,
            window=self.drafter.nodes,
            memory=memory,
        )
        self.slots, self.cache = slots, cache
        self.busy = False
        self.sequences: Sequences | None = None
        self.graphs: Graphs | None = None
        self.rounds: deque[Round[Request]] = deque()
        self.drafter.attach(self.target)

    def generate(
        self, prompts: Sequence[Sequence[int]], settings: Settings, keys: Sequence[int] | None = None
    ) -> list[Result]:
        """The results of all prompts, in their order.

        `keys` name the requests (None: 0, 1, ..): the noise of sampling follows the key, not the row or the batch.

        Raises: EmptyWindow, ParameterError, LengthError, before any work.
        """
        found: dict[int, Result] = dict(self.stream(prompts, settings, keys))
        return [found[number] for number in range(len(prompts))]

    def stream(
        self, prompts: Sequence[Sequence[int]], settings: Settings, keys: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Result]]:
        """The number of a prompt and its result, as they end. Raises: as `generate`; SlotError beside another open stream."""
        for ended in self.turns(prompts, settings, keys):
            yield from ended

    @torch.no_grad()
    def turns(
        self, prompts: Sequence[Sequence[int]], settings: Settings, keys: Sequence[int] | None = None
    ) -> Iterator[list[tuple[int, Result]]]:
        """The same step by step: behind each step what has ended."""
        self.check(prompts, settings)
        names = range(len(prompts)) if keys is None else keys
        if len(names) != len(prompts):
            raise ParameterError(f"{len(prompts)} prompts came with {len(names)} keys; give one for each, or none")
        waiting = [Request(n, key, list(prompt)) for n, (key, prompt) in enumerate(zip(names, prompts, strict=True))]
        running: dict[int, Request] = {}
        sequences = self.open(settings)
        try:
            while waiting or running or self.rounds:
                self.join(waiting, running, sequences, settings)
                if running:
                    self.step(running, sequences)
                ended: list[tuple[int, Result]] = []
                while len(self.rounds) > (1 if running and self.graphs is not None else 0):
                    ended += self.leave(running, settings)
                yield ended
        finally:
            self.close()

    def open(self, settings: Settings) -> Sequences:
        """All slots for one stream. Raises: SlotError while another holds them."""
        if self.busy:
            raise SlotError("another stream of this engine holds its slots; exhaust or close it, or build a second engine")
        self.busy = True
        return self.begin(settings)

    def close(self) -> None:
        self.busy = False

    @torch.no_grad()
    def prepare(self, settings: Settings) -> None:
        """Record the steps of all numbers of rows and all shapes of the drafter, so that no request waits for a recording.

        Without graphs there is nothing to record; a drafter on the host, or one that does not list its shapes, has its steps
        recorded as they come.

        Raises: SlotError as `open`.
        """
        self.open(settings)
        if self.graphs is not None and self.drafter.on_device:
            batches = sorted({self.padded(n) for n in range(1, self.slots + 1)})
            for shape in self.drafter.every_shape():
                for rows, behind in product(batches, self.target.every_behind()):
                    self.graphs.step(self.rows([-1] * rows), behind, shape)
        self.close()

    def padded(self, running: int) -> int:
        """The rows of a step of so many sequences: the next power of two, or every slot."""
        return min(self.slots, 1 << (running - 1).bit_length())

    def begin(self, settings: Settings) -> Sequences:
        """No sequence in any slot. The tensors stay where they are, and graphs with them, while the ends stay the same."""
        ends = torch.tensor(settings.eos, dtype=torch.int64)
        stops = tuple(torch.tensor(run, dtype=torch.int64) for run in settings.stop)
        if self.sequences is None or not self.sequences.ends_at(ends, stops):
            length = self.cache + self.target.window
            self.sequences = new_sequences(self.slots, length, settings.eos, settings.stop, self.model.device)
            self.graphs = None if self.recorder is None else Graphs(self.recorder, self, self.sequences)
        self.sequences.ended.fill_(True)
        self.rounds.clear()
        return self.sequences

    def join(self, waiting: list[Request], running: dict[int, Request], sequences: Sequences, settings: Settings) -> None:
        """Waiting requests into free slots, prefilled together."""
        free = [slot for slot in range(self.slots) if slot not in running][: len(waiting)]
        if not free:
            return
        joining = [waiting.pop(0) for _ in free]
        for slot, request in zip(free, joining, strict=True):
            running[slot] = request
            sequences.add(slot, request.prompt, settings.budget, request.key)
        self.target.prefill([request.prompt for request in joining], free)
        self.drafter.start(sequences, self.rows(free))

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        """One window of every running sequence, (1) to (4); what became of it is the last of `rounds`."""
        slots = self.rows(self.batch(running))
        shape = self.drafter.choose_shape(len(running))
        if self.graphs is not None:
            proposal, verdict = self.graphs.step(slots, self.target.behind(slots), shape)
        else:
            proposal = self.drafter.propose(sequences, awake(sequences, slots))  # (1)
            verdict = self.judge(proposal, sequences)
        self.drafter.observe(sequences, proposal, verdict)
        self.rounds.append(launched(running, verdict, sequences, shape))

    def judge(self, proposal: Proposal, sequences: Sequences) -> Verdict:
        """(2) to (4)."""
        feed = self.target.feed(proposal.window, sequences, fits=True)  # as `check` has counted
        logits = self.target.verify(feed)  # (2)
        verdict = self.acceptance(proposal, logits, sequences, self.operations)  # (3)
        self.target.commit(feed, verdict)  # (4)
        sequences.commit(verdict, self.operations)
        return verdict

    def leave(self, running: dict[int, Request], settings: Settings) -> Iterator[tuple[int, Result]]:
        """What the oldest round said: tokens to their requests, and those that have ended out of their slots."""
        done, came, last = [], list[int](), self.rounds.popleft()
        for slot, request, tokens, ended in last.read():
            if running.get(slot) is not request:
                continue
            if tokens is not None:
                came.append(len(tokens))
                request.advanced.append(len(tokens))
                request.output += tokens
                if not tokens and not ended:  # its drafter gave a window without a root, and would again
                    ended = self.stopped(slot)
            if not ended:
                continue
            done.append(slot)
            output = tuple(running.pop(slot).output)
            failed = request.advanced[-1:] == [0]  # its logits were no numbers
            yield request.number, Result(output, "failed" if failed else finish(output, settings), request.statistics)
        if done:
            self.drafter.release(self.rows(done))
        self.drafter.read_round(last.shape, came)

    def stopped(self, slot: int) -> bool:
        """A sequence that can emit nothing has ended."""
        assert self.sequences is not None
        self.sequences.ended[slot] = True
        return True

    def batch(self, running: dict[int, Request]) -> list[int]:
        """The rows of a step: every slot, or, over graphs, those that run, up to the next power of two."""
        if self.graphs is None:
            return [slot if slot in running else -1 for slot in range(self.slots)]
        return sorted(running) + [-1] * (self.padded(len(running)) - len(running))

    def rows(self, slots: list[int]) -> Tensor:
        return sent(slots, self.model.device)

    def check(self, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
        """Raises: EmptyWindow, ParameterError, LengthError."""
        vocabulary = self.model.config.vocabulary
        for number, prompt in enumerate(prompts):
            if not len(prompt):
                raise EmptyWindow(f"prompt {number} came without tokens; each needs one, the first root")
            bad = [token for token in prompt if not 0 <= token < vocabulary]
            if bad:
                raise ParameterError(f"prompt {number} holds token {bad[0]}, but the vocabulary is 0 to {vocabulary - 1}")
            needed = len(prompt) + settings.budget + self.target.window - 1
            if needed > self.cache:
                raise LengthError(
                    f"prompt {number} with {len(prompt)} tokens and a budget of {settings.budget} needs {needed} places, "
                    f"but a slot holds {self.cache}; build the engine with cache={needed}"
                )
