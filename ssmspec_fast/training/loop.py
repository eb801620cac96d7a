"""Trains one checkpoint: AdamW, a warm-up and a cosine, bf16 products over fp32 weights.

    loss = H(data, student)                                    without a teacher   (1)
    loss = (H(data, student) + H(teacher, student)) / 2        with one            (2)

H is the cross entropy of the next token, in nats. On a GPU a step is captured once as a CUDA graph and replayed.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..engine.graphs import recording
from .recipes import Recipe
from .scans import mamba2_forward, mamba_forward


def build(recipe: Recipe) -> Any:
    """The untrained model of transformers, in fp32."""
    import transformers

    torch.manual_seed(recipe.seed)
    kind = getattr(transformers, recipe.architecture)
    return quickened(kind(kind.config_class(**recipe.config)).float())


def quickened(model: Any) -> Any:
    """The model with the faster mixers of `scans`; models without such mixers are unchanged."""
    from transformers.models.bamba.modeling_bamba import BambaMixer
    from transformers.models.mamba.modeling_mamba import MambaMixer
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    for mixer in model.modules():
        if isinstance(mixer, MambaMixer):
            mixer.forward = MethodType(mamba_forward, mixer)
        elif isinstance(mixer, (Mamba2Mixer, BambaMixer)):
            mixer.forward = MethodType(mamba2_forward, mixer)
    return model


def train(
    recipe: Recipe, tokens: np.ndarray, held_out: np.ndarray, folder: Path, device: str, steps: int | None = None
) -> dict[str, Any]:
    """Trains by the recipe, saves a checkpoint at each of its stages below `folder`, and returns its loss curves.

    Units: losses in nats per token. Raises: FileNotFoundError for a teacher that does not exist yet.
    """
    steps = steps or recipe.steps
    model = build(recipe).to(device).train()
    teacher = _teacher(recipe, folder, device)
    data, unseen = (torch.from_numpy(x.astype(np.int64)).to(device) for x in (tokens, held_out))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    rate = torch.tensor(recipe.peak, device=device)
    cuda = device.startswith("cuda")
    optimizer = torch.optim.AdamW(groups, lr=rate if cuda else recipe.peak, betas=(0.9, 0.95), fused=cuda, capturable=cuda)

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast(device.split(":")[0], torch.bfloat16, cache_enabled=False):
            logits = model(batch[:, :-1], use_cache=False).logits.float()
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())  # (1)
            if teacher is None:
                return loss
            with torch.no_grad():
                wanted = teacher(batch[:, :-1], use_cache=False).logits.float().softmax(-1)
        return (loss - (wanted * logits.log_softmax(-1)).sum(-1).mean()) / 2  # (2)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss.detach()

    draw = torch.Generator().manual_seed(recipe.seed)
    batch = _batch(data, recipe, draw)
    run = _captured(step, batch) if cuda else step
    curve: list[tuple[int, float]] = []
    began = time.monotonic()
    kept = {max(1, round(part * steps)): part for part in recipe.stages}
    for i in range(1, steps + 1):
        for group in optimizer.param_groups:
            _set(group, recipe.peak * _schedule(i, steps, min(recipe.warmup, steps // 4)))
        batch.copy_(_batch(data, recipe, draw))
        loss = run(batch)
        if i % max(1, steps // 100) == 0 or i == steps:
            curve.append((i, float(loss)))
            if not math.isfinite(curve[-1][1]):
                raise FloatingPointError(
                    f"{recipe.name}: the loss at step {i} is {curve[-1][1]}; lower the learning rate of its recipe"
                )
        if i % max(1, steps // 10) == 0:
            each = 1000 * (time.monotonic() - began) / i
            print(f"{recipe.name:16s} step {i:6d} of {steps}  loss {float(loss):.4f} nats  {each:.1f} ms a step", flush=True)
        if i in kept:
            _save(model, folder / stage_name(recipe, kept[i]))
    return {"name": recipe.name, "curve": curve, "held_out": _held_out_loss(model, unseen, recipe, device)}


def _schedule(i: int, steps: int, warmup: int) -> float:
    if i <= warmup:
        return i / warmup
    return 0.05 + 0.475 * (1 + math.cos(math.pi * (i - warmup) / max(1, steps - warmup)))


def _set(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _batch(data: Tensor, recipe: Recipe, draw: torch.Generator) -> Tensor:
    starts = torch.randint(len(data) - recipe.length - 1, (recipe.rows, 1), generator=draw).to(data.device)
    return data[starts + torch.arange(recipe.length + 1, device=data.device)]


def _captured(step: Callable[[Tensor], Tensor], batch: Tensor) -> Callable[[Tensor], Tensor]:
    """The step as a CUDA graph on the buffer `batch`, after a few warm-up steps."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with recording(graph):
        loss = step(batch)

    def replay(_: Tensor) -> Tensor:
        graph.replay()
        return loss

    return replay


@torch.no_grad()
def _held_out_loss(model: Any, data: Tensor, recipe: Recipe, device: str, batches: int = 8) -> float:
    """The loss (1) on files that were never trained on."""
    model.eval()
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(batches):
        batch = _batch(data, recipe, draw)
        with torch.autocast(device.split(":")[0], torch.bfloat16):
            logits = model(batch[:, :-1], use_cache=False).logits.float()
        losses.append(float(functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())))
    return sum(losses) / len(losses)


def _teacher(recipe: Recipe, folder: Path, device: str) -> Any:
    if recipe.teacher is None:
        return None
    import transformers

    where = folder / recipe.teacher
    if not where.is_dir():
        raise FileNotFoundError(f"{recipe.name} learns from {recipe.teacher}, which is not in {folder}; train that first")
    teacher: Any = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    return quickened(teacher).to(device).eval()


def stage_name(recipe: Recipe, part: float) -> str:
    """The folder of the checkpoint that is saved after this part of a run."""
    return recipe.name if part == 1.0 else f"{recipe.name}-{round(100 * part):02d}"


def _save(model: Any, folder: Path) -> None:
    """Weights and config in bf16, in the format of transformers."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tied = {"lm_head.weight"} if getattr(model.config, "tie_word_embeddings", False) else set()
    weights = {
        name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.state_dict().items() if name not in tied
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True, default=str) + "\n")
