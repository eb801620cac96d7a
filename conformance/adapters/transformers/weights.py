"""Load the reference's layer records into the modules of transformers.

A projection is a plain `nn.Linear` in every family, so each is replaced by one with the record's sizes; the rest of a module
keeps its own parameters, filled with the record's values. If a module stores another quantity than the record (A_log instead
of A), the value that it computes with is returned: `loaded` equals `layer` except for those fields.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref.layers.layer import DeltaLayer, Mamba1Layer, Mamba2Layer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import Norm
from ssmspec_ref.shapes import Array

from ..key_heads import by_key_head


def tensor(values: Array, like: Any) -> Any:
    """`values` as a tensor with the dtype of the parameter `like`."""
    import torch

    return torch.as_tensor(np.ascontiguousarray(values)).to(like.dtype)


def fill(parameter: Any, values: Array | None) -> None:
    """Write `values` into a parameter with the same number of elements; None writes 0."""
    import torch

    with torch.no_grad():
        parameter.zero_()
        if values is not None:
            parameter.copy_(tensor(values, parameter).reshape(parameter.shape))


def dense(weight: Array, bias: Array | None, like: Any) -> Any:
    """An `nn.Linear` with these weights and the dtype of the parameter `like`."""
    import torch

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=like.dtype)
    fill(layer.weight, weight)
    if bias is not None:
        fill(layer.bias, bias)
    return layer


def project(linear: Linear, like: Any) -> Any:
    """The `nn.Linear` of a full-rank map."""
    return dense(linear.weight, linear.bias, like)


def decay(parameter: Any, A: Array) -> Array:
    """Store A as the module does, as A_log, and return the A that the module will compute from it."""
    import torch

    fill(parameter, np.log(-A))
    with torch.no_grad():
        return (-torch.exp(parameter.float())).double().numpy().reshape(A.shape)


def convolution(module: Any, layer: Any) -> None:
    """The weights and the bias of the causal convolution."""
    conv = layer.mixer.conv
    fill(module.weight, conv.weight)
    if conv.bias is not None:
        fill(module.bias, conv.bias)


def mamba2(module: Any, layer: Mamba2Layer) -> Mamba2Layer:
    """Mamba-2 of every family: in_proj packs z | x B C | dt."""
    like, params = module.A_log, layer.mixer.params
    module.in_proj, module.out_proj = project(layer.in_proj, like), project(layer.out_proj, like)
    convolution(module.conv1d, layer)
    A = decay(module.A_log, params.A)
    fill(module.D, params.D)
    fill(module.dt_bias, params.dt_bias)
    if layer.norm is not None:
        fill(module.norm.weight, layer.norm.weight)
        module.norm.variance_epsilon = layer.norm.eps
    return replace(layer, mixer=replace(layer.mixer, params=replace(params, A=A)))


def falcon_h1(module: Any, layer: Mamba2Layer) -> Mamba2Layer:
    """Mamba-2 with a multiplier per channel of the projection; the model, not the module, creates that vector."""
    ones = np.ones(layer.in_proj.outputs)
    multipliers = tensor(ones if layer.multipliers is None else layer.multipliers, module.A_log)
    module.register_buffer("mup_vector", multipliers[None, None], persistent=False)
    module.ssm_in_multiplier = layer.input_multiplier
    return mamba2(module, layer)


def mamba1(module: Any, layer: Mamba1Layer) -> Mamba1Layer:
    """Mamba-1 of every family but Zamba: in_proj packs x | z, x_proj dt | B | C."""
    like, mixer = module.A_log, layer.mixer
    module.in_proj, module.out_proj = project(layer.in_proj, like), project(layer.out_proj, like)
    module.x_proj = dense(mixer.x_proj, None, like)
    module.dt_proj = dense(mixer.dt_proj, mixer.params.dt_bias, like)
    convolution(module.conv1d, layer)
    A = decay(module.A_log, mixer.params.A)
    fill(module.D, mixer.params.D)
    for name, norm in (("dt", mixer.dt_norm), ("b", mixer.B_norm), ("c", mixer.C_norm)):
        if norm is not None:
            module.add_module(f"{name}_layernorm", inner_norm(getattr(module, f"{name}_layernorm"), norm))
    return replace(layer, mixer=replace(mixer, params=replace(mixer.params, A=A)))


def inner_norm(module: Any, norm: Norm) -> Any:
    """A norm of dt, B or C: the same class with the record's size."""
    made = type(module)(len(norm.weight), eps=norm.eps)
    made.to(module.weight.dtype)
    fill(made.weight, norm.weight)
    return made


def zamba(module: Any, layer: Mamba1Layer) -> Mamba1Layer:
    """Zamba with one head: in_proj interleaves x and z channel by channel; every parameter has a head axis."""
    like, mixer = module.A_log, layer.mixer
    channels = mixer.conv.weight.shape[0]
    order = np.arange(2 * channels).reshape(2, channels).T.reshape(-1)  # row 2d is x_d, row 2d + 1 is z_d
    bias = None if layer.in_proj.bias is None else layer.in_proj.bias[order]
    module.in_proj, module.out_proj = dense(layer.in_proj.weight[order], bias, like), project(layer.out_proj, like)
    convolution(module.conv1d, layer)
    fill(module.x_proj_weight, mixer.x_proj)
    fill(module.dt_proj_weight, mixer.dt_proj)
    fill(module.dt_proj_bias, mixer.params.dt_bias)
    A = decay(module.A_log, mixer.params.A)
    fill(module.D, mixer.params.D)
    return replace(layer, mixer=replace(mixer, params=replace(mixer.params, A=A)))


def delta_parameters(module: Any, norm: Any, layer: DeltaLayer) -> DeltaLayer:
    """The shared part of the delta-rule modules: convolution, A, dt bias, norm."""
    convolution(module.conv1d, layer)
    A = decay(module.A_log, layer.A)
    fill(module.dt_bias, layer.dt_bias)
    fill(norm.weight, layer.norm.weight)
    norm.variance_epsilon = layer.norm.eps
    return replace(layer, A=A)


def qwen3_next(module: Any, layer: DeltaLayer) -> DeltaLayer:
    """Qwen3-Next interleaves its projections by key head."""
    like = module.A_log
    module.in_proj_qkvz, module.in_proj_ba = (dense(weight, None, like) for weight in by_key_head(layer))
    module.out_proj = project(layer.out_proj, like)
    return delta_parameters(module, module.norm, layer)


def qwen3_5(module: Any, layer: DeltaLayer) -> DeltaLayer:
    """Qwen3.5 and similar: one projection each for q|k|v, z, b, a."""
    like = module.A_log
    module.in_proj_qkv, module.in_proj_z = project(layer.qkv_proj, like), project(layer.z_proj, like)
    module.in_proj_b, module.in_proj_a = project(layer.b_proj, like), project(layer.a_proj, like)
    module.out_proj = project(layer.out_proj, like)
    return delta_parameters(module, module.norm, layer)


def separate_qkv(module: Any, layer: DeltaLayer) -> None:
    """q, k and v with separate projections."""
    keys = layer.mixer.key_heads * layer.mixer.key_channels
    q, k, v = np.split(layer.qkv_proj.weight, [keys, 2 * keys])
    for name, weight in (("q", q), ("k", k), ("v", v)):
        setattr(module, f"{name}_proj", dense(weight, None, module.o_proj.weight))


def olmo_hybrid(module: Any, layer: DeltaLayer) -> DeltaLayer:
    """OLMo-Hybrid: separate projections; beta is doubled if negative eigenvalues are allowed."""
    like = module.A_log
    separate_qkv(module, layer)
    module.g_proj, module.a_proj = project(layer.z_proj, like), project(layer.a_proj, like)
    module.b_proj, module.o_proj = project(layer.b_proj, like), project(layer.out_proj, like)
    return delta_parameters(module, module.o_norm, layer)


def kimi_linear(module: Any, layer: DeltaLayer) -> DeltaLayer:
    """Kimi Linear and GLM: the decay and the gate through a low rank; the decay's parameters in a separate module."""
    gate, like = module.forget_gate, module.o_proj.weight
    separate_qkv(module, layer)
    gate.f_a_proj, gate.f_b_proj = factors(layer.a_proj, like)
    module.g_a_proj, module.g_b_proj = factors(layer.z_proj, like)
    return kda(module, layer)


def bailing_hybrid(module: Any, layer: DeltaLayer) -> DeltaLayer:
    """Bailing (Ring-linear, Ling): as Kimi Linear, with the decay and the gate at full rank."""
    like = module.o_proj.weight
    separate_qkv(module, layer)
    module.forget_gate.f_proj, module.g_proj = project(layer.a_proj, like), project(layer.z_proj, like)
    return kda(module, layer)


def kda(module: Any, layer: DeltaLayer) -> DeltaLayer:
    like = module.o_proj.weight
    module.b_proj, module.o_proj = project(layer.b_proj, like), project(layer.out_proj, like)
    convolution(module.conv1d, layer)
    A = decay(module.forget_gate.A_log, layer.A)
    fill(module.forget_gate.dt_bias, layer.dt_bias)
    fill(module.o_norm.weight, layer.norm.weight)
    module.o_norm.variance_epsilon = layer.norm.eps
    return replace(layer, A=A)


def factors(linear: Linear, like: Any) -> tuple[Any, Any]:
    """The two `nn.Linear` of a low-rank map."""
    if linear.down is None:
        raise ValueError("this family factors the projection through a low rank, but the record's has full rank")
    return dense(linear.down, None, like), dense(linear.weight, linear.bias, like)
