"""A process of its own for one adapter: loads it, says what it declares, and calls what it is told to, until its input ends.

Messages are pickled, each behind its length in eight bytes, on the standard input and on what the standard output was when
the process began; the standard output that the implementation sees is a file, so that what it prints disturbs nothing.
"""

import faulthandler
import os
import pickle
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ssmspec_ref.contract import Adapter, Capability, Limits

from .bench import Answer, Here, tail
from .errors import ConformanceError
from .interpreter.device import placed
from .load import load
from .suite import SPECIFICATIONS

LENGTH = 8
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SHOWN = 200
"""Characters that are shown of what was printed."""


def send(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(LENGTH, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next message. Raises: EOFError where the stream ends before its end."""
    length = _exactly(stream, LENGTH)
    return pickle.loads(_exactly(stream, int.from_bytes(length, "little")))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError(f"{count} bytes were to come, and {len(data)} did")
    return data


def declared(adapter: Adapter) -> Adapter:
    """The adapter without its functions: what can be said of it elsewhere."""

    def bare(capability: Capability) -> Capability:
        limits = capability.limits
        plain = Limits({n: tuple(v) for n, v in limits.options.items()}, dict(limits.sizes), limits.reason)
        return replace(capability, run=print, limits=plain)

    subjects = tuple(
        replace(s, capabilities={n: bare(c) for n, c in s.capabilities.items()}, absent=dict(s.absent))
        for s in adapter.subjects
    )
    return Adapter(adapter.name, adapter.version, subjects, adapter.homepage)


class Printed:
    """What the implementation has printed to the standard output, kept in a file."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  # the standard output as long as the process lives
        os.dup2(self.file.fileno(), 1)

    def taken(self) -> str:
        """What was printed since the last time."""
        sys.stdout.flush()
        self.file.seek(0)
        text = self.file.read().decode(errors="replace")
        self.file.truncate(0)
        self.file.seek(0)
        return text


def main() -> None:
    """Serve one adapter: its name and device come first."""
    given, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    faulthandler.enable()
    printed = Printed()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    name, device = receive(given)
    try:
        with placed(device) as place:
            adapter = load(name, place)
            send(answers, declared(adapter))
            serve(adapter, given, answers, printed)
    except ConformanceError as error:
        send(answers, error)


def serve(adapter: Adapter, given: BinaryIO, answers: BinaryIO, printed: Printed) -> None:
    """Answer calls until no more come."""
    bench = Here()
    printed.taken()
    while True:
        try:
            subject, operation, specification, arguments, gaps, again = receive(given)
        except EOFError:
            return
        capability = adapter.subjects[subject].capabilities[operation]
        answer = bench.start(SPECIFICATIONS[specification], capability, arguments, gaps, again)()
        said = printed.taken()
        if said and not answer.failed:
            told = f"printed {said[:SHOWN]!r} to the standard output; what is told belongs on the standard error"
            answer = Answer(failed="printed", said=told)
        try:
            send(answers, answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            send(answers, Answer(failed="error", said=f"what it returned cannot be handed over: {tail(error)}"))


def environment() -> dict[str, str]:
    """For a process beside this one: the same modules, and one thread for its arithmetic unless the caller says otherwise.

    The arrays of cases are small. Shared out among threads that wait for each other, one convolution of PyTorch took 30 ms
    on two busy cores instead of 0.1 ms.
    """
    modules = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return dict.fromkeys(THREADS, "1") | os.environ | {"PYTHONPATH": modules}


if __name__ == "__main__":
    main()
