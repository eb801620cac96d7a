"""The branches of the oracle that some batches of a campaign covered, by `coverage`. Tracing takes about three times as
long."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ssmspec_ref

FILES = (
    "model.py", "layer.py", "mixer.py", "attention_layer.py", "attention.py", "conv.py", "ssd.py", "delta.py",
    "selective.py", "norm.py", "rotary.py", "linear.py", "functions.py",
)  # fmt: skip
"""The modules that plain decoding of a model uses."""


@contextmanager
def traced() -> Iterator[dict[str, str]]:
    """On leaving the block, fills in the share of covered branches of each file."""
    import coverage

    home, found = Path(ssmspec_ref.__file__).parent, dict[str, str]()
    files = [str(home / name) for name in FILES]
    tracer = coverage.Coverage(branch=True, data_file=None, include=files, config_file=False)
    tracer.start()
    try:
        yield found
    finally:
        tracer.stop()
        for name, path in zip(FILES, files, strict=True):
            numbers = tracer._analyze(path).numbers
            reached, all_ = numbers.n_executed_branches, numbers.n_branches
            found[name] = f"{reached}/{all_}"
