"""One model's sequences under one method: prefill, verify a window, commit what was accepted, fork, release."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ssmspec_ref.errors import EmptyWindow, LengthError, SlotError

from .handover import Held, put_in, take_out
from .layers.attention import Attention
from .layers.linear import Product
from .layers.rotary import Positions
from .methods import Method
from .model import Mixer, Model, head, through
from .operations import Operations, Rows
from .operations.slots import index
from .prefill import CHUNK, prefill
from .sequences import Sequences
from .state import Pools, check_memory
from .window import Feed, Verdict, Window


class Decoder:
    """`slots` sequences of at most `cache` tokens, windows of at most `window` tokens.

    Units: `memory` is the bytes that the pools may take.
    Raises: Unsupported (the method is not defined here), MemoryRefused, before anything is taken.
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
        """Prompts into free slots: all but their last token, the first root.

        Raises: SlotError, EmptyWindow, LengthError for a prompt longer than the cache or a slot too many, before any work.
        """
        self.check_slots(slots)
        if len(prompts) != len(slots):
            raise LengthError(f"{len(prompts)} prompts came with {len(slots)} slots; give one for each")
        for prompt in prompts:
            if not len(prompt):
                raise EmptyWindow("a prompt came without tokens; each needs one, the first root")
            if len(prompt) > self.cache:
                raise LengthError(
                    f"a prompt came with {len(prompt)} tokens, but a slot holds {self.cache}; give a longer cache"
                )
        self.judged = None
        prefill(self.model, self.pools, self.method, prompts, slots, self.operations, self.chunk)

    def check_slots(self, slots: Sequence[int]) -> None:
        """Raises: SlotError for a slot outside the pools, or one that is named twice."""
        outside = [slot for slot in slots if not 0 <= slot < self.slots]
        twice = [slot for slot in set(slots) if slots.count(slot) > 1]
        if outside or twice:
            named = f"slot {outside[0]} was named" if outside else f"slot {twice[0]} was named twice"
            raise SlotError(f"{named}, but there are the slots 0 to {self.slots - 1}; name each of them once")

    def behind(self, slots: Tensor) -> int:
        """The room in front of the roots of the next window of these rows; the host may wait for it."""
        return self.method.behind(self.pools, slots)

    def every_behind(self) -> Iterable[int]:
        """All that `behind` may say."""
        return self.method.every_behind(self.pools)

    def feed(self, window: Window, sequences: Sequences, *, fits: bool = False) -> Feed:
        """`fits` says that the caller has counted, as an engine does once for each request: otherwise the lengths are read,
        for which the host waits.

        Raises: LengthError for a window that reaches beyond the cache, before anything is written.
        """
        if not fits:
            self.check_room(window)
        return self.method.feed(self.pools, window, sequences, self.operations)

    def check_room(self, window: Window) -> None:
        """Raises: LengthError."""
        real = window.live()
        needed = torch.where(real.any(1), self.pools.length[index(window.slots)] + real.sum(1), 0)
        places = self.cache + self.window - 1
        if len(needed) and int(needed.max()) > places:
            row = int(needed.argmax())
            count, slot = int(real[row].sum()), int(window.slots[row])
            raise LengthError(
                f"a window of {count} tokens came for slot {slot}, which holds {int(needed[row]) - count} and has {places} "
                f"places; build the decoder with cache={int(needed[row]) - self.window + 1}"
            )

    def hidden(self, feed: Feed) -> Tensor:
        """What the head reads after each token of a feed; no length moves."""
        operations, pools, method, positions = self.operations, self.pools, self.method, Positions(feed.positions)

        def mixed(layer: int, mixer: Mixer, u: Rows) -> Product:
            if isinstance(mixer, Attention):
                q, k, v, gate = mixer.inputs(u, positions, operations)
                return mixer.output(method.attend(pools, layer, mixer, q, k, v, feed, operations), gate, operations)
            pre, gates = mixer.inputs(u, operations, method.room(pools, layer, mixer, feed))
            y = method.recur(pools, layer, mixer, pre, gates, feed, operations)
            return mixer.output(y, gates, operations)  # type: ignore[arg-type]

        return through(self.model, feed.tokens, mixed, operations)

    def verify(self, feed: Feed) -> Tensor:
        """The logits (b, t, i) at the window's own tokens, in fp32."""
        self.judged = feed
        x, t = self.hidden(feed), feed.window.tokens.shape[1]
        if feed.lag is not None:
            at = feed.lag[:, None] + torch.arange(t, device=x.device)
            at = at.clamp_max(x.shape[1] - 1)
            x = torch.gather(x, 1, at[..., None].expand(-1, -1, x.shape[2]))
        self.read = x  # what drafting heads go on from
        return head(self.model, x, self.operations)

    def commit(self, feed: Feed, verdict: Verdict) -> None:
        """Root and accepted drafts enter every layer."""
        self.judged = None
        self.method.commit(self.pools, feed, verdict, self.operations)

    def snapshot(self, slot: int, sequences: Sequences) -> Held:
        """All that a sequence needs to go on, here or under another method.

        Raises: SlotError between a window of the sequence and its verdict, where what it holds is neither before nor after.
        """
        if self.judged is not None and bool((self.judged.slots == slot).any()):
            raise SlotError(f"slot {slot} has a window that is verified and not committed; commit it, then take the sequence")
        return take_out(self, slot, sequences)

    def restore(self, slot: int, held: Held) -> None:
        """A sequence into a free slot. Raises: SlotError, LengthError."""
        self.check_slots([slot])
        put_in(self, slot, held)

    def fork(self, slot: int, to: int, sequences: Sequences) -> None:
        """The sequence of a slot in another slot too; its tokens are copied. Raises: SlotError as `snapshot`."""
        self.restore(to, self.snapshot(slot, sequences))
        sequences.copy(slot, to)

    def release(self, slot: int) -> None:
        """A slot is free again; what it holds stays until the next sequence begins there."""
        self.method.start(self.pools, torch.tensor([slot], device=self.model.device))
