"""The parts of an engine by their names on the command line."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ssmspec_ref.errors import ParameterError, Unsupported
from ssmspec_ref.options.words import nearest

from ..accept import Acceptance
from ..accept.greedy import Greedy
from ..accept.multi_step import MultiStep
from ..accept.naive import Naive
from ..accept.rejection import Rejection
from ..draft import Drafter
from ..draft.bandit import BanditDrafter
from ..draft.beam import BeamDrafter
from ..draft.bigrams import bigram_table
from ..draft.chooser import chosen as chosen_among
from ..draft.model import ModelDrafter
from ..draft.ngram import NGram, PromptLookup
from ..draft.nothing import Nothing
from ..draft.several import Several
from ..draft.shapes import TREE_A, branches, chain
from ..draft.text import TextDrafter
from ..engine.sampling import Sampling
from ..methods import Method
from ..methods.activation_replay import ActivationReplay
from ..methods.joint import Joint, JointByLag
from ..methods.plain import Plain
from ..methods.replay_buffer import ReplayBuffer
from ..methods.snapshots import Snapshots
from ..methods.tree import Tree
from ..models.model import Model
from ..models.tokenizer import Bare
from ..operations import Operations
from ..operations.torch_ops import TorchOperations

METHODS: dict[str, Callable[[int], Method]] = {
    "plain": lambda rows: Plain(),
    "snapshots": Snapshots,
    "joint": Joint,
    "joint-by-lag": JointByLag,
    "activation-replay": ActivationReplay,
    "replay-buffer": lambda rows: ReplayBuffer(),
    "tree": lambda rows: Tree(),
}
"""Methods by the number of rows that a drafter proposes for each sequence."""
SAMPLED: dict[str, Callable[[Sampling, int], Acceptance]] = {
    "rejection": Rejection,
    "multi-step": MultiStep,
    "naive": Naive,
}
ACCEPTANCES = ("greedy", *SAMPLED)
DRAFTERS = ("ngram", "ngram+bigram", "lookup")
MODES = ("bitwise", "fast")


def chosen(kind: str, name: str, among: Any) -> str:
    """The name, if it is listed. Raises: ParameterError for one that is not."""
    found = name.replace(" ", "-").replace("_", "-")
    if found not in among:
        raise ParameterError(f"{kind} {name!r} does not exist{nearest(name, among)}; give one of {', '.join(among)}")
    return found


@dataclass(frozen=True)
class Drafting:
    """How much is drafted: `drafts` tokens in a chain, `rows` chains for each sequence, or a tree.

    `tree` is "a" (tree A), children by level as "3,2,1", several of these for a bandit as "a/3,2,1", or beams and steps as
    "2x4"; for n-grams the chains that are merged. `samples` says that drafts are drawn from the drafter's distribution, for
    an acceptance rule that needs it. `texts` are the drafter's and the target's tokenizers if they differ. `choose` makes the
    engine choose how much is drafted, up to this.
    """

    drafts: int = 4
    rows: int = 1
    tree: str | None = None
    samples: bool = False
    sampling: Sampling | None = None
    seed: int = 0
    slots: int = 8
    cache: int = 2048
    texts: tuple[Bare, Bare] | None = None
    choose: bool = False

    @property
    def room(self) -> dict[str, Any]:
        return {"sampling": self.sampling, "slots": self.slots, "cache": self.cache}


def is_folder(drafter: Any) -> bool:
    """Whether the drafter is given as a checkpoint folder."""
    return isinstance(drafter, str | Path) and str(drafter) not in DRAFTERS


def drafter(given: Any, target: Model, draft: Model | None, drafting: Drafting, operations: Operations) -> Drafter:
    """The given drafter, or the one with this name, or one on a checkpoint's model; of a dict one that requests choose from.

    Raises: ParameterError, Unsupported, and the errors of the drafter.
    """
    if drafting.choose:
        found: Drafter = drafter(given, target, draft, replace(drafting, choose=False), operations)
        if isinstance(found, Nothing):
            raise ParameterError(
                "choose was given, but no drafter, so there is nothing to choose from; give one, or omit choose"
            )
        return chosen_among(found)
    if isinstance(given, dict):
        return Several({name: drafter(one, target, draft, drafting, operations) for name, one in given.items()})
    shaped = [
        f"{name}={value}" for name, value in (("tree", drafting.tree), ("rows", drafting.rows)) if value not in (None, 1)
    ]
    if shaped and (given is None or given == "lookup" or isinstance(given, Drafter)):
        which = "no drafter was given" if given is None else f"the drafter {given} has a fixed shape"
        raise ParameterError(f"{', '.join(shaped)} has no use: {which}; omit it, or give ngram or a checkpoint's folder")
    if given is None:
        found = Nothing()
    elif given == "lookup":
        found = PromptLookup(drafting.drafts)
    elif given in ("ngram", "ngram+bigram"):
        found = _ngram(target, drafting, operations, given == "ngram+bigram")
    elif draft is not None and drafting.texts is not None:
        found = _text_drafter(draft, drafting, operations)
    elif draft is not None:
        found = _model_drafter(draft, drafting, operations)
    else:
        found = given
    if not isinstance(found, Drafter):
        raise ParameterError(f"drafter is {found!r}; it must be a name, a folder, or a draft.Drafter")
    found.check(target)
    return found


def _ngram(target: Model, drafting: Drafting, operations: Operations, bigram: bool) -> Drafter:
    rows = drafting.rows if drafting.tree is None else _chains(drafting.tree)
    table = None
    if bigram and target.device.type == "meta":  # counted only
        table = torch.empty((target.config.vocabulary, rows, drafting.drafts), dtype=torch.int64, device="meta")
    elif bigram:
        table = bigram_table(target, rows, drafting.drafts, operations)
    return NGram(drafting.drafts, rows, table, trees=drafting.tree is not None)


def _chains(tree: str) -> int:
    """Raises: ParameterError."""
    if not tree.isdecimal():
        raise ParameterError(
            f"tree is {tree!r}; the drafter ngram branches at the root only: give its number of chains, as 4"
        )
    return int(tree)


def _text_drafter(draft: Model, drafting: Drafting, operations: Operations) -> Drafter:
    """A text has no more of the drafter's tokens than bytes, and a target's token rarely has as many as 8 bytes."""
    if drafting.tree is not None or drafting.rows > 1:
        raise Unsupported(
            "the drafter has another tokenizer than the target and drafts one chain of text; leave out tree and rows"
        )
    assert drafting.texts is not None
    own, target = drafting.texts
    return TextDrafter(draft, own, target, drafting.drafts, operations, slots=drafting.slots, cache=8 * drafting.cache)


def _model_drafter(draft: Model, drafting: Drafting, operations: Operations) -> Drafter:
    if drafting.rows > 1:
        raise Unsupported(f"rows is {drafting.rows}, but a model drafts one chain or tree; give a tree for more")
    tree, room = drafting.tree, drafting.room
    if tree is not None and "x" in tree:
        beams, steps = _counts(tree.replace("x", ","), 2)
        return BeamDrafter(draft, beams, steps, operations, **room)
    law = "iid" if tree is None else "without_replacement"
    room |= {"choose": law if drafting.samples else "top", "seed": drafting.seed}
    if tree is None:
        return ModelDrafter(draft, chain(drafting.drafts), operations, **room)
    if "/" in tree:
        return BanditDrafter(draft, [_parents(part) for part in tree.split("/")], operations, **room)
    return ModelDrafter(draft, _parents(tree), operations, trees=True, **room)


def _parents(tree: str) -> tuple[int, ...]:
    return TREE_A if tree == "a" else branches(_counts(tree))


def _counts(text: str, wanted: int | None = None) -> list[int]:
    """Raises: ParameterError."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or wanted not in (None, len(parts)):
        needed = "a (tree A), children by level as 3,2,1, several of these as a/2,2, or beams and steps as 2x4"
        raise ParameterError(f"tree is {text!r}; give {needed}")
    return [int(part) for part in parts]


def method(name: str | None, drafter: Drafter) -> Method:
    """The method of a name; None means plain without drafts, tree for trees, otherwise activation replay.

    Raises: ParameterError.
    """
    return METHODS[method_name(name, drafter)](drafter.drafts)


def method_name(name: str | None, drafter: Drafter) -> str:
    """The name of the method; None means as for `method`. Raises: ParameterError."""
    if name is None:
        return "plain" if drafter.nodes == 1 else "tree" if drafter.trees else "activation-replay"
    return chosen("method", name, METHODS)


def acceptance(name: str | None, sampling: Sampling | None, seed: int = 0) -> Acceptance:
    """The rule of a name; None means greedy if nothing is sampled, otherwise multi-step.

    Raises: ParameterError (greedy with sampling settings, which it would ignore).
    """
    if name is None:
        name = "greedy" if sampling is None else "multi-step"
    name = chosen("acceptance rule", name, ACCEPTANCES)
    if name != "greedy":
        return SAMPLED[name](Sampling() if sampling is None else sampling, seed)
    if sampling is not None:
        raise ParameterError(f"greedy acceptance does not sample, but {sampling} is set; give {', '.join(SAMPLED)} for it")
    return Greedy()


def check_fit(drafter: Drafter, rule: Acceptance, made: Method) -> None:
    """Raises: Unsupported, ParameterError if rule or method does not support what the drafter proposes."""
    rule.check(drafter)
    if isinstance(drafter, Nothing) and type(made) is not Plain:
        raise Unsupported(
            f"the method {made.name} verifies drafts, but no drafter was given; give ngram, lookup or a checkpoint's folder, "
            "or leave out the method"
        )
    if drafter.trees and not made.trees:
        raise Unsupported(f"the drafter proposes trees, but {made.name} verifies chains; use the method tree")
    if made.trees and not drafter.trees and drafter.nodes > 1:
        raise Unsupported("the method tree verifies trees, but the drafter proposes chains; use activation-replay")
    if drafter.drafts != made.drafts:
        rows = drafter.drafts
        raise Unsupported(f"the drafter proposes {rows} rows for each sequence, which the method {made.name} does not take")


def operations(mode: str, device: str, kernels: bool | None = None) -> Operations:
    """The Triton kernels on a GPU, plain torch operations elsewhere, unless `kernels` says otherwise.

    Raises: ParameterError.
    """
    bitwise = chosen("mode", mode, MODES) == "bitwise"
    if kernels is None:
        kernels = device.startswith("cuda")
    if not kernels:
        return TorchOperations(bitwise, windows=not bitwise)
    from ..operations.triton_ops import TritonOperations

    return TritonOperations(bitwise)
