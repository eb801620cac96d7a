"""Makes the folder of other projects' kernels that `--peers` of the GPU gates takes, in the versions that are timed.

    python -m perf_gates.gpu.unpack_peers --into FOLDER

It needs pip, a network, and torch and Triton, which the kernels import; no GPU. It downloads 340 MB, most of them vLLM's
wheel, of which 7 MB stay. A folder that is complete is only checked. In the end every module that is timed is imported.
"""

import argparse
import sys
from pathlib import Path

from conformance.adapters.unpack import unpack
from conformance.errors import UnpackError

from .kernels import peers

PINNED = ("vllm==0.33.0", "fla-core==0.6.0", "einops==0.8.2", "mamba-ssm==2.3.2.post1")
"""The versions that `tox -e peers-*` tests."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf_gates.gpu.unpack_peers", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="the folder; give it to `perf_gates.gpu_gates --peers`")
    into: Path = parser.parse_args(argv).into
    for requirement in PINNED:
        try:
            written = unpack(requirement, into)
        except UnpackError as error:
            parser.error(str(error))
        print(f"{requirement}: {f'{len(written)} files written to' if written else 'already in'} {into}", flush=True)
    peers.load(into)
    if lacking := sorted(peers.NAMES.keys() - peers.peers().keys()):
        parser.error(f"{into} has no {', '.join(lacking)} that can be imported; remove the folder and run this command again")
    print(f"{into} holds every module that is timed: {', '.join(peers.NAMES.values())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
