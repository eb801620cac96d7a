"""Coverage-guided: bytes as a config.json, as an index and as the head of a safetensors file, through our own readers.

    python tests/fast/readers/atheris_readers.py FOLDER SECONDS

atheris is of the environment `fuzz-readers` alone. Every error but a named one ends it, with the bytes that did it.
"""

import json
import struct
import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found, unused-ignore]

with atheris.instrument_imports(include=["ssmspec_fast.families", "ssmspec_fast.models.checkpoint"]):
    import torch

    from ssmspec_fast.families import find
    from ssmspec_fast.families.source import Plan
    from ssmspec_fast.models.checkpoint import INDEX, SINGLE, headers, read_json, weight_files
from ssmspec_ref.errors import SpecError

FOLDER = Path(sys.argv[1])


def read(data: bytes) -> None:
    """One input: its first byte says what it is."""
    kind, rest = (data[0] % 3, data[1:]) if data else (0, b"")
    try:
        if kind == 0:
            (FOLDER / "config.json").write_bytes(rest)
            family, config = find(read_json(FOLDER / "config.json"))
            family.assemble(config, Plan(torch.float32))
        elif kind == 1:
            (FOLDER / INDEX).write_bytes(rest)
            weight_files(FOLDER)
        else:
            (FOLDER / SINGLE).write_bytes(struct.pack("<Q", len(rest)) + rest)
            list(headers(FOLDER / SINGLE))
    except SpecError:
        pass


def corpus() -> Path:
    """The configs that ship, an index and a header to begin with."""
    from ssmspec_fast.cli.shipped import SHIPPED

    home = FOLDER / "corpus"
    home.mkdir(exist_ok=True)
    for file in SHIPPED.glob("*/config.json"):
        (home / file.parent.name).write_bytes(b"\0" + json.dumps(json.loads(file.read_text())).encode())
    (home / "index").write_bytes(b"\1" + json.dumps({"weight_map": {"a": SINGLE}}).encode())
    (home / "header").write_bytes(b"\2" + b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}')
    return home


if __name__ == "__main__":
    seeds = corpus()
    for seed in seeds.iterdir():
        read(seed.read_bytes())  # what is imported at the first input is no time of an input
    limits = [f"-max_total_time={sys.argv[2]}", "-timeout=60", "-rss_limit_mb=6000", "-max_len=4000"]
    atheris.Setup([sys.argv[0], str(seeds), *limits], read)
    atheris.Fuzz()
