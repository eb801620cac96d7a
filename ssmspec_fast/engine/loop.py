"""Prompts in, tokens out: the loop over the windows of a batch. Sequences join, end and leave at different times.

    proposal = drafter(sequences)                        (1)
    logits   = target(feed of the window)                (2)
    verdict  = acceptance(proposal, logits), cut         (3)
    commit   : states, caches, cursors; then the tokens  (4)

One step is (1) to (4) for all rows at once. Between steps, sequences that ended free their slots and waiting ones take them.
With graphs a step is one recorded list of launches (`graphs`). The host reads the result of a step after it has launched the
next one; until then a sequence that has ended is padding.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ssmspec_ref.errors import EmptyWindow, LengthError, ParameterError, SlotError

from ..accept import Acceptance
from ..accept.greedy import Greedy
from ..draft import Drafter
from ..draft.nothing import Nothing
from ..methods import Method
from ..methods.plain import Plain
from ..models.model import Model
from ..operations import Operations
from ..operations.slots import sent
from ..operations.torch_ops import TorchOperations
from .decoder import Decoder
from .graphs import Graphs, Recorder, awake
from .reading import Begun, Reading
from .requests import Request, Result, Settings, finish, tokens_of
from .rounds import Outcome, Round, launched
from .sequences import Sequences, new_sequences
from .window import Proposal, Verdict

Show: TypeAlias = Callable[[Any], None]
"""Receives every window, as `emitted_windows.EmittedWindow`."""
KEPT = 8
"""Most sets of graphs that are kept: one for each combination of settings. The least recently used one is dropped."""


class Engine:
    """A target, a drafter, a method and an acceptance rule, with room for `slots` sequences of `cache` tokens.

    With `graphs` (for example `graphs.CUDARecorder()`) steps are recorded and replayed. Between two steps at most `piece`
    tokens of prompts are read (None: whole prompts, when they join).

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
        piece: int | None = None,
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
        self.reading = None if piece is None else Reading(piece)
        self.busy, self.settled = False, True
        self.sequences: Sequences | None = None
        self.graphs: Graphs | None = None
        self.recorded: dict[Any, Graphs] = {}
        self.rounds: deque[Round[Request]] = deque()
        self.drafter.attach(self.target)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Settings | Sequence[Settings],
        keys: Sequence[int] | None = None,
        show: Show | None = None,
    ) -> list[Result]:
        """The results of all prompts, in order. `settings` is one for all prompts, or a list with one for each.

        `keys` are the requests' keys for sampling noise (None: `Settings.key`). Noise depends on seed and key, not on row or
        batch. `show` receives every window of this call.

        Raises: EmptyWindow, ParameterError, LengthError, before any work; and the errors of `show`.
        """
        found: dict[int, Result] = dict(self.stream(prompts, settings, keys, show))
        return [found[number] for number in range(len(prompts))]

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Settings | Sequence[Settings],
        keys: Sequence[int] | None = None,
        show: Show | None = None,
    ) -> Iterator[tuple[int, Result]]:
        """Yields each prompt's number and result as it ends. Raises: as `generate`; SlotError while another stream is
        open."""
        for ended in self.stream_steps(prompts, settings, keys, show):
            yield from ended

    @torch.no_grad()
    def stream_steps(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Settings | Sequence[Settings],
        keys: Sequence[int] | None = None,
        show: Show | None = None,
    ) -> Iterator[list[tuple[int, Result]]]:
        """As `stream`, step by step: yields after each step the requests that ended."""
        waiting = self.requests(prompts, settings, keys, show)
        running: dict[int, Request] = {}
        sequences = self.open(waiting[0].settings if waiting else Settings(0))
        try:
            while waiting or running or self.rounds:
                self.join(waiting, running, sequences)
                self.read(running, sequences)
                ready = self.ready(running)
                if ready:
                    self.step(ready, sequences)
                ended: list[tuple[int, Result]] = []
                while len(self.rounds) > (1 if running and self.graphs is not None else 0):
                    ended += self.leave(running)
                for request in running.values():
                    if request.fault is not None:
                        raise request.fault
                yield ended
        finally:
            self.close()

    def requests(
        self,
        prompts: Sequence[Sequence[int]],
        settings: Settings | Sequence[Settings],
        keys: Sequence[int] | None,
        show: Show | None,
    ) -> list[Request]:
        """One request for each prompt. Raises: as `generate`."""
        each = [settings] * len(prompts) if isinstance(settings, Settings) else list(settings)
        for what, given in (("settings", each), ("keys", keys)):
            if given is not None and len(given) != len(prompts):
                raise ParameterError(f"there are {len(prompts)} prompts and {len(given)} {what}; give one for each prompt")
        names = [one.key(n, None if keys is None else keys[n]) for n, one in enumerate(each)]
        return [
            Request(n, key, self.check(prompt, one, n), one, show)
            for n, (key, prompt, one) in enumerate(zip(names, prompts, each, strict=True))
        ]

    def open(self, settings: Settings) -> Sequences:
        """Reserves all slots for one stream. Raises: SlotError while another stream holds them."""
        if self.busy:
            raise SlotError("another stream of this engine is using its slots; finish or close it, or build a second engine")
        self.busy = True
        return self.begin(settings)

    def close(self) -> None:
        self.busy = False

    @torch.no_grad()
    def prepare(self, settings: Settings) -> None:
        """Records the steps for every number of rows and every shape of the drafter, so that no request waits for a
        recording.

        Does nothing without graphs. Steps are recorded on first use if the drafter runs on the host or does not list its
        shapes.

        Raises: SlotError as `open`.
        """
        self.open(settings)
        if self.graphs is not None and self.drafter.on_device:
            batches = sorted({self.padded(n) for n in range(1, self.slots + 1)})
            for shape in self.drafter.every_shape():
                for rows, refed in product(batches, self.target.every_refed()):
                    self.graphs.step(self.rows([-1] * rows), refed, shape)
                for rows in batches if self.drafter.silent(shape) else ():
                    self.settle(self.rows([-1] * rows))
        self.close()

    def padded(self, running: int) -> int:
        """The rows of a step for `running` sequences: the next power of two, or every slot."""
        return min(self.slots, 1 << (running - 1).bit_length())

    def begin(self, settings: Settings) -> Sequences:
        """Empties every slot and sets the settings used until a request begins. The tensors keep their addresses."""
        if self.sequences is None:
            self.sequences = new_sequences(self.slots, self.cache + self.target.window, (), (), self.model.device)
            self.sequences.names = self.drafter.names
        self.sequences.set(slice(None), settings)
        self.sequences.ended.fill_(True)
        self.rounds.clear()
        self.drafter.release(self.rows([*range(self.slots)]))
        if self.reading is not None:
            self.reading.forget({})
        self.ask([settings])
        return self.sequences

    def ask(self, running: Sequence[Settings]) -> None:
        """Chooses the steps to launch, and their graphs, by what the running requests need."""
        sequences = self.sequences
        if sequences is None or not running:
            return
        sequences.ask(running)
        if self.recorder is None:
            self.graphs = None
            return
        key = sequences.asked, sequences.eos.shape, sequences.stop.shape
        self.graphs = self.recorded.pop(key, None) or Graphs(self.recorder, self, sequences)
        self.recorded[key] = self.graphs
        sequences.shared = self.graphs.shared
        while len(self.recorded) > KEPT:
            del self.recorded[next(iter(self.recorded))]

    def join(self, waiting: list[Request], running: dict[int, Request], sequences: Sequences) -> None:
        """Moves waiting requests into free slots. Their prompts are read together, or by `read`."""
        free = [slot for slot in range(self.slots) if slot not in running][: len(waiting)]
        if not free:
            return
        joining = [waiting.pop(0) for _ in free]
        for slot, request in zip(free, joining, strict=True):
            running[slot] = request
            sequences.add(slot, request.prompt, request.settings.budget, request.key, request.settings)
        self.ask([request.settings for request in running.values()])
        if self.reading is not None:
            self.reading.begun |= {slot: Begun(request) for slot, request in zip(free, joining, strict=True)}
            return
        self.target.prefill([request.prompt for request in joining], free)
        self.drafter.start(sequences, self.rows(free))

    def read(self, running: dict[int, Request], sequences: Sequences) -> bool:
        """Reads the next pieces of prompts; returns whether there were any."""
        if self.reading is None:
            return False
        self.reading.forget(running)
        pieces = self.reading.pieces()
        if not pieces:
            return False
        self.target.read_pieces(pieces)
        self.drafter.read_ahead(sequences, pieces)
        whole = self.reading.read(pieces)
        if whole:
            self.drafter.start(sequences, self.rows(whole))
        return True

    def ready(self, running: dict[int, Request]) -> dict[int, Request]:
        """The requests whose prompts are read."""
        begun = {} if self.reading is None else self.reading.begun
        return {slot: request for slot, request in running.items() if slot not in begun}

    def step(self, running: dict[int, Request], sequences: Sequences) -> None:
        """One window of every sequence that is `ready`, (1) to (4); its result is the last entry of `rounds`."""
        slots = self.rows(self.batch(running))
        shape = self.drafter.choose_shape(len(running))
        silent = self.drafter.silent(shape)
        if silent and not self.settled:
            self.settle(slots)
        self.settled = silent
        if self.graphs is not None:
            proposal, verdict = self.graphs.step(slots, self.target.refed(slots), shape)
        else:
            proposal = self.proposed(sequences, slots)  # (1)
            verdict = self.judge(proposal, sequences)
        self.drafter.observe(sequences, proposal, verdict)
        self.rounds.append(launched(running, verdict, sequences, shape))

    def settle(self, slots: Tensor) -> None:
        """Brings the states up to date before a window without drafts that follows one with drafts: plain steps follow."""
        method, sequences = self.target.method, self.sequences
        if not (method.settles and method.lags) or sequences is None:
            return
        if self.graphs is not None and not method.waits:
            self.graphs.settle(slots)
        else:
            rows = slots[slots >= 0] if method.waits else slots
            method.settle(self.target.pools, rows, self.model, sequences, self.operations)

    def proposed(self, sequences: Sequences, slots: Tensor) -> Proposal:
        """(1), checked on the host because a user's drafter may be wrong. Not checked on a GPU, where the host would have to
        wait.

        Raises: ParameterError for a window that does not begin with its sequence's last token, or is longer than `nodes`.
        """
        proposal = self.drafter.propose(sequences, awake(sequences, slots))
        window = proposal.window
        if self.drafter.on_device and window.tokens.device.type != "cpu":
            return proposal
        if window.tokens.shape[1] > self.drafter.nodes:
            raise ParameterError(
                f"the drafter proposed {window.tokens.shape[1]} tokens, but declares nodes={self.drafter.nodes}"
            )
        wrong = window.live()[:, 0] & (window.tokens[:, 0] != sequences.roots(window.slots))
        if bool(wrong.any()):
            row = int(wrong.long().argmax())
            came, last = int(window.tokens[row, 0]), int(sequences.roots(window.slots)[row])
            raise ParameterError(
                f"the drafter proposed a window of slot {int(window.slots[row])} with the root {came}, but its sequence ends "
                f"with {last}; begin every window with sequences.roots(slots)"
            )
        return proposal

    def judge(self, proposal: Proposal, sequences: Sequences) -> Verdict:
        """(2) to (4)."""
        feed = self.target.feed(proposal.window, sequences, fits=True)  # as `check` has counted
        logits = self.target.verify(feed)  # (2)
        verdict = self.acceptance(proposal, logits, sequences, self.operations)  # (3)
        self.target.commit(feed, verdict)  # (4)
        sequences.commit(verdict, self.operations)
        return verdict

    def leave(self, running: dict[int, Request]) -> Iterator[tuple[int, Result]]:
        """Reads the oldest round: gives tokens to their requests and removes those that have ended from their slots."""
        done, emitted, last = [], dict[int, int](), self.rounds.popleft()
        for slot, request, tokens, ended in last.read():
            if running.get(slot) is not request:
                continue
            if tokens is not None:
                emitted[slot] = len(tokens)
                request.advanced.append(len(tokens))
                request.output += tokens
                if not tokens and not ended:  # its drafter gave a window without a root, and would do so again
                    ended = self.stopped(slot)
            if not ended:
                continue
            done.append(slot)
            output = tuple(running.pop(slot).output)
            failed = request.advanced[-1:] == [0]  # its logits were not finite
            yield request.number, Result(output, "failed" if failed else finish(output, request.settings), request.statistics)
        if done:
            self.drafter.release(self.rows(done))
            self.ask([request.settings for request in running.values()])
        self.drafter.read_round(Outcome(last.shape, len(last.running), emitted, tuple(done)))

    def stopped(self, slot: int) -> bool:
        """Ends a sequence that can emit nothing."""
        assert self.sequences is not None
        self.sequences.ended[slot] = True
        return True

    def batch(self, running: dict[int, Request]) -> list[int]:
        """The rows of a step: every slot; with graphs, the running ones padded to the next power of two."""
        if self.graphs is None:
            return [slot if slot in running else -1 for slot in range(self.slots)]
        return sorted(running) + [-1] * (self.padded(len(running)) - len(running))

    def rows(self, slots: list[int]) -> Tensor:
        return sent(slots, self.model.device)

    def check(self, prompt: Sequence[int], settings: Settings, number: int = 0) -> list[int]:
        """The tokens of a prompt, if it can be served. Raises: EmptyWindow, ParameterError, LengthError."""
        self.acceptance.takes(settings)
        self.drafter.takes(settings)
        tokens, vocabulary = list(tokens_of(f"prompt {number}", prompt)), self.model.config.vocabulary
        if not tokens:
            raise EmptyWindow(f"prompt {number} is empty; each needs at least one token")
        for what, named in ((f"prompt {number} holds", tokens), ("eos holds", settings.eos)):
            bad = [token for token in named if not 0 <= token < vocabulary]
            if bad:
                raise ParameterError(f"{what} token {bad[0]}, but the vocabulary is 0 to {vocabulary - 1}")
        if settings.sampling is not None and settings.sampling.min_tokens > 0 and len({*settings.eos}) == vocabulary:
            raise ParameterError(
                f"min_tokens is {settings.sampling.min_tokens}, but each of the {vocabulary} tokens ends the output, so that "
                "none can be the first; give fewer of them, or min_tokens 0"
            )
        needed = len(tokens) + settings.budget + self.target.window - 1
        if needed > self.cache:
            raise LengthError(
                f"prompt {number} with {len(tokens)} tokens and a budget of {settings.budget} needs {needed} places, "
                f"but a slot holds {self.cache}; build the engine with cache={needed}"
            )
        return tokens
