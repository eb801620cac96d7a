"""The index of the vectors: what each one is, why it exists, and the names of its tensors."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION: Literal[1] = 1


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Flag(Model):
    """A planted fault that the vector fails: bug class, name in docs/evidence/faults.md, and a public thread, or ""."""

    bug_class: str
    fault: str
    source: str


class Expected(Model):
    """One output. If `exact`, the values must be equal and there are no bounds; otherwise |actual - out| <= bound.

    `judged` says that a tensor of that name marks the compared elements. `axes` are the letters of the case's sizes.
    """

    name: str
    axes: str
    shape: tuple[int, ...]
    state: bool
    exact: bool
    judged: bool


class Vector(Model):
    """One vector. Its tensors in `file` are `number/in/NAME`, `number/out/NAME`, `number/bound/CONTRACT/NAME` and
    `number/judged/NAME`. A scalar input is a tensor without axes; a missing one is left out; strings are in `words`."""

    case: str
    operation: str
    signature: str
    source: str
    file: str
    number: int
    inputs: tuple[str, ...]
    words: dict[str, str]
    outputs: tuple[Expected, ...]
    flags: tuple[Flag, ...]


class Index(Model):
    """Everything in the folder."""

    version: Literal[1] = VERSION
    contracts: dict[str, str] = Field(description="the contracts for which bounds are given, each with its full name")
    vectors: tuple[Vector, ...]
