"""Greedy speculation is plain decoding, token for token, in the graphs and at the full sizes of the papers' models.

    plain     TOKENS tokens of ROWS sequences, plain decoding in the bitwise mode, random weights         (1)
    drafts    the tokens of (1), with other tokens at the places WRONG of every CYCLE                   (2)
    equal     the tokens of each method over (2), and those of (1)                                        (3)

Windows must be accepted whole, in part, and not at all, or (3) shows nothing. No time is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perf_gates.gpu.clock import is_compiling

from ..kernels.steps import Timing
from .engines import engine, keep, model_of
from .named import Step, tree_of

MODELS = ("mamba-in-llama-8b", "mamba2-2.7b", "nemotron-3-nano-4b", "qwen3.5-4b")
METHODS = ("snapshots", "joint", "joint-by-lag", "replay", "buffer", "tree")
TOKENS, ROWS, PROMPT, WINDOW, NODES = 64, 2, 24, 7, 13
CYCLE, WRONG = 23, (3, 4, 5, 12)
"""Three in a row, so that whole windows are rejected, and 13 right ones in a row, so that whole windows are accepted."""


@dataclass(frozen=True)
class Equality(Timing):
    """`compared` tokens, of which `differing` are not plain decoding's; windows of which none, some, all were accepted."""

    compared: int = 0
    differing: int = 0
    windows: tuple[int, int, int] = (0, 0, 0)


_plain: dict[tuple[str, int], list[tuple[int, ...]]] = {}


def cases() -> Iterator[tuple[str, str]]:
    yield from ((model, method) for model in MODELS for method in METHODS)


@torch.no_grad()
def timings(name: str, method: str, device: str = "cuda", tokens: int = TOKENS) -> list[Timing]:
    """(1) to (3) for one model and method. While kernels are compiled a few tokens are written, launch by launch."""
    keep(Step(name, method, ROWS, method, WINDOW), device)
    short = is_compiling()
    model, count = model_of(name, device), min(tokens, 8) if short else tokens
    if (name, count) not in _plain:
        _plain.clear()
        _plain[name, count] = [result.tokens for result in results(model, "plain", None, count, device)]
    right = _plain[name, count]
    known = torch.tensor([[*prompt, *row] for prompt, row in zip(prompts(), right, strict=True)], device=model.device)
    found = results(model, method, drafter_of(method, model, known), count, device)
    if short:
        return []
    pairs = [(a, b) for ours, theirs in zip(found, right, strict=True) for a, b in zip(ours.tokens, theirs, strict=True)]
    whole = WINDOW if method != "tree" else depth(tree_of(NODES)) + 1
    stood = [n for result in found for n in result.statistics.advanced[:-1]]
    windows = stood.count(1), sum(1 < n < whole for n in stood), stood.count(whole)
    return [Equality(name, method, ROWS, 0.0, 0, len(pairs), sum(a != b for a, b in pairs), windows)]


def prompts() -> list[list[int]]:
    return [[(7 * row + i) % 61 for i in range(PROMPT)] for row in range(ROWS)]


def results(model: Any, method: str, drafter: Any, tokens: int, device: str) -> Any:
    """A greedy run in bitwise mode, with graphs on a GPU."""
    cuda = device == "cuda"
    operations = engine("cli.choices", "operations")("bitwise", device)
    recorder = engine("engine.graphs", "CUDARecorder")() if cuda and not is_compiling() else None
    made = engine("bench.subjects", "METHODS")[method](1)
    sizes = {"slots": ROWS, "cache": PROMPT + tokens + NODES}
    given = engine("engine.loop", "Engine")(model, drafter, made, operations=operations, graphs=recorder, **sizes)
    return given.generate(prompts(), engine("engine.requests", "Settings")(tokens))


def depth(parents: tuple[int, ...]) -> int:
    return len(path(parents)) - 1


def path(parents: tuple[int, ...]) -> list[int]:
    """The nodes of a longest path, root first."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    found = [depths.index(max(depths))]
    while found[0]:
        found.insert(0, parents[found[0]])
    return found


def drafter_of(method: str, model: Any, known: Tensor) -> Any:
    """(2): in a tree the longest path holds these tokens, and every other node another token."""
    base, window, proposal = (
        engine("draft", "Drafter"),
        engine("engine.window", "Window"),
        engine("engine.window", "Proposal"),
    )
    parents = tree_of(NODES) if method == "tree" else tuple(range(-1, WINDOW - 1))
    on_path = path(parents)
    steps = torch.tensor([on_path.index(i) if i in on_path else depth_of(parents, i) for i in range(len(parents))])
    astray = torch.tensor([0 if i in on_path else i for i in range(len(parents))])
    wrong = torch.tensor([place in WRONG for place in range(CYCLE)])
    steps, astray, tree, wrong = (x.to(model.device) for x in (steps, astray, torch.tensor(parents), wrong))

    class Known(base):  # type: ignore[misc, valid-type]
        """Reads from the tokens that plain decoding wrote."""

        nodes, trees, on_device = len(parents), method == "tree", True

        def propose(self, sequences: Any, slots: Tensor) -> Any:
            at = slots.clamp_min(0)
            places = sequences.length[at][:, None] - 1 + steps
            read = known[sequences.request[at][:, None], places.clamp_max(known.shape[1] - 1)]
            drafts = (read + astray + wrong[places % CYCLE] * (steps > 0)) % model.config.vocabulary
            drafts[:, 0] = sequences.roots(slots)
            return proposal(window(drafts, slots, None, tree.expand(len(slots), -1) if self.trees else None))

    return Known()


def depth_of(parents: tuple[int, ...], node: int) -> int:
    return 0 if node == 0 else 1 + depth_of(parents, parents[node])
