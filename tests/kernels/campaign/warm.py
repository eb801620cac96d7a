"""A process that has imported what all tests import, and none of the kernels: it forks for each break.

It reads lines of JSON, {"folder", "files", "limit"}, and answers each with {"code", "ended"}: the exit code of pytest,
negative for a signal, and whether pytest ended in time.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import hypothesis  # noqa: F401
import numpy  # noqa: F401
import pytest
import torch  # noqa: F401
import triton
import triton.language
import triton.language.extra.cuda
import triton.runtime.interpreter  # noqa: F401

import ssmspec_ref.error_bounds  # noqa: F401
from conformance.interpreter import faithful, memory  # noqa: F401

IGNORED = ("ignore::pytest.PytestAssertRewriteWarning", "ignore:Conversion of an array with ndim:DeprecationWarning")
"""Plugins whose assertions would be rewritten, were they not here before pytest; and what Triton 3.6 does with scalars."""


def child(folder: str, files: list[str]) -> int:
    """Pytest over the files, with the package that lies in the folder, up to the first failure."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.path.insert(0, folder)
    os.environ["SSMSPEC_CAMPAIGN_REPORT"] = str(Path(folder) / "report")
    plugins = ["timeout", "no:cacheprovider", "no:xdist", "tests.kernels.campaign.report"]
    settings = [*(f"-W{one}" for one in IGNORED), *(f"-p{name}" for name in plugins)]
    return int(pytest.main(["-x", "-q", "--tb=no", "-otimeout=0", *settings, *files]))


def wait(process: int, limit: float) -> tuple[int, bool]:
    """The exit code of a child, and whether it ended in time; otherwise it is killed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), True
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), False


def main() -> None:
    kernels = [name for name in sys.modules if name.startswith("ssmspec_kernels")]
    if kernels:
        raise SystemExit(f"{kernels} were imported before the breaks")
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if process == 0:
            code = 70
            try:
                code = child(order["folder"], order["files"])
            finally:
                os._exit(code)
        code, ended = wait(process, order["limit"])
        print(json.dumps({"code": code, "ended": ended}), flush=True)


if __name__ == "__main__":
    main()
