"""What is timed: pieces of work, the shapes and batches they are timed at, and their sides, ours first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from perf_gates.gpu.judge.call import Call
from perf_gates.static.shapes import BATCHES, DELTA, KDA, KDA_BOUND, SSD

from . import delta_peers, delta_ring, delta_sglang, delta_vllm, ssd
from .delta import Layer, Rule, bare_ours, layer_ours, window_ours
from .side import Side

WINDOW, SEED = 6, 20261129
NANO = {"nemotron-3-nano-30b": (64, 64, 128, 8)}
"""64 channels of a head and 8 heads of a group, for FlashInfer's windows: see `wheels.toml` for what they do not take."""
RINGS = {"mamba2-2.7b": SSD["mamba2-2.7b"], **NANO}
PART = {"kimi-k3, 12 of 96 heads": (12, 12, 128, 128)}
"""One GPU of eight: SGLang's fused KDA is compiled for this many heads."""
LINEAR, BOUNDED, PLAIN = Rule(True, None, "sigmoid"), Rule(True, KDA_BOUND, "sigmoid"), Rule()
OURS = "ours"
GDN_VLLM = delta_peers.layer(delta_vllm.convolution, delta_vllm.gdn_token, delta_vllm.gdn_norm)
KDA_VLLM = delta_peers.layer(delta_vllm.convolution, delta_vllm.kda_token, delta_vllm.kda_norm)
GDN_SGLANG = delta_peers.layer(delta_sglang.convolution, delta_sglang.gdn_token, delta_sglang.gdn_norm, dense=False)


@dataclass(frozen=True)
class Work:
    """`layer`: from projection to projection. `sides` make a side from the inputs that were drawn for a case."""

    name: str
    shapes: Mapping[str, tuple[int, int, int, int]]
    tokens: int
    draw: Callable[[Call, tuple[int, int, int, int], int, int], Any]
    sides: Mapping[str, Callable[[Any], Side]]
    layer: bool = False

    def side(self, name: str, model: str, batch: int, device: str = "cuda") -> Side:
        """A side on the inputs of its case, which are the same in every run; its states too."""
        torch.manual_seed(SEED)
        return self.sides[name](self.draw(Call(device, SEED), self.shapes[model], batch, self.tokens))


def _layers(rule: Rule) -> Callable[..., Layer]:
    return lambda call, sizes, batch, tokens: Layer(call, sizes, batch, tokens, rule)


def _window(rule: Rule, shapes: Mapping[str, tuple[int, int, int, int]], **peers: Callable[[Any], Side]) -> Work:
    named = {name.replace("_", " "): made for name, made in peers.items()}
    return Work("layer, 6 tokens, every state kept", shapes, WINDOW, _layers(rule), {OURS: window_ours, **named}, True)


WORKS = (
    Work(
        "SSD step", SSD, 1, ssd.Drawn,
        {OURS: ssd.step_ours, "FlashInfer": ssd.step_flashinfer, "vLLM": ssd.step_vllm},
    ),
    Work(
        "SSD, 6 tokens, every state kept", NANO, WINDOW, ssd.Drawn,
        {OURS: ssd.snapshots_ours, "FlashInfer": ssd.snapshots_flashinfer, "vLLM": ssd.snapshots_vllm},
    ),
    Work(
        "SSD, 6 tokens from a ring of 22", RINGS, WINDOW, ssd.Drawn,
        {
            OURS: ssd.ring_ours, "FlashInfer": ssd.ring_flashinfer(1), "FlashInfer, heads split": ssd.ring_flashinfer(2),
            "FlashInfer, two kernels": ssd.ring_flashinfer(two=True),
        },
    ),
    Work(
        "step from raw gates", DELTA, 1, _layers(PLAIN),
        {OURS: bare_ours, "vLLM": delta_peers.bare(delta_vllm.gdn_token), "SGLang": delta_peers.bare(delta_sglang.gdn_token)},
    ),
    Work(
        "step from raw gates", KDA, 1, _layers(LINEAR),
        {OURS: bare_ours, "vLLM": delta_peers.bare(delta_vllm.kda_token), "fla": delta_peers.bare_fla},
    ),
    Work(
        "layer, 1 token", DELTA, 1, _layers(PLAIN),
        {OURS: layer_ours, "vLLM": GDN_VLLM, "SGLang": GDN_SGLANG}, True,
    ),
    Work("layer, 1 token", KDA, 1, _layers(LINEAR), {OURS: layer_ours, "vLLM": KDA_VLLM}, True),
    Work(
        "layer, 1 token", PART, 1, _layers(BOUNDED),
        {OURS: layer_ours, "SGLang": delta_sglang.layer_cuda, "vLLM": KDA_VLLM}, True,
    ),
    _window(
        PLAIN, DELTA, vLLM=delta_vllm.window_cuda, vLLM_in_Triton=delta_vllm.window_triton,
        SGLang=delta_sglang.window_gdn,
    ),
    _window(LINEAR, KDA, vLLM=delta_vllm.window_kda, SGLang=delta_sglang.window_kda),
    Work(
        "6 tokens from a ring of 32", DELTA, WINDOW, _layers(PLAIN),
        {OURS: delta_ring.ring_ours, "SGLang": delta_ring.ring_sglang},
    ),
)  # fmt: skip


def cases() -> Iterator[tuple[str, str, int, str]]:
    """Work, shape, batch and side; the sides of a cell one after the other."""
    for work in WORKS:
        for model in work.shapes:
            yield from ((work.name, model, batch, side) for batch in BATCHES for side in work.sides)


def work_of(name: str, model: str) -> Work:
    return next(work for work in WORKS if work.name == name and model in work.shapes)
