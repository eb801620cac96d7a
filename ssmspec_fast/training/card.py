"""The model card: `python -m ssmspec_fast.training.card FOLDER` writes FOLDER/README.md from what was trained there."""

import sys
from pathlib import Path

from ..cli.refusal import run_command
from . import curves, log, prompts
from .corpus import HELD_OUT
from .loop import stage_name
from .recipes import RECIPES, Recipe

FILE = "README.md"
WEIGHTS = "model.safetensors"
CARD = """# Small models of Python sources

Byte-level language models for trying, testing and measuring speculative decoding: targets of several kinds, and drafters that
learnt from the Mamba-2 target. bf16, safetensors, Hugging Face format; transformers loads them as they are.

| folder | architecture | layers | bytes | learns from | steps | rows x length | loss in training | on held-out files |
|---|---|---|---|---|---|---|---|---|
{rows}

A loss is a cross entropy in nats a token: a byte, for `bpe-drafter` one of 768 pieces, so that its loss cannot be
compared with the others'. The loss in training is the mean of ten batches from the last tenth of the run; for a model
that learns from data and a teacher it is the loss of that mixture. The loss on held-out files is that against the data
alone, over eight batches. Every run reads the same files many times over: where the two losses lie far apart, the model
has memorised part of its training files, and the higher one is what to expect of new text. A number at the end of a name
is the percentage of the run after which the checkpoint was saved; its losses were not measured.

![The loss of every run over its steps]({picture})

## Data

Sources of the standard library of Python {python}, without encodings, idlelib, lib2to3, pydoc_data and files that are
not in UTF-8. A file is held out when the first byte of the SHA-256 of its path is below {bound} (of 256). SHA-256 of the
bytes that were trained on: `{sha}`. `{prompts}` holds {count} prompts cut from held-out files, each with its path and
the byte at which it ends.

## Licence

The sources are under the PSF License Agreement (Python Software Foundation License Version 2); copyright Python Software
Foundation. The prompts quote them under it; what the models write may repeat them.

## Recipe

`python -m ssmspec_fast.training --out FOLDER` trains all of them again: AdamW (0.9, 0.95), weight decay 0.1 on matrices, a
warm-up and a cosine to 5 % of the peak rate, gradients clipped to norm 1, bf16 products over fp32 weights. With a teacher the
loss is the mean of the cross entropies against the data and against the teacher's distribution. Sizes, rates and seeds are
in `ssmspec_fast/training/recipes.py`.

## Limits

They write what looks like Python and means little; nobody should use it as code. They were made as targets and drafters for
tests of speculative decoding, on one language and one style, in windows of the length above. Neither their quality nor their
acceptance was measured beyond that length or on other texts.
"""


def write(folder: Path) -> Path:
    """Raises: FileNotFoundError for a folder without a log."""
    runs = log.read(folder)
    trained = [recipe for recipe in RECIPES if recipe.name in runs]
    file = folder / FILE
    file.write_text(card(folder, trained, runs), encoding="utf-8")
    return file


def card(folder: Path, trained: list[Recipe], runs: dict[str, log.Run]) -> str:
    rows = [row(folder, recipe, part, runs[recipe.name]) for recipe in trained for part in recipe.stages]
    one = next(iter(runs.values()))
    given = {"python": one["python"], "sha": one["corpus"], "bound": HELD_OUT, "picture": curves.FILE}
    return CARD.format(rows="\n".join(rows), prompts=prompts.FILE, count=prompts.COUNT, **given)


def row(folder: Path, recipe: Recipe, part: float, run: log.Run) -> str:
    """One checkpoint, as a row of the table."""
    name = stage_name(recipe, part)
    file = folder / name / WEIGHTS
    size = f"{file.stat().st_size:,}" if file.is_file() else "missing"
    steps = max(1, round(part * run["curve"][-1][0]))
    losses = (f"{training_loss(run):.4f}", f"{run['held_out']:.4f}") if part == 1.0 else ("", "")
    cells = (
        f"`{name}`", recipe.architecture.removesuffix("ForCausalLM"), recipe.config["num_hidden_layers"], size,
        f"data and `{recipe.teacher}`" if recipe.teacher else "data", steps, f"{recipe.rows} x {recipe.length}", *losses,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def training_loss(run: log.Run) -> float:
    """The mean over the last tenth of the curve."""
    losses = [loss for _, loss in run["curve"]]
    last = losses[-max(1, len(losses) // 10) :]
    return float(sum(last) / len(last))


def main(folder: Path) -> None:
    print(write(folder))


if __name__ == "__main__":
    sys.exit(run_command(main))
