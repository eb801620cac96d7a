"""What transformers makes of the checkpoints that ship, in a process of its own (`guard.reroute`).

    python tests/fast/shipped.py FILE

writes for each target the tokens of a greedy generation and the logits they were chosen from, in float32, and then for every
checkpoint the logits of a text in float64.
"""

import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]
SHIPPED = HOME / "ssmspec_fast" / "checkpoints"
TARGETS = ("mamba2", "hybrid", "delta", "llama")
NAMES = (*TARGETS, "mamba2-drafter-05", "mamba2-drafter-25", "mamba2-drafter", "mamba1-drafter", "bpe-drafter")
TEXT, BUDGET = "def first(values):\n    return ", 20


def opened(name: str) -> tuple[Any, Any]:
    """Model and the text's tokens."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED / name, dtype=torch.float32).eval()
    return model, torch.tensor([transformers.AutoTokenizer.from_pretrained(SHIPPED / name)(TEXT)["input_ids"]])


def generated(name: str) -> dict[str, Any]:
    import torch

    model, ids = opened(name)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=BUDGET, do_sample=False, eos_token_id=None,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return {f"{name}.tokens": out.sequences[0, ids.shape[1] :].clone(), f"{name}.logits": torch.cat(out.logits)}


def main(file: Path) -> None:
    sys.path.insert(0, str(HOME))
    from conformance.adapters.transformers import guard

    for package in guard.KERNEL_PACKAGES:
        sys.modules[package] = None  # type: ignore[assignment]
    import torch
    from safetensors.torch import save_file
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    found = {}
    with guard.quiet(), torch.no_grad():
        for name in TARGETS:
            found |= generated(name)
        guard.reroute()
        for name in NAMES:
            model, ids = opened(name)
            found[f"{name}.float64"] = model.double()(ids).logits[0].contiguous()
    save_file(found, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
