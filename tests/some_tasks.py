"""Tasks for processes that go wrong in several ways; it imports little, since each process imports it."""

import os
import time

from perf_gates.losslessness.workers import VISIBLE


class Tasks:
    """Made in a process, answers there with the GPU it sees."""

    def __call__(self, task: str) -> str:
        if task == "raises":
            raise ValueError("as planted\nwith more")
        if task == "breaks":
            raise RuntimeError("GPU gone")
        if task == "dies":
            os._exit(3)
        if task == "long":
            time.sleep(60)
        return f"{task} {os.environ[VISIBLE]}"
