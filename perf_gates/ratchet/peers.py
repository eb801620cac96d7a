"""The version of each package whose own code a part timed, and whether a run has those that the limits name.

The head of a part names them (`peers`). Committed results of before that are in `results/versions.toml`, by part and commit;
"not recorded" says that nobody wrote the version down then. Torch's own kernels are those of the head's torch.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

from ..verdicts.measured import TODAY, At, Results

FILE = Path(__file__).parent.parent / "results" / "versions.toml"
PEERS = {
    "bench": ("transformers",),
    "peers": ("vLLM", "fla"),
    "prefill": ("mamba-ssm", "fla"),
    TODAY: ("FlashInfer", "vLLM", "SGLang", "fla"),
}
"""The packages whose code a part times."""
NAMED = re.compile(r"^(transformers),|, (vLLM|fla|mamba-ssm)$")
DISTRIBUTIONS = {
    "vLLM": ("vllm",),
    "fla": ("fla-core", "flash-linear-attention"),
    "FlashInfer": ("flashinfer-python",),
    "SGLang": ("sglang",),
}
UNKNOWN = "unknown"


def head(part: str) -> dict[str, dict[str, str]]:
    """What the head of a part says of its peers; empty for a part that times none.

    A package is found by its metadata, installed or beside its unpacked sources; without them its version is "unknown", and
    so is every verdict on its times.
    """
    return {"peers": {name: installed(name) for name in PEERS[part]}} if part in PEERS else {}


def installed(name: str) -> str:
    for distribution in DISTRIBUTIONS.get(name, (name,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return UNKNOWN


@cache
def recorded() -> dict[tuple[str, str], dict[str, str]]:
    """The versions in `results/versions.toml`, by part and commit."""
    return {(held["part"], held["commit"]): held["peers"] for held in tomllib.loads(FILE.read_text())["part"]}


def of_part(results: Results, part: str) -> dict[str, str]:
    """The versions that a part was measured with: those of its head, else those on record."""
    machine = results.parts[part]["machine"]
    found: dict[str, str] = machine.get("peers") or recorded().get((part, str(machine.get("commit"))), {})
    return found


def of_run(results: Results) -> dict[str, dict[str, str]]:
    """The versions in all parts that time peers."""
    return {part: found for part in results.parts if (found := of_part(results, part))}


def peer(at: At) -> str:
    """The package whose code a measurement times; empty for ours and torch's."""
    found = NAMED.search(at.operation)
    return (found[1] or found[2]) if found else ""


def other_version(results: Results, at: At, limits: dict[str, dict[str, str]]) -> Iterator[str]:
    """Why a peer's time is not comparable with its limit: another version, or none is named."""
    name = peer(at)
    if not name:
        return
    now, wanted = of_part(results, at.part).get(name, UNKNOWN), limits.get(at.part, {}).get(name, UNKNOWN)
    if now == UNKNOWN or now != wanted:
        yield f"{at.part} timed {name} {now}, but the limits are of {wanted}"
