"""Options that several commands have, each with one text."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

CheckpointOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Folder of a Hugging Face checkpoint, or a model that ships: mamba2, delta, hybrid, llama."),
]
DrafterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A checkpoint's folder or name, ngram, ngram+bigram or lookup. Omit for plain decoding."),
]
MethodOption: TypeAlias = Annotated[
    str | None, typer.Option(help="How drafts are verified and rejected ones undone; see docs/generate.md.")
]
DraftsOption: TypeAlias = Annotated[int, typer.Option(min=1, help="Draft tokens per step.")]
ChooseOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--choose", help="Draft only what is faster, by measured steps and acceptance: --drafts at most, or nothing."
    ),
]
RowsOption: TypeAlias = Annotated[int, typer.Option(min=1, help="Draft chains per prompt (ngram only).")]
TreeOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Draft a tree: a, children per level (3,2,1) or beams (2x4).")
]
DeviceOption: TypeAlias = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1.")]
DtypeOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Data type of the weights, such as bfloat16. Omit for the stored one.")
]
AcceptOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Unknown field of the checkpoint's config that does not change the result. Repeat for several."),
]
MemoryOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.0001, help="Memory limit in GiB. Default: all that is free.")
]
