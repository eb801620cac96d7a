"""Makes the folder of other projects' kernels that `--peers` of the GPU gates takes, in the versions that are timed.

    python -m perf_gates.gpu.unpack_peers --into FOLDER

It needs pip, a network, and torch and Triton, which the kernels import; no GPU. It downloads 340 MB, most of them vLLM's
wheel, of which 7 MB stay. A folder that is complete is only checked. In the end every module that is timed is imported.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from conformance.adapters.unpack import unpack
from conformance.errors import UnpackError
from conformance.main import run_command
from ssmspec_ref.errors import OptionError

from .kernels import peers

PINNED = ("vllm==0.33.0", "fla-core==0.6.0", "einops==0.8.2", "mamba-ssm==2.3.2.post1")
"""The versions that `tox -e peers-*` tests."""


def main(into: Annotated[Path, typer.Option(help="The folder; give it to `perf_gates.gpu_gates --peers`.")]) -> int:
    for requirement in PINNED:
        try:
            written = unpack(requirement, into)
        except UnpackError as error:
            raise OptionError(str(error)) from error
        print(f"{requirement}: {f'{len(written)} files written to' if written else 'already in'} {into}", flush=True)
    peers.load(into)
    if lacking := sorted(peers.NAMES.keys() - peers.peers().keys()):
        raise OptionError(
            f"{into} has no {', '.join(lacking)} that can be imported; remove the folder and run this command again"
        )
    print(f"{into} holds every module that is timed: {', '.join(peers.NAMES.values())}")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
