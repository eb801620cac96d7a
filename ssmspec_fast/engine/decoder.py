"""The sequences of one model under one method: prefill, verify a window, commit what was accepted, fork, release."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ssmspec_ref.errors import EmptyWindow, LengthError, SlotError

from ..layers.attention import Attention
from ..layers.linear import Product
from ..layers.rotary import Positions
from ..methods import Method
from ..methods.plain import Plain
from ..models.model import Mixer, Model, head, through
from ..operations import Operations, Rows
from .prefill import CHUNK, Piece, prefill, read
from .sequences import Sequences
from .state import Cache, Pools, SequenceState, check_memory
from .window import Feed, Verdict, Window

PLAIN = Plain()


class Decoder:
    """`slots` sequences of at most `cache` tokens, windows of at most `window` tokens.

    Units: `memory` is the most bytes that the pools may take.
    Raises: Unsupported (the method does not support this model or window), MemoryRefused, before anything is allocated.
    """

    def __init__(
        self,
        model: Model,
        method: Method,
        operations: Operations,
        *,
        slots: int,
        cache: int,
        window: int = 1,
        memory: int | None = None,
        chunk: int = CHUNK,
    ) -> None:
        method.check(model, window, operations)
        self.model, self.method, self.operations, self.chunk = model, method, operations, chunk
        self.slots, self.cache, self.window = slots, cache, window
        counted = method.new_pools(model, slots, cache, window, operations, device="meta").bytes
        check_memory(f"{slots} slots of {cache} tokens under {method.name}", counted, memory)
        self.pools: Pools = method.new_pools(model, slots, cache, window, operations)
        self.judged: Feed | None = None  # between its verification and its verdict

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> None:
        """Reads prompts into free slots: all tokens but the last, which is the first root.

        Raises: SlotError, EmptyWindow, LengthError for a prompt longer than the cache or too few slots, before any work.
        """
        self.check_slots(slots)
        if len(prompts) != len(slots):
            raise LengthError(f"there are {len(prompts)} prompts and {len(slots)} slots; give one slot for each prompt")
        for prompt in prompts:
            if not len(prompt):
                raise EmptyWindow("a prompt is empty; each needs at least one token")
            if len(prompt) > self.cache:
                raise LengthError(
                    f"a prompt has {len(prompt)} tokens, but a slot holds {self.cache}; build the decoder with a longer cache"
                )
        self.judged = None
        prefill(self.model, self.pools, self.method, prompts, slots, self.operations, self.chunk)

    def read_pieces(self, pieces: Sequence[Piece]) -> None:
        """Reads pieces of prompts, one of each, in one run; the caller has checked that they fit."""
        self.judged = None
        read(self.model, self.pools, self.method, pieces, self.operations)

    def check_slots(self, slots: Sequence[int]) -> None:
        """Raises: SlotError for a slot outside the pools, or one that is given twice."""
        outside = [slot for slot in slots if not 0 <= slot < self.slots]
        twice = [slot for slot in set(slots) if slots.count(slot) > 1]
        if outside or twice:
            named = f"slot {outside[0]} was named" if outside else f"slot {twice[0]} was named twice"
            raise SlotError(f"{named}, but the slots are 0 to {self.slots - 1}; name each at most once")

    def refed(self, slots: Tensor) -> int:
        """The places in front of the roots of the next window of these rows; the host may wait for it."""
        return self.method.refed(self.pools, slots)

    def every_refed(self) -> Iterable[int]:
        """All values that `refed` may return."""
        return self.method.every_refed(self.pools)

    def feed(self, window: Window, sequences: Sequences, *, fits: bool = False) -> Feed:
        """The window as the layers receive it. `fits` says that the caller has checked the lengths, as an engine does once
        for each request; otherwise they are read here, and the host waits.

        Raises: LengthError for a window that does not fit the cache, before anything is written.
        """
        if not fits:
            self.check_room(window)
        return self.taking(window).feed(self.pools, window, sequences, self.operations)

    def taking(self, window: Window) -> Method:
        """What takes a window: the method, or plain decoding if the window is settled and the method lets it."""
        return PLAIN if window.settled and self.method.settles else self.method

    def check_room(self, window: Window) -> None:
        """Raises: LengthError for a window that does not fit the cache."""
        real = window.live()
        needed = torch.where(real.any(1), self.method.committed(self.pools, window.slots) + real.sum(1), 0)
        places = self.cache + self.window - 1
        if len(needed) and int(needed.max()) > places:
            row = int(needed.argmax())
            count, slot = int(real[row].sum()), int(window.slots[row])
            raise LengthError(
                f"a window of {count} tokens does not fit slot {slot}, "
                f"which holds {int(needed[row]) - count} and has {places} "
                f"places; build the decoder with cache={int(needed[row]) - self.window + 1}"
            )

    def hidden(self, feed: Feed) -> Tensor:
        """The input of the output head after each token of a feed; the lengths do not change."""
        operations, pools, positions = self.operations, self.pools, Positions(feed.positions)
        method = self.taking(feed.window)

        def mixed(layer: int, mixer: Mixer, u: Rows) -> Product:
            if isinstance(mixer, Attention):
                q, k, v, gate = mixer.inputs(u, positions, operations)
                return mixer.output(method.attend(pools, layer, mixer, q, k, v, feed, operations), gate, operations)
            pre, gates = mixer.inputs(u, operations, method.room(pools, layer, mixer, feed))
            y = method.recur(pools, layer, mixer, pre, gates, feed, operations)
            return mixer.output(y, gates, operations)

        return through(self.model, feed.tokens, mixed, operations)

    def verify(self, feed: Feed) -> Tensor:
        """The logits (b, t, i) at the window's own tokens, in fp32."""
        self.judged = feed
        x, t = self.hidden(feed), feed.window.tokens.shape[1]
        if feed.lag is not None:
            at = feed.lag[:, None] + torch.arange(t, device=x.device)
            at = at.clamp_max(x.shape[1] - 1)
            x = torch.gather(x, 1, at[..., None].expand(-1, -1, x.shape[2]))
        self.read = x  # the input of drafting heads
        return head(self.model, x, self.operations)

    def commit(self, feed: Feed, verdict: Verdict) -> None:
        """Enters the root and the accepted drafts into every layer."""
        self.judged = None
        self.taking(feed.window).commit(self.pools, feed, verdict, self.operations)

    def snapshot(self, slot: int, sequences: Sequences) -> SequenceState:
        """All that a sequence needs to continue, here or under another method.

        Raises: SlotError between a window of the sequence and its verdict, when its state is not settled.
        """
        if self.judged is not None and bool((self.judged.slots == slot).any()):
            raise SlotError(f"slot {slot} has a window that is verified but not committed; commit it first")
        return self.settled(slot, sequences)

    def settled(self, slot: int, sequences: Sequences) -> SequenceState:
        """A copy of a slot's state, brought up to date with all its committed tokens, which no method's records add to."""
        pools, slots = self.pools, torch.tensor([slot], device=self.model.device)
        self.method.settle(pools, slots, self.model, sequences, self.operations)
        place, length = int(self.method.places(pools, slots)), int(pools.length[slot])
        pairs = (
            (state.K[slot, :length], state.V[slot, :length]) if isinstance(state, Cache) else (state.M[slot], state.S[place])
            for state in pools.layers
        )
        return SequenceState(tuple((a.clone(), b.clone()) for a, b in pairs), length)

    def restore(self, slot: int, held: SequenceState) -> None:
        """Writes a sequence into a free slot of a decoder of the same model, which may use any method.

        Raises: SlotError, LengthError for a sequence longer than the cache, before anything is written.
        """
        self.check_slots([slot])
        if held.length > self.cache:
            raise LengthError(
                f"the sequence has {held.length} tokens, but a slot holds {self.cache}; build the decoder with a longer cache"
            )
        pools, slots = self.pools, torch.tensor([slot], device=self.model.device)
        self.method.start(pools, slots)
        place = int(self.method.places(pools, slots))
        for state, (a, b) in zip(pools.layers, held.layers, strict=True):
            if isinstance(state, Cache):
                state.K[slot, : held.length], state.V[slot, : held.length] = a, b
            else:
                state.M[slot], state.S[place] = a, b
        pools.length[slot] = held.length

    def fork(self, slot: int, to: int, sequences: Sequences) -> None:
        """Copies the sequence of a slot, tokens included, to another slot. Raises: SlotError as `snapshot`."""
        self.restore(to, self.snapshot(slot, sequences))
        sequences.copy(slot, to)

    def release(self, slot: int) -> None:
        """Frees a slot; its contents stay until the next sequence begins there."""
        self.method.start(self.pools, torch.tensor([slot], device=self.model.device))
