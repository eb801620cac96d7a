"""Compiles a CUDA source by NVRTC, which the CUDA build of torch brings, and launches it by the driver."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class CompilationError(RuntimeError):
    """NVRTC or the driver refused."""


def checked(code: int, what: str) -> None:
    """Raises: CompilationError."""
    if code:
        raise CompilationError(f"{what} returned {code}")


def library() -> ctypes.CDLL:
    """NVRTC of torch's CUDA version. Raises: CompilationError."""
    major = (torch.version.cuda or "13").split(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CompilationError(f"libnvrtc.so.{major} is not found; install the CUDA build of torch, which brings it")


def cubin(source: str, arch: str = "sm_90a") -> bytes:
    """The machine code. Raises: CompilationError with the compiler's log."""
    rtc, program = library(), ctypes.c_void_p()
    text = source.encode()
    checked(rtc.nvrtcCreateProgram(ctypes.byref(program), text, b"step.cu", 0, None, None), "nvrtcCreateProgram")
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={arch}".encode(), b"--std=c++17")
    failed = rtc.nvrtcCompileProgram(program, 2, options)
    size = ctypes.c_size_t()
    if failed:
        checked(rtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
        log = ctypes.create_string_buffer(size.value)
        checked(rtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
        raise CompilationError(log.value.decode())
    checked(rtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    code = ctypes.create_string_buffer(size.value)
    checked(rtc.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    return code.raw


def cooperative(code: bytes, name: str, threads: int, shared: int) -> Callable[[ctypes.Structure, int], None]:
    """Launches `name` on torch's current stream with one argument and a number of programs, all of them resident at once.

    Raises: CompilationError, also if the programs do not fit.
    """
    torch.cuda.current_stream()  # makes torch's context the current one
    cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    checked(cuda.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
    checked(cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "cuModuleGetFunction")
    checked(cuda.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")  # dynamic shared memory

    def launch(argument: ctypes.Structure, programs: int) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        stream: Any = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        given = (programs, 1, 1, threads, 1, 1, shared, stream, arguments)
        checked(cuda.cuLaunchCooperativeKernel(function, *given), "cuLaunchCooperativeKernel")

    return launch


def source() -> str:
    return Path(__file__).with_name("step.cu").read_text()
