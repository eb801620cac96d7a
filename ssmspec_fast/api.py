"""The engine for texts: a folder in, texts and statistics out.

engine = ssmspec_fast.load("checkpoints/mamba2", drafter="checkpoints/mamba2-drafter", method="replay-buffer")
done = engine.generate(["def mean(values):\\n"], engine.settings(128))
print(done.completions[0].text, done.statistics.tau)
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from .accept import Acceptance
from .draft import Drafter
from .engine.sampling import Sampling
from .generator import Generator
from .methods import Method
from .models.build import Parts


def load(
    folder: str | Path,
    *,
    drafter: str | Path | Drafter | dict[str, str | Path] | None = None,
    method: str | Method | None = None,
    acceptance: str | Acceptance | None = None,
    mode: str = "bitwise",
    device: str = "cpu",
    dtype: torch.dtype | str | None = None,
    drafts: int = 4,
    slots: int = 8,
    cache: int = 2048,
    sampling: Sampling | None = None,
    seed: int = 0,
    memory: int | None = None,
    rows: int = 1,
    tree: str | None = None,
    accept: Sequence[str] = (),
    choose: bool = False,
) -> Generator:
    """An engine for a folder's checkpoint, for `slots` prompts at once with at most `cache` tokens each, prompt and output.

    `drafter` is a folder, "ngram" or "lookup", which drafts `drafts` tokens in each of `rows` chains, or a `tree`, as in
    `choices.Drafting`; or your own `Drafter`; or several by name, {name: folder or word}, of which each request may choose.
    Methods and rules have the names in `choices`. In the mode "bitwise" greedy output equals that of plain decoding, bit for
    bit; "fast" may round differently. With `choose` the engine measures its steps and what is accepted, and drafts as many
    tokens as is fastest, none among them, up to `drafts` (`draft.chooser`).
    `accept` lists fields of config.json that the engine does not know, and that you know not to change the result.
    Units: `memory` is the number of bytes that may be allocated.
    Raises: CheckpointError, ConfigRefused, TokenizerMismatch, Unsupported, ParameterError, MemoryRefused, before any work.
    """
    return Parts(
        folder, drafter, method, acceptance, mode, device, dtype, drafts, slots, cache, sampling, seed, memory, rows, tree,
        accept=accept, choose=choose,
    ).load()  # fmt: skip
