"""Registries: named records of one sort. A package lists its kinds of recurrences in a registry, with everything about each.

Add a record by one row where the registry is made, or at run time with `register`. Mappings and sequences derived from a
registry are computed when they are used (`Derived`, `Rows`), so a record that is added later appears everywhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from .errors import ParameterError


class Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Named)
T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)


class Registry(Mapping[str, R]):
    """Records by name, in order of registration; `what` is the word for one record in messages."""

    def __init__(self, what: str, *records: R) -> None:
        self.what, self._records = what, dict[str, R]()
        for record in records:
            self.register(record)

    def __getitem__(self, name: str) -> R:
        if name not in self._records:
            raise KeyError(f"{name!r} is not a registered {self.what}; there are {', '.join(self)}")
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def register(self, record: R) -> None:
        """Add a record. Raises: ParameterError for a name that is already registered."""
        if record.name in self._records:
            raise ParameterError(f"{record.name!r} is already a registered {self.what}; choose another name")
        self._records[record.name] = record

    @contextmanager
    def registered(self, *records: R) -> Iterator[None]:
        """A context manager in which these records are registered; they are removed when it ends."""
        before = dict(self._records)
        try:
            for record in records:
                self.register(record)
            yield
        finally:
            self._records = before

    def owner(self, field: str, value: Any) -> R:
        """The record whose `field` is the type of `value`, or the nearest type that it extends.

        Raises: ParameterError if there is none.
        """
        for kind in type(value).__mro__:
            for record in self._records.values():
                if getattr(record, field) is kind:
                    return record
        raise ParameterError(
            f"no registered {self.what} has the type {type(value).__name__}; register one, or give a record of "
            f"{', '.join(self)}"
        )


class Derived(Mapping[str, V_co]):
    """A mapping that is computed again whenever it is read."""

    def __init__(self, make: Callable[[], Mapping[str, V_co]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> V_co:
        return self._make()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


class Rows(Sequence[T]):
    """A sequence that is computed again whenever it is read."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._make = make

    def __getitem__(self, place: Any) -> Any:
        return tuple(self._make())[place]

    def __iter__(self) -> Iterator[T]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(tuple(self._make()))
