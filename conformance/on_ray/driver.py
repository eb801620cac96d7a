"""The process that talks to Ray: it receives tasks from the campaign, runs them on nodes, and reruns lost ones.

Ray ends a process whose cluster disappears; this one holds nothing that the campaign needs. If the campaign ends, this
process ends too, and the cluster ends its tasks.

A task whose worker died is run again, up to `tries` times in total. One whose node died is run again up to `NODES` times,
because that says nothing about the task.
"""

import os
import pickle
import socket
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from ssmspec_ref.options.extras import installing

from .options import LOCAL, Share

NODES = 20
LOOK, CONNECTING = 2.0, 10.0
"""Seconds between checks of the nodes, and to wait for the head to answer."""


@dataclass
class Task:
    """A call to make on a node."""

    number: int
    function: str
    given: tuple[Any, ...]
    died: int = 0
    nodes: int = 0


class Driver:
    """Serves one campaign over a connection."""

    def __init__(self, end: Connection, share: Share, ray: Any) -> None:
        from . import node

        self.end, self.share, self.ray = end, share, ray
        options: dict[str, Any] = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_retries": 0}
        if share.memory:
            options["memory"] = share.memory
        self.call = ray.remote(node.call).options(**options)
        self.running: dict[Any, Task] = {}
        self.asked: SimpleQueue[bytes] = SimpleQueue()
        self.nodes, self.looked, self.lacking = (-1, -1), 0.0, 0.0

    def say(self, *message: Any) -> None:
        self.end.send_bytes(pickle.dumps(message))

    def serve(self) -> None:
        """Run until the campaign says that no more tasks follow."""
        threading.Thread(target=listen, args=(self.end, self.asked), daemon=True).start()
        while True:
            self.look()
            try:
                asked = self.asked.get(timeout=None if not self.running else 0.01)
            except Empty:
                asked = None
            if asked == b"":
                return
            if asked is not None:
                self.start(Task(*pickle.loads(asked)))
                continue
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=0.3)
            for reference in done:
                self.take(reference, self.running.pop(reference))

    def start(self, task: Task) -> None:
        self.running[self.call.remote(task.function, task.given)] = task

    def take(self, reference: Any, task: Task) -> None:
        """Handle a finished task: send its answer, or run it again."""
        errors = self.ray.exceptions
        try:
            self.say("done", task.number, *self.ray.get(reference), task.died + task.nodes + 1)
            return
        except errors.RayTaskError as error:  # our code on the node could not start
            self.say("done", task.number, "broke", str(error).strip().splitlines()[-1], {}, task.died + task.nodes + 1)
            return
        except errors.RayError as error:
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            if isinstance(error, errors.NodeDiedError | errors.LocalRayletDiedError | errors.ObjectLostError):
                task.nodes += 1
            else:
                task.died += 1
        if task.died >= self.share.tries or task.nodes >= NODES:
            self.say(
                "lost", task.number, f"{task.died} workers and {task.nodes} nodes died while running it; the last: {why}"
            )
            return
        self.say("told", f"task {task.number} lost its worker ({why}) and runs again")
        self.start(task)

    def look(self) -> None:
        """Report nodes that joined or left, and give up tasks that no node can take for too long."""
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        slots = sum(places(resources, self.share.asked) for resources in alive)
        if (len(alive), slots) != self.nodes:
            self.nodes = len(alive), slots
            self.say("nodes", *self.nodes)
        if slots or not self.running:
            self.lacking = now
        elif now - self.lacking > self.share.wait:
            asked = ", ".join(f"{value:g} {name}" for name, value in self.share.asked.items())
            told = (
                f"in {self.share.wait:g} s none of {len(alive)} nodes had {asked} for a task; add such nodes, ask for less "
            )
            told += "with --ray-cpus, --ray-gpus and --ray-memory, or wait longer with --ray-wait"
            self.say("refused", "ClusterUnavailable", told)
            self.lacking = now


def places(resources: dict[str, float], asked: dict[str, float]) -> int:
    """The number of tasks that fit on a node."""
    return min((int(resources.get(name, 0.0) / value) for name, value in asked.items()), default=1)


def listen(end: Connection, asked: "SimpleQueue[bytes]") -> None:
    """Receive the campaign's requests; if the campaign is gone, end this process at once."""
    while True:
        try:
            asked.put(end.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


def main(descriptor: int) -> None:
    """Serve the campaign at the other end of a connection; its share is sent first."""
    end = Connection(descriptor)
    share: Share = pickle.loads(end.recv_bytes())
    try:
        import ray
    except ImportError as error:
        told = f"--ray needs Ray ({error}); {installing('ray')}"
        end.send_bytes(pickle.dumps(("refused", "ClusterUnavailable", told)))
        return
    try:
        begin(ray, share)
    except Exception as error:  # Ray says in many ways that there is no cluster
        told = f"no Ray cluster answers at {share.address} ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
        end.send_bytes(pickle.dumps(("refused", "ClusterUnavailable", f"{told}; start one with `ray start --head`")))
        return
    Driver(end, share, ray).serve()
    ray.shutdown()


def begin(ray: Any, share: Share) -> None:
    """Join the cluster, and send it the modules that tasks need. Ray itself tries for minutes where nothing listens."""
    host, _, port = share.address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), CONNECTING).close()
    ray.init(
        address=None if share.address == LOCAL else share.address,
        runtime_env={"py_modules": list(share.ship), "excludes": ["__pycache__", "*.pyc"]},
        log_to_driver=False,
        logging_level="error",
        include_dashboard=False if share.address == LOCAL else None,
    )
