"""The worker process of one adapter: loads it, sends its declaration, and answers calls until the connection closes.

Messages are those of `isolation.encoding`, over a socket. The implementation's standard output is a file, so that what it
prints disturbs nothing.
"""

import faulthandler
import os
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ssmspec_ref.contract import Adapter

from ..device import driver
from ..device.observed import versions
from ..errors import ConformanceError, MalformedAdapter
from ..interpreter.device import placed
from ..isolation.declared import plain
from ..isolation.encoding import decode, encode
from ..isolation.spent import used_here, worked
from ..suite import SPECIFICATIONS
from .calls import Answer, Foreign, Here, tail
from .load import load

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LOST = "the process lost its GPU by this; later cases run in another one"
SHOWN = 200
"""Characters of printed output to show."""


class Printed:
    """The implementation's standard output, kept in a file."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # the standard output as long as the process lives
        os.dup2(self.file.fileno(), 1)

    def taken(self) -> str:
        """The output printed since the last call, shortened."""
        sys.stdout.flush()
        self.file.seek(0)
        text = self.file.read(4 * SHOWN).decode(errors="replace")
        self.file.truncate(0)
        self.file.seek(0)
        return text[:SHOWN]


def main(descriptor: int) -> None:
    """Serve one adapter over a socket; its name and device are sent first."""
    os.set_inheritable(descriptor, False)
    end = Connection(descriptor)
    faulthandler.enable()
    printed = Printed()
    name, device = decode(end.recv_bytes())
    try:
        with placed(device) as place:
            adapter = load(name, place)
            end.send_bytes(said(adapter))
            serve(adapter, end, printed)
    except ConformanceError as error:
        end.send_bytes(encode({"refused": (type(error).__name__, str(error))}))


def said(adapter: Adapter) -> bytes:
    """The declaration of an adapter, encoded. Raises: MalformedAdapter."""
    try:
        return encode({"declared": plain(adapter), "versions": versions()})
    except (TypeError, ValueError, AttributeError) as error:
        raise MalformedAdapter(f"{adapter.name}: its declaration is invalid: {tail(error)}") from error


def serve(adapter: Adapter, end: Connection, printed: Printed) -> None:
    """Answer calls until there are no more, or until the process has lost its GPU, which would fail every later call."""
    bench = Here()
    printed.taken()
    while True:
        try:
            number, subject, operation, specification, arguments, gaps, again = decode(end.recv_bytes())
        except EOFError:
            return
        began, before = time.monotonic(), used_here()  # not as the last call ended: it may have waited since
        capability = adapter.subjects[subject].capabilities[operation]
        answer = bench.start(SPECIFICATIONS[specification], capability, arguments, gaps, again)()
        answer = replace(answer, spent=worked(before, used_here(), time.monotonic() - began))
        said = printed.taken()
        if said and not answer.failed:
            told = f"printed {said!r} to standard output; print to standard error instead"
            answer = Answer(failed="printed", said=told, place=answer.place, spent=answer.spent)
        if last := answer.failed == "error" and driver.lost():
            answer = replace(answer, said=f"{answer.said} | {LOST}")
        try:
            message = encode(answered(number, answer, last))
        except (TypeError, ValueError, RecursionError) as error:
            told = f"its return value cannot be sent: {tail(error)}"
            failed = Answer(failed="error", said=told, place=answer.place, spent=answer.spent)
            message = encode(answered(number, failed))
        end.send_bytes(message)
        if last:
            return


def answered(number: int, answer: Answer, last: bool = False) -> dict[str, Any]:
    """An answer as plain data, for sending."""
    told = {name: getattr(answer, name) for name in ("written", "failed", "said", "place", "spent")}
    return {
        "number": number,
        "outputs": tuple(map(sent, answer.came.outputs)),
        "used": sent(answer.came.used),
        "drafts": answer.came.drafts,
        "changed": answer.came.changed,
        "last": last,
        **told,
    }


def sent(came: Any) -> Any:
    """An array unchanged; another object by its description."""
    return {"kind": came.kind, "dtype": came.dtype, "device": came.device} if isinstance(came, Foreign) else came


def environment() -> dict[str, str]:
    """The environment of a child process: the same modules, and one thread for arithmetic unless the caller says otherwise.

    The arrays of cases are small. With several threads that wait for each other, one convolution of PyTorch took 30 ms on two
    busy cores instead of 0.1 ms.
    """
    modules = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return dict.fromkeys(THREADS, "1") | os.environ | {"PYTHONPATH": modules}
