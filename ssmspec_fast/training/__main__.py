"""`python -m ssmspec_fast.training --out FOLDER [--only NAME] [--steps N]`: train the small checkpoints, or some of them."""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from . import corpus, tokens
from .loop import train
from .recipes import RECIPES


def _texts(joined: np.ndarray) -> list[str]:
    return joined.tobytes().decode().split(chr(corpus.END))[:-1]


def _encoded(tokenizer: Tokenizer, joined: np.ndarray) -> np.ndarray:
    return np.concatenate([[*text.ids, corpus.END] for text in tokenizer.encode_batch(_texts(joined))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[r.name for r in RECIPES])
    parser.add_argument("--steps", type=int, help="steps of every recipe, for a trial")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    text = corpus.read()
    merged = tokens.merged(_texts(text.train)) if "bpe-drafter" in arguments.only else tokens.bytes_only()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "training.jsonl"
    for recipe in RECIPES:
        if recipe.name not in arguments.only:
            continue
        tokenizer = merged if recipe.tokenizer == "bpe" else tokens.bytes_only()
        data, unseen = text.train, text.held_out_bytes
        if recipe.tokenizer == "bpe":
            data, unseen = (_encoded(merged, part) for part in (data, unseen))
        began = time.monotonic()
        found = train(recipe, data, unseen, arguments.out, arguments.device, arguments.steps)
        tokens.save(tokenizer, arguments.out / recipe.name)
        found |= {"seconds": round(time.monotonic() - began), "corpus": text.sha256, "python": platform.python_version()}
        with log.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        print(f"{recipe.name}: {found['held_out']:.4f} nats a token on held-out files, {found['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
