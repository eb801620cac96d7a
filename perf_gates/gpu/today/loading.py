"""The peers of today: their modules and libraries, from FOLDER/today as `build` made it.

A peer that is not there raises `PeerMissing` where it is asked for, so that only its own cells are unmeasured. Engines are
imported without their packages' `__init__`, with stubs for what their kernels import from the rest.
"""

import ctypes
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conformance.adapters.peer_kernels import stub_modules
from conformance.adapters.peer_kernels.sources import importable, version_of

HOME = "today"
KIMI = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"
SGLANG = "sglang.kernels.ops"
RING = f"{SGLANG}.attention.linear.gdn_replayssm_spec_decode"
_home: list[Path] = []
_device = ["cuda"]


class PeerMissing(LookupError):
    """A peer whose files are not in the folder."""


def load(folder: Path | None, device: str = "cuda") -> None:
    """Sets the folder; nothing is imported before it is asked for."""
    _home[:], _device[:] = [] if folder is None else [folder / HOME], [device]
    if folder is not None:
        sys.path.insert(0, str(folder / HOME))
    for peer in (vllm, sglang, fla, library):
        peer.cache_clear()


def file(name: str) -> Path:
    """A file of the folder. Raises: PeerMissing."""
    if not _home or not (_home[0] / name).exists():
        where = _home[0] if _home else "no folder was given with --peers"
        raise PeerMissing(f"{name} is not there ({where}); make it with `python -m perf_gates.gpu.today.build FOLDER`")
    return _home[0] / name


@cache
def library(name: str) -> ctypes.CDLL:
    """A library of the folder. The driver, whose functions it calls, is loaded first. Raises: PeerMissing."""
    found = file(f"lib/{name}.so")
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found))


@cache
def vllm() -> Any:
    """vLLM's kernels, by the names of its functions. Raises: PeerMissing."""
    file("vllm/model_executor")
    adapter: Any = import_module("conformance.adapters.vllm")
    adapter.stand_in(_device[0])
    importable(KIMI, "vllm.model_executor.warmup")
    sys.modules["vllm.utils.platform_utils"].num_compute_units = _multiprocessors  # type: ignore[attr-defined]
    return _functions(
        (f"{adapter.OPS}.mamba_ssm", "selective_state_update"),
        (f"{adapter.OPS}.causal_conv1d", "causal_conv1d_update"),
        (f"{adapter.RULE}.fused_recurrent", "fused_recurrent_gated_delta_rule_packed_decode"),
        (f"{adapter.RULE}.fused_gdn_decode_post_conv_mtp", "fused_gdn_decode_post_conv_mtp_triton"),
        (f"{adapter.RULE}.layernorm_guard", "layer_norm_fwd"),
        (f"{adapter.RULE}.fused_norm_gate", "rms_norm_gated"),
        (f"{KIMI}.fused_recurrent", "fused_recurrent_kda", "fused_recurrent_kda_packed_decode"),
    )


@cache
def sglang() -> Any:
    """SGLang's kernels, by the names of its functions. Raises: PeerMissing."""
    file("sglang/kernels")
    adapter: Any = import_module("conformance.adapters.sglang")
    adapter.stand_in(_device[0])
    major, minor = stub_modules.capability(_device[0])
    import torch
    import triton

    sizes = {"cdiv": triton.cdiv, "next_power_of_2": triton.next_power_of_2}
    answers = dict.fromkeys(("is_cpu", "is_npu", "is_hip", "is_gfx95_supported", "cpu_has_amx_support"), lambda: False)
    answers |= {"is_cuda": lambda: _device[0] != "cpu", "is_sm90_supported": lambda: major == 9}
    context = {"get_device_sm": lambda: 10 * major + minor, "device_context": torch.device}
    stub_modules.module("sglang.srt.utils", **sizes, **answers, **context)
    arch = {"is_arch_support_pdl": lambda: major >= 9, "is_hip_runtime": lambda: False}
    here = {"get_jit_cuda_arch": lambda: SimpleNamespace(major=major, minor=minor)}
    stub_modules.module("sglang.kernels.jit.utils", **arch, **here)
    stub_modules.module("sglang.srt.batch_invariant_ops", is_batch_invariant_mode_enabled=lambda: False)
    stub_modules.module("sglang.srt.model_executor")
    phases = {"Backend": SimpleNamespace(TC_PIECEWISE=0), "Phase": SimpleNamespace(PREFILL=0)}
    piecewise = {"check_cuda_graph_backend": lambda *_: False}
    stub_modules.module("sglang.srt.model_executor.cuda_graph_config", **phases, **piecewise)
    return _functions(
        (f"{SGLANG}.mamba.causal_conv1d_triton", "causal_conv1d_update"),
        (f"{SGLANG}.attention.fla.fused_recurrent", "fused_recurrent_gated_delta_rule_packed_decode"),
        (f"{SGLANG}.attention.fla.layernorm_gated", "_layer_norm_fwd"),
        (f"{SGLANG}.attention.fla.fused_norm_gate", "layer_norm_gated_fwd"),
        (f"{SGLANG}.attention.linear.fused_sigmoid_gating_recurrent", "fused_sigmoid_gating_delta_rule_update"),
        (RING, "gdn_replayssm_spec_decode", "commit_gdn_replayssm_circular"),
        (f"{SGLANG}.attention.linear.fused_kda_conv_recurrent_verify", "fused_kda_conv_gating_verify"),
    )


@cache
def fla() -> Any:
    """fla's recurrent KDA, with a pool and slots. Raises: PeerMissing."""
    file("fla/ops")
    importable("fla.ops.kda", "fla.ops.utils")
    sys.modules["fla"].__version__ = version_of("fla-core")  # type: ignore[attr-defined]
    return _functions(("fla.ops.kda.fused_recurrent", "fused_recurrent_kda_fwd"))


def _functions(*homes: tuple[str, ...]) -> Any:
    return SimpleNamespace(**{name: getattr(import_module(home), name) for home, *names in homes for name in names})


def _multiprocessors(index: int = 0) -> int:
    import torch

    return torch.cuda.get_device_properties(index).multi_processor_count if _device[0] != "cpu" else 132
