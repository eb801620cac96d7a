"""`python -m ssmspec_fast.training --out FOLDER [--only NAME] [--steps N]`: train the small checkpoints, or some of them.

Also writes the log, the prompts, the model card and the picture of the losses.
"""

import platform
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from tokenizers import Tokenizer

from ..cli.refusal import run_command
from . import card, corpus, curves, log, prompts, tokens
from .loop import stage_name, train
from .recipes import RECIPES


def _texts(joined: np.ndarray) -> list[str]:
    return joined.tobytes().decode().split(chr(corpus.END))[:-1]


def _encoded(tokenizer: Tokenizer, joined: np.ndarray) -> np.ndarray:
    return np.concatenate([[*text.ids, corpus.END] for text in tokenizer.encode_batch(_texts(joined))])


def main(
    out: Annotated[Path, typer.Option(help="The folder of the checkpoints.")],
    only: Annotated[list[str] | None, typer.Option(metavar="NAME ..", help="Some checkpoints.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of every recipe, for a trial run.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
) -> None:
    chosen = only or [r.name for r in RECIPES]
    text = corpus.read()
    merged = tokens.merged(_texts(text.train)) if "bpe-drafter" in chosen else tokens.bytes_only()
    out.mkdir(parents=True, exist_ok=True)
    prompts.write(out, text.held_out)
    for recipe in RECIPES:
        if recipe.name not in chosen:
            continue
        tokenizer = merged if recipe.tokenizer == "bpe" else tokens.bytes_only()
        data, unseen = text.train, text.held_out_bytes
        if recipe.tokenizer == "bpe":
            data, unseen = (_encoded(merged, part) for part in (data, unseen))
        began = time.monotonic()
        print(f"{recipe.name}: {steps or recipe.steps} steps on {device}", flush=True)
        found = train(recipe, data, unseen, out, device, steps)
        for part in recipe.stages:
            tokens.save(tokenizer, out / stage_name(recipe, part))
        found |= {"seconds": round(time.monotonic() - began), "corpus": text.sha256, "python": platform.python_version()}
        log.add(out, found)
        print(f"{recipe.name}: {found['held_out']:.4f} nats a token on held-out files, {found['seconds']} s", flush=True)
    card.write(out)
    try:
        curves.draw(out)
    except ModuleNotFoundError as missing:
        print(
            f"{missing.name} is not installed: plot the losses on another machine with python -m "
            "ssmspec_fast.training.curves FOLDER"
        )


if __name__ == "__main__":
    sys.exit(run_command(main))
