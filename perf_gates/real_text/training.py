"""A Mamba-2 language model and its training, for minutes on one GPU: fp32 weights, bf16 products, chunks of the state.

A block, as in Mamba-2: u = norm(x); z | x B C | dt = W_in u; convolution of width 4 and silu over x B C; the scan; then

    x <- x + W_out norm(y silu(z))                                                          (1)

    loss = H(data, student), with a teacher (H(data, student) + H(teacher, student)) / 2     (2)

H is the cross entropy of the next token in nats. A run has a time, not a number of steps: warm-up and cosine follow the share
of the time that has passed, so the number of steps depends on the machine; it is reported. The scan is that of
`ssmspec_fast.training.scans`.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .ways import engine

SCAN = engine("training.scans", "chunked_scan")
STATE, HEAD, TAPS, CHUNK, EPS = 128, 64, 4, 64, 1e-5
NAMES = {
    "norm": "norm.weight", "W_in": "mixer.in_proj.weight", "taps": "mixer.conv1d.weight", "bias": "mixer.conv1d.bias",
    "dt_bias": "mixer.dt_bias", "A_log": "mixer.A_log", "D": "mixer.D", "gate": "mixer.norm.weight",
    "W_out": "mixer.out_proj.weight",
}  # fmt: skip
"""The tensors of a block, in the order in which it takes them, and their names in a file."""
WARMUP, CHECK = 0.05, 8
"""The share of the time in which the learning rate rises, and the steps after which the host waits for the device."""


@dataclass(frozen=True)
class Recipe:
    """A model and its training. Units: seconds; `rate` is the highest learning rate."""

    name: str
    layers: int
    width: int
    vocabulary: int
    seconds: float
    rows: int = 16
    length: int = 1024
    rate: float = 1.5e-3
    seed: int = 0

    @property
    def inner(self) -> int:
        return 2 * self.width


def block(narrow: torch.dtype, x: Tensor, norm: Tensor, W_in: Tensor, taps: Tensor, bias: Tensor, dt_bias: Tensor, A_log:
Tensor, D: Tensor,
          gate: Tensor, W_out: Tensor) -> Tensor:  # fmt: skip
    """(1), of x (b, t, u) in fp32; products in the `narrow` type."""
    b, t, _ = x.shape
    heads, inner = len(D), len(gate)
    zxbcdt = functional.linear(normed(x, norm).to(narrow), W_in.to(narrow))
    z, xBC, dt = torch.split(zxbcdt, [inner, inner + 2 * STATE, heads], -1)
    back = functional.pad(xBC, (0, 0, TAPS - 1, 0))
    c = sum(back[:, i : i + t] * taps[:, i].to(narrow) for i in range(TAPS)) + bias.to(narrow)
    v, B, C = torch.split(functional.silu(c), [inner, STATE, STATE], -1)
    v = v.reshape(b, t, heads, HEAD)
    step = functional.softplus(dt.float() + dt_bias)
    y = SCAN(v, step, -torch.exp(A_log), B[:, :, None], C[:, :, None], chunk=CHUNK) + D[:, None] * v
    y = normed(y.reshape(b, t, inner).float() * functional.silu(z.float()), gate)
    return x + functional.linear(y.to(narrow), W_out.to(narrow)).float()


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


class Model(nn.Module):
    """The head is the embedding. Products are bf16 on a GPU, fp32 elsewhere."""

    def __init__(self, recipe: Recipe, device: str, run: Callable[..., Tensor] = block) -> None:
        super().__init__()
        r, heads, self.run = recipe, recipe.inner // HEAD, run
        self.narrow = torch.bfloat16 if device.startswith("cuda") else torch.float32
        torch.manual_seed(r.seed)
        channels = r.inner + 2 * STATE

        def weight(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape) * scale)

        self.embedding = weight(r.vocabulary, r.width, scale=0.02)
        self.last = nn.Parameter(torch.ones(r.width))
        dt = torch.exp(torch.rand(r.layers, heads) * math.log(100) + math.log(1e-3))
        self.layers: Any = nn.ModuleList(
            nn.ParameterDict({
                "norm": nn.Parameter(torch.ones(r.width)),
                "W_in": weight(r.inner + channels + heads, r.width, scale=r.width**-0.5),
                "taps": weight(channels, TAPS, scale=TAPS**-0.5),
                "bias": nn.Parameter(torch.zeros(channels)),
                "dt_bias": nn.Parameter(dt[n] + torch.log(-torch.expm1(-dt[n]))),
                "A_log": nn.Parameter(torch.log(1 + 15 * torch.rand(heads))),
                "D": nn.Parameter(torch.ones(heads)),
                "gate": nn.Parameter(torch.ones(r.inner)),
                "W_out": weight(r.width, r.inner, scale=(r.inner * 2 * r.layers) ** -0.5),
            })
            for n in range(r.layers)
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits (b, t, i); t must be a multiple of CHUNK."""
        x = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = self.run(self.narrow, x, *(layer[name] for name in NAMES))
        return functional.linear(normed(x, self.last).to(self.narrow), self.embedding.to(self.narrow))


def entropy(logits: Tensor, targets: Tensor, wanted: Tensor | None) -> Tensor:
    """(2), with the teacher's logits."""
    loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    if wanted is None:
        return loss
    law = functional.softmax(wanted.float(), -1)
    return (loss - (law * functional.log_softmax(logits.float(), -1)).sum(-1).mean()) / 2


def schedule(share: float) -> float:
    """The learning rate after a share of the time, in parts of the highest."""
    if share < WARMUP:
        return share / WARMUP
    return 0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, (share - WARMUP) / (1 - WARMUP))))


def trained(
    recipe: Recipe, tokens: np.ndarray, device: str, teacher: Model | None = None, compiled: bool = False
) -> tuple[Model, dict[str, Any]]:
    """The model after its time, and what the run was: steps, tokens, losses. Raises: FloatingPointError for a loss that is
    not finite."""
    run, loss_of = block, entropy
    if compiled:
        run, loss_of = torch.compile(block, dynamic=False), torch.compile(entropy, dynamic=False)
    model = Model(recipe, device, run).to(device)
    if teacher is not None:
        teacher.requires_grad_(False)
    data = torch.from_numpy(tokens).to(device)
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() > 1) == wide], "weight_decay": 0.1 * wide}
        for wide in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95), fused=True)
    draw = torch.Generator(device).manual_seed(recipe.seed)
    places, curve, steps = torch.arange(recipe.length + 1, device=device), list[tuple[int, float]](), 0

    def step(share: float) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * schedule(share)
        starts = torch.randint(len(data) - recipe.length - 1, (recipe.rows, 1), generator=draw, device=device)
        batch = data[starts + places].long()
        wanted = None
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(batch[:, :-1])
        loss: Tensor = loss_of(model(batch[:, :-1]), batch[:, 1:], wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    began = time.monotonic()
    try:
        float(step(0.0))  # compiles
    except Exception as error:
        if not compiled:
            raise
        print(f"torch.compile failed, so {recipe.name} is trained without it: {error}"[:500], flush=True)
        model.run, loss_of, compiled = block, entropy, False
        float(step(0.0))
    compiling = time.monotonic() - began
    began = time.monotonic()
    while (share := (time.monotonic() - began) / recipe.seconds) < 1:
        loss, steps = step(share), steps + 1
        if steps % CHECK == 0:
            curve.append((steps, float(loss)))
            if not math.isfinite(curve[-1][1]):
                raise FloatingPointError(
                    f"{recipe.name}: the loss at step {steps} is {curve[-1][1]}; lower the rate of its recipe"
                )
            if steps % (16 * CHECK) == 0:
                print(f"{recipe.name}, step {steps}, {100 * share:.0f} % of its time: loss {curve[-1][1]:.3f}", flush=True)
    found = asdict(recipe) | {"steps": steps, "tokens": steps * recipe.rows * recipe.length, "curve": thinned(curve)}
    found |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "compiled": compiled,
        "compiling": round(compiling, 1),
    }
    return model, found


def thinned(curve: list[tuple[int, float]], most: int = 60) -> list[tuple[int, float]]:
    """The means of at most `most` stretches of a curve."""
    if not curve:
        return []
    parts = np.array_split(np.array(curve), min(most, len(curve)))
    return [(int(part[-1, 0]), round(float(part[:, 1].mean()), 4)) for part in parts]


@torch.no_grad()
def held_out_loss(model: Model, tokens: np.ndarray, recipe: Recipe, device: str, batches: int = 4) -> float:
    """H(data, model) on text that was not trained on, in nats a token."""
    starts = np.linspace(0, len(tokens) - recipe.length - 2, batches * recipe.rows).astype(int)
    losses = []
    for part in np.array_split(starts, batches):
        batch = torch.from_numpy(np.stack([tokens[n : n + recipe.length + 1] for n in part])).to(device).long()
        losses.append(float(entropy(model(batch[:, :-1]), batch[:, 1:], None)))
    return sum(losses) / len(losses)


def save(model: Model, recipe: Recipe, folder: Path) -> None:
    """In the format of transformers' Mamba2ForCausalLM, in bf16, which the engine reads."""
    from safetensors.torch import save_file

    weights = {"backbone.embeddings.weight": model.embedding, "backbone.norm_f.weight": model.last}
    for n, layer in enumerate(model.layers):
        weights |= {f"backbone.layers.{n}.{stored}": layer[name] for name, stored in NAMES.items()}
    kept = {name: value.detach().to("cpu", torch.bfloat16) for name, value in weights.items()}
    kept |= {name: value[:, None] for name, value in kept.items() if name.endswith("conv1d.weight")}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in kept.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    config = {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": recipe.vocabulary,
        "hidden_size": recipe.width, "num_hidden_layers": recipe.layers, "num_heads": recipe.inner // HEAD, "head_dim": HEAD,
        "state_size": STATE, "n_groups": 1, "expand": 2, "conv_kernel": TAPS, "chunk_size": CHUNK, "rms_norm": True,
        "layer_norm_epsilon": EPS, "residual_in_fp32": True, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": 0, "pad_token_id": None, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
