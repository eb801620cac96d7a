"""The three tables: which model, which texts, which ways, in the order of what matters most if the time ends.

a   Mamba2-2.7B's shape with random weights, on a GPU; its tokens are forced to recorded outputs
b   a target of about 130M and drafters, trained on the machine (`training`); their own tokens
c   the Mamba-2 target that ships, 3.5M, on a CPU: its own tokens with its drafter; edited code, forced, with n-grams
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import ahead
from . import texts as sources
from .forced import table
from .judge import Judge
from .runs import Clock, Table, measured, runner
from .texts import Text, edited, recorded, spread
from .ways import Models, Way, dtype_of, engine, freed, plain_at

NGRAM = Way("n-gram, chain of 7", "ngram", 7)
LOOKUP = Way("prompt lookup, chain of 15", "lookup", 15)
TREE = Way("n-gram, tree of 3 chains of 4", "ngram", 4, tree="3")
RING = Way("n-gram, chain of 7, ring", "ngram", 7, method="replay-buffer")
BATCHES = (1, 4, 16)
MODEL_A, LENGTH = "mamba2-2.7b", 512


def both(*ways: Way) -> list[Way]:
    """Each way as it is, then chosen."""
    return [one for way in ways for one in (way, way.chosen())]


def part_a(
    folder: Path, minutes: float, device: str, held: Table, name: str = MODEL_A, length: int = LENGTH,
    counts: Sequence[int] = (16, 16, 16),
) -> None:  # fmt: skip
    """Raises: TraceError."""
    clock, every = Clock(minutes), recorded(folder, length)
    taus = [text.tau for text in every]
    held.about |= {
        "model": name, "weights": "random", "tokens": sources.KIND, "length": length, "outputs": len(every),
        "counted": {"drafts": sources.DRAFTS, "chains": sources.CHAINS, "at least": sources.AT_LEAST},
        "share": sum(tau >= sources.AT_LEAST for tau in taus) / len(taus),
        "loops": sum(text.loops for text in every), "tau": sum(taus) / len(taus),
    }  # fmt: skip
    greedy = [*both(NGRAM), TREE, RING, LOOKUP, *(way.chosen() for way in (TREE, RING, LOOKUP))]
    sampled = both(NGRAM.sampled(1.0), TREE.sampled(1.0), RING.sampled(1.0))
    blocks = [(greedy, batch, spread(every, count)) for batch, count in zip(BATCHES, counts, strict=True)]
    short = [Text(t.name, t.prompt, t.output[: length // 4], t.tau) for t in every]
    blocks += [(sampled, batch, spread(short, max(4, batch))) for batch in (BATCHES[0], BATCHES[-1])]
    weights = [6.0, 2.5, 2.0, 1.5, 1.5]
    work = [(way, batch) for ways, batch, _ in blocks for way in (plain_at(ways[0].temperature), *ways)]
    with ahead.compiling(device, ahead.random_target, name, work, forced=True) as compiled:
        models = Models(engine("bench.models", "random_model")(name, dtype_of(device), device), {})
        compiled()
    print(f"compiled, {clock.left:.0f} s left", flush=True)
    for n, (ways, batch, texts) in enumerate(blocks):
        until = clock.share(weights[n], sum(weights[n:]))
        measured(held, until, clock, ways, models, texts, batch, "recorded outputs", table(texts, device))
        if n == 0:
            held.about["texts of batch 1"] = [[text.name, text.tau, text.loops] for text in texts]
            held.about["forcing"] = own_cost(models, texts[:2], device)


def own_cost(models: Models, texts: Sequence[Text], device: str) -> dict[str, float]:
    """What forcing tokens adds to a step of plain decoding."""
    free, forced = (runner(Way("plain"), models, texts, 1, given) for given in (None, table(texts, device)))
    for _ in range(2):
        for one in (free, forced):
            one.run(texts, (0,))
    us = [1e6 * min(one.seconds[(0,)]) / len(texts[0].output) for one in (free, forced)]
    return {"us a step": us[1] - us[0], "share": us[1] / us[0] - 1}


@dataclass(frozen=True)
class Pair:
    """The sizes of part b: a target and its drafters by name, and the shares of the time in which each is trained."""

    vocabulary: int = 16384
    width: int = 768
    layers: int = 30
    drafters: tuple[tuple[str, int], ...] = (("1 layer", 1), ("2 layers", 2))
    share: float = 0.36
    share_of_drafter: float = 0.06
    rows: int = 16
    length: int = 1024


def part_b(
    minutes: float, device: str, held: Table, pair: Pair | None = None, roots: Sequence[Path] = (), prompts: int = 8,
    length: int = 256,
) -> None:  # fmt: skip
    """The weights are kept in a temporary folder while they are measured."""
    clock, pair = Clock(minutes), pair or Pair()
    blocks = pair_blocks(pair)
    work = [(way, batch) for ways, batch in blocks for way in (plain_at(ways[0].temperature), *ways)]
    with tempfile.TemporaryDirectory() as made, ahead.compiling(device, untrained, pair, work, forced=False) as compiled:
        texts = train_pair(clock, held, Path(made), minutes, device, pair, list(roots), prompts, length)
        compiled()
        print(f"trained and compiled, {clock.left:.0f} s left", flush=True)
        models, judge = loaded(Path(made), pair, device), Judge(Path(made) / "target", device, dtype_of(device), texts)
        half = len(texts) // 2
        some, weights = (texts[:half], texts[: half // 2], texts[:half], texts), [5, 2, 2, 2]
        for n, (ways, batch) in enumerate(blocks):
            until = clock.share(weights[n], sum(weights[n:]))
            measured(held, until, clock, ways, models, some[n], batch, "own text", None, judge)


def train_pair(
    clock: Clock, held: Table, folder: Path, minutes: float, device: str, pair: Pair, roots: list[Path], prompts: int,
    length: int,
) -> list[Text]:  # fmt: skip
    """Trains the target, then each drafter, into folders; returns prompts of held-out files."""
    from . import corpus, training

    text = corpus.read(roots or corpus.folders(), pair.vocabulary)
    held.about |= {
        "text": "Python's standard library and the installed packages: sources and documentation",
        "files": text.files, "bytes": text.bytes, "tokens in all": len(text.train), "length": length, "runs": [],
        "tokens": f"byte-pair encoding of {pair.vocabulary}",
    }  # fmt: skip
    print(f"{text.files} files, {len(text.train):,} tokens, {clock.left:.0f} s left", flush=True)
    encode = text.tokenizer.encode
    unseen = np.concatenate([np.array([*encode(one).ids, corpus.END], np.int32) for one in text.held_out.values()])
    teacher = None
    for name, layers in (("target", pair.layers), *pair.drafters):
        seconds = 60 * minutes * (pair.share if teacher is None else pair.share_of_drafter)
        recipe = training.Recipe(name, layers, pair.width, pair.vocabulary, seconds, pair.rows, pair.length)
        model, found = training.trained(recipe, text.train, device, teacher, compiled=device == "cuda")
        found["held out"] = training.held_out_loss(model, unseen, recipe, device)
        print(f"{name}: {found['tokens']:,} tokens, held out {found['held out']:.3f}, {clock.left:.0f} s left", flush=True)
        held.about["runs"].append(found)
        training.save(model, recipe, folder / name)
        teacher = model if teacher is None else teacher
    sources = {path: one.encode() for path, one in text.held_out.items() if path.endswith(".py")}
    cuts = engine("training.prompts", "cut")(sources, 2 * prompts)
    return [Text(f"{one.path}:{one.end}", tuple(encode(one.prompt).ids), (0,) * length) for one in cuts]


def loaded(folder: Path, pair: Pair, device: str) -> Models:
    """The models of a folder."""
    freed()
    load = import_module("ssmspec_fast.models.checkpoint").load
    drafters = {name: load(folder / name, dtype_of(device), device) for name, _ in pair.drafters}
    return Models(load(folder / "target", dtype_of(device), device), drafters)


def untrained(device: str, pair: Pair) -> Models:
    """A pair of the same widths, of few layers and before its training."""
    from . import training

    with tempfile.TemporaryDirectory() as made:
        for name, layers in (("target", ahead.LAYERS), *pair.drafters):
            recipe = training.Recipe(name, layers, pair.width, pair.vocabulary, 0.0)
            training.save(training.Model(recipe, "cpu"), recipe, Path(made) / name)
        return loaded(Path(made), pair, device)


def pair_blocks(pair: Pair) -> list[tuple[list[Way], int]]:
    """The ways of each block, and its batch."""
    chains = [Way(f"drafter of {name}, chain of {n}", name, n) for n in (3, 5) for name, _ in pair.drafters]
    first = pair.drafters[0][0]
    tree = Way(f"drafter of {first}, tree 3,2,1", first, tree="3,2,1")
    ring = Way(f"{chains[0].name}, ring", first, 3, method="replay-buffer")
    sampled = both(chains[0].sampled(1.0), chains[0].sampled(1.0, "multi-step"), tree.sampled(1.0))
    several = both(chains[0], ring, NGRAM, LOOKUP)
    return [(both(*chains, tree, ring, NGRAM, LOOKUP), 1), (sampled, 1), (several, 4), (several, 16)]


def part_c(minutes: float, held: Table, prompts: int = 12, length: int = 192) -> None:
    """On one thread: the model's matrices are too small for more."""
    torch.set_num_threads(1)
    clock = Clock(minutes)
    folder = Path(engine("api", "__file__")).parent / "checkpoints"
    load = import_module("ssmspec_fast.models.checkpoint").load
    drafter = load(folder / "mamba2-drafter", torch.float32, "cpu")
    models = Models(load(folder / "mamba2", torch.float32, "cpu"), {"model": drafter})
    held.about |= {"model": "mamba2, which ships: 3.5M", "tokens": "bytes", "length": length, "threads": 1}
    encode = engine("models.tokenizer", "Tokenizer")(folder / "mamba2").encode
    own, code = own_texts(folder, encode, prompts, length), edited(prompts, length, encode)
    judge = Judge(folder / "mamba2", "cpu", torch.float32, own)
    chain, tree = Way("model, chain of 4", "model", 4), Way("model, tree 2,2,1", "model", tree="2,2,1")
    ring = Way("model, chain of 4, ring", "model", 4, method="replay-buffer")
    lookup = Way("prompt lookup, chain of 8", "lookup", 8, longest=8)
    greedy, sampled = both(chain, tree, ring, lookup), both(chain.sampled(1.0), chain.sampled(1.0, "multi-step"))
    for n, batch in enumerate((1, 4)):
        over, left = clock.left / (2 - n), clock.now()
        measured(held, left + 0.3 * over, clock, both(lookup, NGRAM), models, code, batch, "edited code", table(code, "cpu"))
        measured(held, left + 0.75 * over, clock, greedy, models, own, batch, "own text", None, judge)
        measured(held, left + over, clock, sampled, models, own, batch, "own text", None, judge)


def own_texts(folder: Path, encode: Any, count: int, length: int) -> list[Text]:
    """Held-out prompts that the model continues itself, for `length` tokens."""
    held = engine("training.prompts", "read")(folder / "prompts.jsonl")
    return spread([Text(f"{one.path}:{one.end}", tuple(encode(one.prompt)), (0,) * length) for one in held], count)
