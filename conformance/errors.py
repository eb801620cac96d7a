"""Every mistake that a user of the suite can make has one class. The message says what came, what is needed, what to do.

ConformanceError
├── UnknownAdapter     no adapter of this name, or its factory gives none
├── AdapterUnavailable the adapter's implementation is not installed
├── MalformedAdapter   an adapter with a part of another type than the contract's, or with none
├── UnknownCase        an id that names no case, or a selection that selects nothing
├── UnknownOperation   an adapter that declares an operation which does not exist
├── UnknownLimit       a limit on an option, a value or an axis that the operation does not have
├── ProgramError       a program that ended, or whose answer cannot be read
├── OtherWeights       a layer that says it used other weights than those given
├── KnownListError     a list of known failures that cannot be read
├── UnpackError        a peer's wheel that cannot be had, or lacks a part; a folder that holds another version
└── ReportError        a report that is truncated, edited or of another version, or that cannot be written
"""


class ConformanceError(Exception):
    """Anything that the suite refuses."""


class UnknownAdapter(ConformanceError):
    """No adapter of this name, or its factory gives none."""


class AdapterUnavailable(ConformanceError):
    """The implementation behind an adapter is not installed."""


class MalformedAdapter(ConformanceError):
    """An adapter with a part of another type than the contract's, or with none."""


class UnknownCase(ConformanceError):
    """An id that names no case, or a selection that selects nothing."""


class UnknownOperation(ConformanceError):
    """An adapter that declares an operation which does not exist."""


class UnknownLimit(ConformanceError):
    """A limit on an option, a value or an axis that the operation does not have."""


class ProgramError(ConformanceError):
    """A program that ended, or whose answer cannot be read."""


class OtherWeights(ConformanceError):
    """A layer that says it used other weights than those given."""


class KnownListError(ConformanceError):
    """A list of known failures that cannot be read."""


class UnpackError(ConformanceError):
    """A package without an adapter here, a wheel that cannot be had or lacks a part, a folder that holds another version."""


class ReportError(ConformanceError):
    """A report that is truncated, edited or of another version, or that cannot be written."""
