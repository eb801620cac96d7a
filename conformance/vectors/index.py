"""The index of the vectors: what each one is, what it is there for, and what its tensors are called."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION: Literal[1] = 1


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Flag(Model):
    """A planted fault that the vector fails: its bug class, its name in docs/faults.md, and a public thread, or ""."""

    bug_class: str
    fault: str
    source: str


class Expected(Model):
    """One output. Where `exact`, the values must be equal and there are no bounds; otherwise |came - out| <= bound.

    `judged` says that a tensor of that name tells which elements count. `axes` are the letters of the case's sizes.
    """

    name: str
    axes: str
    shape: tuple[int, ...]
    state: bool
    exact: bool
    judged: bool


class Vector(Model):
    """One vector. Its tensors stand in `file` as `number/in/NAME`, `number/out/NAME`, `number/bound/CONTRACT/NAME` and
    `number/judged/NAME`. An input that is no array is a tensor without axes; one that is absent is left out; words are in
    `words`."""

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
