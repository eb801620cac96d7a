"""A Ray cluster of several nodes on this machine, in a process of its own: nodes are added and killed, its head restarted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Nodes:
    """A cluster of the tests. Its head has no CPU, so that no task runs there."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self.log = process, log
        self.address = self._answer()

    def add(self, **node: Any) -> int:
        """A node with so many `num_cpus`, `num_gpus`; its number."""
        return int(self._ask("add", node))

    def kill(self, number: int) -> None:
        """End a node as the loss of its machine does: every process of it at once."""
        self._ask("kill", number)

    def kill_head(self) -> None:
        self._ask("kill_head", None)

    def restart_head(self) -> None:
        self._ask("restart_head", None)

    def _ask(self, what: str, given: Any) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, given]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError(f"the cluster ended: {self.log.read_text()[-3000:]}")


@contextmanager
def cluster(folder: Path, nodes: int = 2, environment: dict[str, str] | None = None, **head: Any) -> Iterator[Nodes]:
    """A head and some nodes of one CPU each."""
    log = folder / "cluster.log"
    folder.mkdir(parents=True, exist_ok=True)
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, __file__, json.dumps({"nodes": nodes, "head": head})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=known | {"RAY_DEDUP_LOGS": "0"} | (environment or {}),
        ) as process,
    ):
        try:
            yield Nodes(process, log)
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            process.wait(60)


def main(given: dict[str, Any]) -> None:
    """Serve the tests: one line asks, one line answers."""
    from ray.cluster_utils import Cluster

    from conformance.isolation.warden import below

    here = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, **given["head"]},
        shutdown_at_exit=True,
    )
    nodes = [here.add_node(num_cpus=1) for _ in range(given["nodes"])]
    print(f"> {here.address}", flush=True)
    for line in sys.stdin:
        what, asked = json.loads(line)
        said = ""
        if what == "add":
            nodes.append(here.add_node(**{"num_cpus": 1, **asked}))
            said = str(len(nodes) - 1)
        elif what == "kill":
            (raylet,) = nodes[asked].all_processes["raylet"]
            doomed = list(below(raylet.process.pid))
            here.remove_node(nodes[asked], allow_graceful=False)
            for process in doomed:  # else they would notice the loss of their raylet only after a while
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        elif what == "kill_head":
            here.head_node.kill_gcs_server()
        elif what == "restart_head":
            here.head_node.start_gcs_server()
        print(f"> {said}", flush=True)
    here.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
