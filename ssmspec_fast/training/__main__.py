"""`python -m ssmspec_fast.training --out FOLDER [--only NAME] [--steps N]`: train the small checkpoints, or some of them.

Also writes the log, the prompts, the model card and the picture of the losses.
"""

import argparse
import platform
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from . import card, corpus, curves, log, prompts, tokens
from .loop import stage_name, train
from .recipes import RECIPES


def _texts(joined: np.ndarray) -> list[str]:
    return joined.tobytes().decode().split(chr(corpus.END))[:-1]


def _encoded(tokenizer: Tokenizer, joined: np.ndarray) -> np.ndarray:
    return np.concatenate([[*text.ids, corpus.END] for text in tokenizer.encode_batch(_texts(joined))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[r.name for r in RECIPES])
    parser.add_argument("--steps", type=int, help="steps of every recipe, for a trial run")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    text = corpus.read()
    merged = tokens.merged(_texts(text.train)) if "bpe-drafter" in arguments.only else tokens.bytes_only()
    arguments.out.mkdir(parents=True, exist_ok=True)
    prompts.write(arguments.out, text.held_out)
    for recipe in RECIPES:
        if recipe.name not in arguments.only:
            continue
        tokenizer = merged if recipe.tokenizer == "bpe" else tokens.bytes_only()
        data, unseen = text.train, text.held_out_bytes
        if recipe.tokenizer == "bpe":
            data, unseen = (_encoded(merged, part) for part in (data, unseen))
        began = time.monotonic()
        print(f"{recipe.name}: {arguments.steps or recipe.steps} steps on {arguments.device}", flush=True)
        found = train(recipe, data, unseen, arguments.out, arguments.device, arguments.steps)
        for part in recipe.stages:
            tokens.save(tokenizer, arguments.out / stage_name(recipe, part))
        found |= {"seconds": round(time.monotonic() - began), "corpus": text.sha256, "python": platform.python_version()}
        log.add(arguments.out, found)
        print(f"{recipe.name}: {found['held_out']:.4f} nats a token on held-out files, {found['seconds']} s", flush=True)
    card.write(arguments.out)
    try:
        curves.draw(arguments.out)
    except ModuleNotFoundError as missing:
        print(
            f"{missing.name} is not installed: plot the losses on another machine with python -m "
            "ssmspec_fast.training.curves FOLDER"
        )


if __name__ == "__main__":
    main()
