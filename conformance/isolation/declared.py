"""An adapter's declaration as plain data, and back: no function is transferred, text is sanitised, types are checked."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.errors import ParameterError

from ..errors import MalformedAdapter
from .text import clean, name

MOST = 1000
"""Limits on the numbers of subjects, operations, options and values."""
Name = Annotated[str, AfterValidator(name)]
Text = Annotated[str, AfterValidator(clean)]


def ordered(sizes: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= sizes[0] <= sizes[1]:
        raise ValueError(f"no size is within {sizes[0]} to {sizes[1]}; give the smallest and the largest, 1 or more")
    return sizes


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(_Model):
    options: Annotated[dict[Name, tuple[Name, ...]], Field(max_length=MOST)] = {}
    sizes: Annotated[dict[Name, Annotated[tuple[int, int], AfterValidator(ordered)]], Field(max_length=MOST)] = {}
    reason: Text


class _Operation(_Model):
    contract: NumericContract
    limits: _Limits
    bitwise: Annotated[tuple[Name, ...], Field(max_length=MOST)] = ()
    uncaptured: Text = ""


class _Subject(_Model):
    name: Name
    operations: Annotated[dict[Name, _Operation], Field(max_length=MOST)]
    absent: Annotated[dict[Name, Text], Field(max_length=MOST)]


class _Adapter(_Model):
    name: Name
    version: Name
    homepage: Text
    subjects: Annotated[tuple[_Subject, ...], Field(max_length=MOST)]


def plain(adapter: Adapter) -> dict[str, Any]:
    """The declaration of an adapter as JSON data."""

    def operation(capability: Capability) -> dict[str, Any]:
        limits = capability.limits
        sizes = {axis: (low, high) for axis, (low, high) in limits.sizes.items()}
        options = {option: tuple(values) for option, values in limits.options.items()}
        contract = {field: getattr(capability.contract, field) for field in NumericContract.__dataclass_fields__}
        told: dict[str, Any] = {"contract": contract, "limits": {"options": options, "sizes": sizes, "reason": limits.reason}}
        told |= {"bitwise": capability.bitwise} if capability.bitwise else {}
        return told | ({"uncaptured": capability.uncaptured} if capability.uncaptured else {})

    subjects = [
        {"name": s.name, "operations": {n: operation(c) for n, c in s.capabilities.items()}, "absent": dict(s.absent)}
        for s in adapter.subjects
    ]
    return {"name": adapter.name, "version": adapter.version, "homepage": adapter.homepage, "subjects": subjects}


def declared(said: Any, run: Callable[[int, str], Callable[..., Any]]) -> Adapter:
    """The adapter of a declaration; `run` returns the function for an operation of a subject, by its index.

    Raises: MalformedAdapter.
    """
    try:
        read = _Adapter.model_validate(said)
    except (ValidationError, ParameterError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ", ".join(map(name, map(str, first["loc"])))
        raise MalformedAdapter(f"the declaration of the adapter is invalid at {where}: {clean(first['msg'])}") from error
    subjects = tuple(
        Subject(
            s.name,
            {
                n: Capability(
                    run(at, n),
                    o.contract,
                    Limits(o.limits.options, o.limits.sizes, o.limits.reason),
                    o.bitwise,
                    o.uncaptured,
                )
                for n, o in s.operations.items()
            },
            s.absent,
        )
        for at, s in enumerate(read.subjects)
    )
    return Adapter(read.name, read.version, subjects, read.homepage)


def bare(adapter: Adapter) -> Adapter:
    """An adapter without its functions, for use in another process."""
    return declared(plain(adapter), lambda subject, operation: print)
