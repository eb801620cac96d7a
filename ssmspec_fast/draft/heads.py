"""Heads on the target: each predicts one token after the root, from the input of the target's own head.

    x    = the input of the target's head where it chose the root, e the root's embedding   (1)
    h_k  = x + silu(W_k [x | e])                                                           (2)
    q_k  = the distribution of token k after the root, by the target's head from h_k        (3)

The distributions do not depend on each other's tokens, so a chain drawn from q_1, q_2, .. can be verified by rejection
sampling. The window after a prompt, which computes no logits, is a root alone.
Source: the shape of Medusa (arXiv:2401.10774), section 2.1, with the root's embedding as in multi-token prediction.
"""

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError, ShapeMismatch

from ..accept.noise import DRAW, check_seed, uniforms
from ..accept.processors import ORDERED, process, rules_of
from ..accept.sampled import pick
from ..engine.decoder import Decoder
from ..engine.sampling import Sampling
from ..engine.sequences import Sequences
from ..engine.window import Proposal, Verdict, Window
from ..models.model import Model, head
from ..operations.slots import index, put
from . import Drafter
from .model import CHOICES, INDEPENDENT


class HeadDrafter(Drafter):
    """`W` (k, u, 2 u) of a target of width u; `choose` is top or iid; `slots` at least as many as the engine's.

    Raises: ShapeMismatch (W of another target), ParameterError (an unknown choice, or penalties, which it does not apply).
    """

    on_device = follows = True

    def __init__(
        self,
        target: Model,
        W: Tensor,
        *,
        choose: str = "top",
        sampling: Sampling | None = None,
        seed: int = 0,
        slots: int = 8,
    ) -> None:
        check_seed(seed)
        width = target.embedding.shape[1]
        if W.dim() != 3 or len(W) < 1 or W.shape[1:] != (width, 2 * width):
            raise ShapeMismatch(f"W has shape {tuple(W.shape)}; give (heads, {width}, {2 * width}), at least one head")
        if choose not in INDEPENDENT:
            raise ParameterError(f"choose is {choose!r}; it must be top or iid")
        self.sampling = Sampling() if sampling is None else sampling
        if self.sampling.remembers:
            raise ParameterError("heads draft without penalties; leave them to the target, or draft with a model")
        self.target, self.W, self.seed, self.nodes = target, W, seed, 1 + len(W)
        self.law = CHOICES[choose].law
        self.x = torch.zeros((slots, width), dtype=target.dtype, device=target.device)
        self.known = torch.zeros(slots, dtype=torch.bool, device=target.device)
        self.decoder_of_target: Decoder | None = None

    @property
    def held(self) -> int:
        return self.x.nbytes + self.known.nbytes

    def attach(self, decoder: Decoder) -> None:
        """Receives the target's decoder, whose `read` is (1). Raises: ParameterError for one with more slots."""
        if decoder.slots > len(self.x):
            raise ParameterError(
                f"the engine has {decoder.slots} slots, but the drafter {len(self.x)}; build both with the same number"
            )
        self.decoder_of_target = decoder

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        put(self.known, slots, torch.zeros_like(slots, dtype=torch.bool))

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        at, roots = index(slots), sequences.roots(slots)
        logits = self.logits(self.x[at], self.target.embedding[roots])
        law = process(logits, rules_of(sequences, slots, self.sampling))  # (3)
        tokens = logits.argmax(-1)
        if self.law != "point_mass":
            nodes = torch.arange(1, self.nodes, device=slots.device)
            seed = sequences.seeds(at, self.seed)
            seed = seed if isinstance(seed, int) else seed[:, None]
            u = uniforms(seed, sequences.request[at][:, None], sequences.length[at][:, None], nodes, DRAW)
            tokens = pick(law.double(), ORDERED.sum(law.double()), u.double())
        lengths = torch.where(self.known[at] & (slots >= 0), self.nodes, 1)
        window = Window(torch.cat([roots[:, None], tokens], dim=1), slots, lengths)
        q = None if self.law == "point_mass" else torch.cat([law, torch.zeros_like(law[:, :1])], dim=1)
        return Proposal(window, q, self.law)

    def logits(self, x: Tensor, e: Tensor) -> Tensor:
        """The logits of every head (b, k, i): (2), then the target's head."""
        operations = self.decoder_of_target.operations if self.decoder_of_target else None
        assert operations is not None, "an engine must attach its decoder first"
        both = torch.cat([x, e.to(x.dtype)], dim=-1)
        h = torch.stack([x + operations.act(operations.linear(both, W), "silu") for W in self.W], dim=1)  # (2)
        return head(self.target, h, operations)

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None:
        """Stores the input of the target's head at the last accepted node (1)."""
        assert self.decoder_of_target is not None
        read, run = self.decoder_of_target.read, verdict.run
        last = run.path.gather(1, (run.advanced - 1).clamp_min(0)[:, None])[:, 0].clamp_min(0)
        put(self.x, verdict.slots, read[verdict.row, last])
        put(self.known, verdict.slots, run.advanced > 0)
