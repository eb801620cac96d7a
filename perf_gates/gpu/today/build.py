"""Fill FOLDER/today with the peers of today: `python -m perf_gates.gpu.today.build FOLDER [--wheels DIR]`.

The wheels of `wheels.toml` are downloaded with pip, or taken from DIR. What is imported is unpacked; what is in CUDA is
compiled by nvcc for sm_90a, with the flags of the projects' own builds, from the sources in their wheels and our shims; a
kernel of vLLM's binary is taken out of it by cuobjdump, which comes with Triton. Needs 4 GB of disk while it runs and leaves
about 15 MB; takes some ten minutes on two cores. What is there already is not made again.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from conformance.adapters.unpack import RECORD, download, extract
from conformance.errors import UnpackError
from conformance.main import run_command
from conformance.refusal import refused

from .loading import HOME
from .pinned import HERE, pinned

COMMON = "-O3 -DNDEBUG -gencode=arch=compute_90a,code=sm_90a -use_fast_math --expt-relaxed-constexpr -shared"
FLAGS = {
    "flashinfer": "-std=c++17 -DFLASHINFER_ENABLE_F16 -DFLASHINFER_ENABLE_BF16 -DFLASHINFER_ENABLE_FP8_E4M3 "
    "-DFLASHINFER_ENABLE_FP8_E5M2 -DFLASHINFER_MAMBA_ENABLE_SM90 -static-global-template-stub=false",
    "sglang": "-std=c++20 -DSGL_CUDA_ARCH=900",
}
INCLUDES = {
    "flashinfer": (
        "-Iflashinfer/data/cccl/libcudacxx/include", "-Iflashinfer/data/cccl/cub", "-Iflashinfer/data/cccl/thrust",
        "-isystem=flashinfer/data/include", "-isystem=flashinfer/data/cutlass/include",
    ),
    "sglang": (
        "-isystem=sglang/kernels/jit/include", "-isystem=sglang/kernels/jit/csrc", "-isystem=tvm_ffi/include",
        "-isystem=tvm_ffi/3rdparty/dlpack/include",
    ),
}  # fmt: skip
"""Below the folder of the sources. CCCL comes before the toolkit's; warnings of the others' headers are not ours to see."""
GDN = b"gdn_decode_post_conv_mtp_kernelIf"
"""In the name of vLLM's kernels with fp32 states."""


def main(
    folder: Annotated[Path, typer.Argument(help="The folder that is then given with --peers.")],
    wheels: Annotated[Path | None, typer.Option(help="A folder with the wheels; the others are downloaded.")] = None,
) -> None:
    """Unpack and compile the peers of today."""
    try:
        for line in made(folder / HOME, wheels):
            typer.echo(line)
    except UnpackError as error:
        raise refused(error) from None


def made(home: Path, wheels: Path | None) -> Iterator[str]:
    """Makes what is missing, and says what. Raises: UnpackError."""
    (home / "lib").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as temporary:
        sources = Path(temporary)
        for wheel in pinned()["wheel"]:
            yield f"{wheel['name']} {wheel['version']}: {unpacked(wheel, home, sources, wheels)}"
        for library in pinned()["library"]:
            yield f"{library['name']}: {built(library, sources, home / 'lib')}"
        yield f"vllm_gdn.cubin: {taken(sources / 'vllm/_C_stable_libtorch.abi3.so', sources, home / 'lib/vllm_gdn.cubin')}"


def unpacked(wheel: dict[str, Any], home: Path, sources: Path, wheels: Path | None) -> str:
    """Unpacks what is imported into the folder, and what is compiled into another."""
    name, version = wheel["name"], wheel["version"]
    stem = f"{name.replace('-', '_')}-{version}"
    found = [*wheels.glob(f"{stem}-*.whl")] if wheels else []
    with tempfile.TemporaryDirectory(dir=home) as there:
        file = found[0] if found else download(f"{name}=={version}", Path(there))
        if not (home / f"{stem}.dist-info").exists():
            extract(file, (*wheel.get("parts", ()), *RECORD), home)
        extract(file, wheel.get("sources", ()), sources)
    return "unpacked"


def built(library: dict[str, Any], sources: Path, into: Path) -> str:
    """Compiles a shim. Raises: UnpackError with the compiler's last lines."""
    out = into / f"{library['name']}.so"
    if out.exists():
        return "already there"
    project = library["shim"].partition("_")[0]
    defines = [f"-DPEER_{name}={value}" for name, value in library["defines"].items()]
    flags = [*shlex.split(COMMON), *shlex.split(FLAGS[project]), "-Xcompiler", "-fPIC"]
    shim = HERE / "shims" / f"{library['shim']}.cu"
    command = [compiler(), *flags, *INCLUDES[project], *defines, "-o", str(out.resolve()), str(shim)]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    if done.returncode:
        raise UnpackError(f"nvcc cannot compile {library['name']}: {_last(done.stderr)}")
    return "compiled"


def compiler() -> str:
    """nvcc. Raises: UnpackError."""
    found = shutil.which("nvcc") or str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc")
    if not Path(found).exists():
        raise UnpackError("nvcc is not on PATH, and not in CUDA_HOME; install the CUDA toolkit, 13.0 or newer")
    return found


def taken(binary: Path, room: Path, out: Path) -> str:
    """The machine code for sm_90a that has vLLM's kernel, out of its library. Raises: UnpackError."""
    if out.exists():
        return "already there"
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    inside = room / "cubins"
    inside.mkdir()
    done = subprocess.run([str(tool), "-xelf", "sm_90", str(binary)], cwd=inside, capture_output=True, text=True)
    found = [file for file in sorted(inside.glob("*.cubin")) if GDN in file.read_bytes()]
    if not found:
        raise UnpackError(f"no code of {GDN.decode()} for sm_90 in {binary.name}: {_last(done.stderr or done.stdout)}")
    shutil.copy(found[0], out)
    return "taken out"


def _last(said: str) -> str:
    return " ".join(said.strip().splitlines()[-3:])[:400]


if __name__ == "__main__":
    sys.exit(run_command(main))
