"""The command-line options for a Ray cluster, and the share of the cluster that a campaign uses."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ssmspec_ref.options.memory import GIB

from ..errors import ClusterUnavailable

LOCAL = "local"
PANEL = "On a Ray cluster"
NAMES = tuple(f"--ray-{name}" for name in ("cpus", "gpus", "memory", "tries", "wait", "ship", "mixed"))
"""The options that have no use without an address."""

Address = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help=f"HOST:PORT of the cluster's head node, auto, or {LOCAL} to start a cluster on this machine.",
        rich_help_panel=PANEL,
    ),
]
Cpus = Annotated[float, typer.Option("--ray-cpus", min=0.0, help="CPUs of one task.", rich_help_panel=PANEL)]
Gpus = Annotated[
    float | None,
    typer.Option(
        "--ray-gpus", min=0.0, help="GPUs of one task. Default: 1 with --device cuda, else 0.", rich_help_panel=PANEL
    ),
]
Memory = Annotated[
    float, typer.Option("--ray-memory", min=0.0, help="GiB of memory of one task; 0: no request.", rich_help_panel=PANEL)
]
Tries = Annotated[
    int,
    typer.Option(
        "--ray-tries", min=1, help="Workers a task may lose before its cases count as unknown.", rich_help_panel=PANEL
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--ray-wait", min=0.0, help="Seconds to wait for a node with enough resources for a task.", rich_help_panel=PANEL
    ),
]
Ship = Annotated[
    list[str] | None,
    typer.Option(
        "--ray-ship", help="A module (folder or file) that the nodes need too. May be repeated.", rich_help_panel=PANEL
    ),
]
Mixed = Annotated[
    bool, typer.Option("--ray-mixed", help="Allow nodes with different package versions.", rich_help_panel=PANEL)
]


@dataclass(frozen=True)
class Share:
    """A task's share of a cluster. `memory` in bytes; `wait` in seconds; `ship` lists further modules to send."""

    address: str
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    tries: int = 3
    wait: float = 600.0
    ship: tuple[str, ...] = ()
    mixed: bool = False

    @property
    def asked(self) -> dict[str, float]:
        """The resources of a task, by Ray's names."""
        return {n: v for n, v in {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory)}.items() if v}


def share(
    address: str | None, device: str, cpus: float, gpus: float | None, memory: float, tries: int, wait: float,
    ship: list[str] | None, mixed: bool,
) -> Share | None:  # fmt: skip
    """The share given by the options; None without an address.

    Raises: ClusterUnavailable for an address of Ray's client.
    """
    if address is None:
        return None
    if address.startswith("ray://"):
        raise ClusterUnavailable(
            f"{address} is a Ray client address; run on a node of the cluster, and give the head's HOST:PORT or auto"
        )
    asked = gpus if gpus is not None else float(device.startswith("cuda"))
    return Share(address, cpus, asked, int(memory * GIB), tries, wait, tuple(ship or ()), mixed)
