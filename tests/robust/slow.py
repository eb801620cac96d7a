"""An adapter that takes its time, so that a moment falls into a call: some of its cases fail, or none."""

import os
import time
from typing import Any

import numpy as np

from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

SECONDS = 0.05


def commit(M: Any, u: Any, advanced: Any) -> Any:
    """Takes a token too many where the window has not four columns, unless `SSMSPEC_RIGHT` is set."""
    time.sleep(SECONDS)
    wrong = 0 if "SSMSPEC_RIGHT" in os.environ else int(M.shape[2] != 4)
    return conv.commit(M, u, np.minimum(advanced + wrong, u.shape[1])).astype(np.float32)


def adapter() -> Adapter:
    return Adapter("slow", "1", (Subject("window", {"conv.commit": Capability(commit, NumericContract())}),))
