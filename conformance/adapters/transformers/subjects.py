"""Which parts of transformers are tested, and why the others are not."""

from dataclasses import replace
from functools import partial

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject

from . import functions, short_conv
from .cache import CachedLayer
from .families import CHUNK, FAMILIES, Family

SEQUENTIAL = NumericContract()
SSD_CHUNKS = NumericContract(order="chunked", chunk=CHUNK)
DELTA_CHUNKS = replace(SSD_CHUNKS, chunk=64)
"""A float32 model computes and stores everything in float32. The delta layers do not offer their chunk size."""
BFLOAT16 = NumericContract(io="bf16")
CONTRACTS = {"mamba1": SEQUENTIAL, "mamba2": SSD_CHUNKS, "delta": DELTA_CHUNKS, "kda": DELTA_CHUNKS}
LOG = ("kimi_linear", "glm5_next")
"""Families that compute softplus as log(1 + exp x)."""

LAYER = ("layer.prefill", "layer.step", "layer.continue", "layer.left_pad", "layer.right_pad")
INSIDE = "tested through the layer; the functions are tested separately"
NO_LIMIT = Limits({"dt_limit": ("off",)}, reason="mamba2_selective_state_update has no dt_limit")
NO_Z = Limits({"D": ("head", "off"), "z": ("off",)}, reason="mamba2_chunk_scan reads D per head and takes no z")
SCALED = Limits({"scale": ("default",)}, reason="the scale is fixed at k^-1/2")
ACTIVATED_OFF = Limits({"act": ("off",)}, reason="the layer has no activation after its convolution")

ELSEWHERE = {
    "inkling": "adds the residual inside the convolution; tested in float64 by tests/conformance/test_transformers_exact.py",
    "inkling2": "adds the residual inside the convolution; tested in float64 by tests/conformance/test_transformers_exact.py",
    "inkling2 dynamic": "the taps are projected from the token: no fixed convolution",
    "minimax": "no convolution, a fixed decay per head; tested in float64 by tests/conformance/test_transformers_exact.py",
    "zamba, several heads": "a sum of Mamba-1 layers; tested in float64 by tests/conformance/test_transformers_exact.py",
    "zaya": "two stacked convolutions before attention and a value delayed by one token: none of the three recurrences",
    "recurrent_gemma": "RG-LRU, and its state lives in the module: none of the three recurrences, no cache to test",
    "rwkv": "another recurrence",
    "xlstm": "another recurrence",
}


def adapter() -> Adapter:
    """The adapter of the installed transformers. Raises: ImportError."""
    import torch  # noqa: F401
    import transformers

    subjects = (*map(layer, FAMILIES), *FUNCTIONS, *map(convolution, short_conv.LAYERS))
    elsewhere = tuple(Subject(name, {}, {"layer": reason}) for name, reason in ELSEWHERE.items())
    homepage = "https://github.com/huggingface/transformers/issues"
    return Adapter("transformers", transformers.__version__, subjects + elsewhere, homepage)


def layer(family: Family) -> Subject:
    """The layer of a family; rollback uses a cache that records its past, because `crop` requires it."""
    (kind,) = family.limits.options["kind"]
    contract = replace(CONTRACTS[kind], softplus="log") if family.name in LOG else CONTRACTS[kind]
    capabilities = {name: Capability(partial(CachedLayer, family), contract, family.limits) for name in LAYER}
    recording = partial(CachedLayer, family, recording=True)
    capabilities["layer.rollback"] = Capability(recording, contract, family.limits)
    absent = dict.fromkeys(("conv", "selective", "ssd", "delta", "shortconv"), INSIDE)
    return Subject(family.name, capabilities, absent)


def convolution(name: str) -> Subject:
    """A layer that consists of a short convolution, with its operations as a convolution unless it has biases."""
    family = short_conv.LAYERS[name]
    run = partial(short_conv.CachedShortConv, family)
    capabilities = {operation: Capability(run, SEQUENTIAL, family.limits) for operation in LAYER}
    capabilities["layer.rollback"] = Capability(partial(run, recording=True), SEQUENTIAL, family.limits)
    if name in short_conv.FAMILIES:
        for operation, alone in (("conv.step", short_conv.step), ("conv.scan", short_conv.scan)):
            capabilities[operation] = Capability(partial(alone, name), SEQUENTIAL, ACTIVATED_OFF)
    return Subject(name, capabilities, {"conv": "padding enters the window as zeros", "shortconv": INSIDE})


NO_TREE = "no tree"
FUNCTIONS = (
    Subject(
        "functions of mamba",
        {"selective.step": Capability(functions.selective_step, SEQUENTIAL)},
        {"selective.scan": "mamba_selective_scan takes no initial state", "selective.verify_tree": NO_TREE},
    ),
    Subject(
        "functions of mamba2",
        {
            "conv.step": Capability(functions.conv_step, SEQUENTIAL),
            "conv.scan": Capability(functions.conv_scan, SEQUENTIAL),
            "ssd.step": Capability(functions.ssd_step, SEQUENTIAL, NO_LIMIT),
            "ssd.scan": Capability(functions.ssd_scan, SSD_CHUNKS, NO_Z),
        },
        {"conv.verify_tree": NO_TREE, "ssd.verify_tree": NO_TREE, "layer": "tested as layers of their families"},
    ),
    Subject(
        "functions of qwen3_next and kimi_linear",
        {
            "delta.step": Capability(functions.delta_step, SEQUENTIAL, SCALED),
            "delta.scan": Capability(functions.delta_scan, SSD_CHUNKS, SCALED),
        },
        {"delta.verify_tree": NO_TREE, "layer": "tested as layers of their families"},
    ),
    Subject(
        "functions of qwen3_next and kimi_linear, bf16",
        {
            "delta.step": Capability(partial(functions.delta_step, dtype="bfloat16"), BFLOAT16, SCALED),
            "delta.scan": Capability(
                partial(functions.delta_scan, dtype="bfloat16"), replace(BFLOAT16, order="chunked", chunk=CHUNK), SCALED
            ),
        },
        {"delta.verify_tree": NO_TREE, "layer": "tested as layers of their families"},
    ),
)
