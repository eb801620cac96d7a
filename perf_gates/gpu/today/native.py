"""Peers in CUDA: plain C functions of the libraries that `build` made, and a kernel of vLLM's own binary.

flashinfer_step, flashinfer_ring, sglang_kda    shims in `shims/`, which say what they call
vllm_gdn                                        `gdn_decode_post_conv_mtp_kernel` of vLLM's wheel, launched by the driver
"""

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .loading import file, library

ROOM = 400
"""Characters of what a library says of a failure."""
GDN_NAME = "gdn_decode_post_conv_mtp_kernelIfLi{ratio}ELb0EEE"
"""The part of the kernel's mangled name that says fp32 states, value heads for a key head, and a SiLU gate."""
GDN_THREADS = 256
SYMBOLS, FUNCTION, GLOBAL = 2, 2, 1
"""Of ELF: a section of symbols, a symbol of a function, a name that others see."""


class PeerFailed(RuntimeError):
    """What a peer's library said."""


def structure(numbers: str, pointers: str) -> type[ctypes.Structure]:
    """The arguments of a shim: numbers are `name` (int) or `name:f` (float), in the order of the shim."""
    kinds = {"": ctypes.c_int, "f": ctypes.c_float}
    fields = [(name.partition(":")[0], kinds[name.partition(":")[2]]) for name in numbers.split()]
    return type("Arguments", (ctypes.Structure,), {"_fields_": [*fields, *((n, ctypes.c_void_p) for n in pointers.split())]})


STEP = structure("batch heads groups slots", "state x dt bias A B C D out index middle middle_index")
RING = structure(
    "batch slots split stages", "state x dt bias A B C D out x_cache B_cache dt_cache start held index cb sums cb_old"
)
KDA = structure(
    "batch bounded bound:f scale:f eps:f", "qkv a b windows w_q w_k w_v bias A_log dt_bias gate weight state index out"
)


def call(name: str, function: str, kind: type[ctypes.Structure]) -> Callable[..., None]:
    """A function of a library of the folder, which takes tensors and numbers by name.

    Raises: PeerMissing; the function raises PeerFailed.
    """
    run = getattr(library(name), function)

    def launch(**given: Tensor | float | None) -> None:
        said = ctypes.create_string_buffer(ROOM)
        values = {k: v.data_ptr() if isinstance(v, Tensor) else v for k, v in given.items() if v is not None}
        if run(ctypes.byref(kind(**values)), stream(), said, ROOM):
            raise PeerFailed(f"{name}: {said.value.decode(errors='replace').strip()[:ROOM]}")

    return launch


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


@cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def vllm_gdn(ratio: int) -> Callable[..., None]:
    """vLLM's fused verification for `ratio` value heads of a key head. Raises: PeerMissing, PeerFailed."""
    binary = file("lib/vllm_gdn.cubin").read_bytes()
    torch.zeros(1, device="cuda")  # the context
    function = kernel_of(binary, GDN_NAME.format(ratio=ratio))

    def launch(
        qkv: Tensor,
        a: Tensor,
        b: Tensor,
        A_log: Tensor,
        dt_bias: Tensor,
        indices: Tensor,
        ends: Tensor,
        accepted: Tensor,
        state: Tensor,
        gate: Tensor,
        weight: Tensor,
        out: Tensor,
        eps: float,
    ) -> None:
        heads, keys = out.shape[-2], (qkv.shape[1] // state.shape[-1] - out.shape[-2]) // 2
        tensors = (qkv, a, b, A_log, dt_bias, indices, ends, accepted, state, gate, weight, out)
        rows = (qkv, a, b, gate, state)
        values: list[Any] = [ctypes.c_void_p(x.data_ptr()) for x in tensors]
        values += [ctypes.c_int(n) for n in (keys, heads, indices.shape[1], 0)]  # 0: dt_bias is in fp32
        values += [ctypes.c_bool(False), ctypes.c_float(state.shape[-1] ** -0.5), ctypes.c_float(eps)]
        values += [(ctypes.c_int64 * len(rows))(*(x.stride(0) for x in rows))]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = (len(ends) - 1, heads, 1, GDN_THREADS, 1, 1, 0)
        _done(driver().cuLaunchKernel(function, *grid, stream(), pointers, None), "launching vLLM's kernel")

    return launch


def kernel_of(binary: bytes, part: str) -> ctypes.c_void_p:
    """The kernel whose name has this part in it. Its name is local to its file, so that it is looked for in the list of all.

    Raises: PeerFailed.
    """
    module, count, name = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_char_p()
    _done(driver().cuModuleLoadData(ctypes.byref(module), binary), "loading vllm_gdn.cubin")
    _done(driver().cuModuleGetFunctionCount(ctypes.byref(count), module), "counting vLLM's kernels")
    found = (ctypes.c_void_p * count.value)()
    _done(driver().cuModuleEnumerateFunctions(found, count, module), "listing vLLM's kernels")
    for function in map(ctypes.c_void_p, found):
        _done(driver().cuFuncGetName(ctypes.byref(name), function), "the name of a kernel of vLLM")
        if part.encode() in (name.value or b""):
            return function
    shown, whole = made_global(binary, part)
    function = ctypes.c_void_p()
    _done(driver().cuModuleLoadData(ctypes.byref(module), shown), "loading vllm_gdn.cubin")
    _done(driver().cuModuleGetFunction(ctypes.byref(function), module, whole), f"{whole.decode()}, of {count.value}")
    return function


def made_global(binary: bytes, part: str) -> tuple[bytes, bytes]:
    """The binary with the kernel's name made visible, and this name: one byte of its symbol table is changed.

    Source: ELF-64, tables of sections (64 bytes each) and of symbols (24 bytes each). Raises: PeerFailed.
    """
    shown = bytearray(binary)
    (table,), (count,) = struct.unpack_from("<Q", binary, 40), struct.unpack_from("<H", binary, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, table + 64 * i) for i in range(count)]
    symbols = next(section for section in sections if section[1] == SYMBOLS)
    names = sections[symbols[6]][4]
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        begin = names + struct.unpack_from("<I", binary, at)[0]
        name = binary[begin : binary.index(b"\0", begin)]
        if part.encode() in name and shown[at + 4] & 15 == FUNCTION:
            shown[at + 4] = GLOBAL << 4 | FUNCTION
            return bytes(shown), name
    raise PeerFailed(f"no kernel of vLLM's binary is {part}; another version needs another name")


def _done(code: int, what: str) -> None:
    if code:
        raise PeerFailed(f"{what}: the driver returned {code}")
