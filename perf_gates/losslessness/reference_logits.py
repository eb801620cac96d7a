"""The tokens that transformers would choose at every position of given outputs: greedy generation, prefix by prefix.

    said_t = argmax logits(prompt, output_1 .. output_{t-1})     (1)

Up to the first t with said_t != output_t this is transformers' greedy generation from the prompt, by induction over t;
after it the prefixes would differ and nothing is compared. All t of an output are one forward, several outputs one batch,
padded at the end, where a causal model does not look. transformers runs in fp32 with its layers in PyTorch: on an H200 5.23.0
agreed with plain decoding, 5.17.0 gave Bamba logits that were up to 9.0 off the float64 forward.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TOGETHER = 8
"""Outputs per batch: the PyTorch layers store a number for each pair of tokens of a chunk, each head and each state."""
HIDDEN = ("fla", "mamba_ssm", "causal_conv1d")
"""Kernels that transformers' layers would use instead of PyTorch, if installed."""


class ReferenceLogits(NamedTuple):
    """By prompt: tokens, and the logits (n, i) that each was chosen from; and the program's name and version."""

    tokens: list[tuple[int, ...]]
    logits: list[np.ndarray]
    name: str = ""


def reference_logits(folder: Path, prompts: Sequence[str], outputs: Sequence[Sequence[int]], device: str) -> ReferenceLogits:
    """(1) for each prompt and its output."""
    for name in HIDDEN:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    import torch

    peer: Any = import_module("transformers")
    peer.utils.logging.disable_progress_bar()
    model = peer.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    encode = peer.AutoTokenizer.from_pretrained(folder)
    given = [[*encode(prompt)["input_ids"], *output[:-1]] for prompt, output in zip(prompts, outputs, strict=True)]
    with torch.no_grad():
        rows = [row for batch in batches(given) for row in forward(model, batch, device)]
    logits = [row[len(row) - len(output) :] for row, output in zip(rows, outputs, strict=True)]
    return ReferenceLogits([tuple(row.argmax(1).tolist()) for row in logits], logits, f"transformers {peer.__version__}")


def batches(given: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    yield from (given[first : first + TOGETHER] for first in range(0, len(given), TOGETHER))


def forward(model: Any, batch: Sequence[Sequence[int]], device: str) -> Iterator[np.ndarray]:
    """The logits after every token of each row."""
    import torch

    longest = max(map(len, batch))
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch], device=device)
    logits = model(ids, use_cache=False).logits.float().cpu().numpy()
    yield from (found[: len(row)] for found, row in zip(logits, batch, strict=True))
