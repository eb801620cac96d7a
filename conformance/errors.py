"""One class for each kind of user error. The message says what was given, what is needed, and what to do.

ConformanceError
├── UnknownAdapter     no adapter of this name, or its factory returns none
├── AdapterUnavailable the adapter's implementation is not installed
├── MalformedAdapter   an adapter with a part of the wrong type, without any part, or with the name of another one
├── UnknownCase        an id that is not a case, or a selection without cases
├── UnknownOperation   an adapter that declares an operation which does not exist
├── UnknownLimit       a limit on an option, a value or an axis that the operation does not have
├── ProgramError       a program that ended, or whose answer cannot be read
├── Garbled            bytes from an adapter's process that are not a message
├── NotInRing          a computation that has no meaning over the integers mod 2^64
├── OtherWeights       a layer that reports other weights than those given
├── KnownListError     a list of known failures that cannot be read
├── UnpackError        a wheel that cannot be downloaded or lacks a part; a folder that holds another version
├── ReportError        a report that is truncated, edited or of another version, or that cannot be written; a folder in use
├── ClusterUnavailable no Ray cluster at an address, or no node with the resources of a task
├── UnequalNodes       nodes of a cluster with other versions than the first one
└── RunBroken          the suite itself failed: its report disappeared, or one of its own processes ended
"""


class ConformanceError(Exception):
    """Base class of the errors that the suite raises."""


class UnknownAdapter(ConformanceError):
    """No adapter of this name, or its factory returns none."""


class AdapterUnavailable(ConformanceError):
    """The implementation of an adapter is not installed."""


class MalformedAdapter(ConformanceError):
    """An adapter with a part of the wrong type, without any part, or with the name of another adapter of the run."""


class UnknownCase(ConformanceError):
    """An id that is not a case, or a selection without cases."""


class UnknownOperation(ConformanceError):
    """An adapter that declares an operation which does not exist."""


class UnknownLimit(ConformanceError):
    """A limit on an option, a value or an axis that the operation does not have."""


class ProgramError(ConformanceError):
    """A program that ended, or whose answer cannot be read."""


class Garbled(ConformanceError):
    """Bytes from an adapter's process that are not a message."""


class WrongCounts(ConformanceError):
    """An engine whose counts of drafts are impossible, or that speculates although speculation is off."""


class NotInRing(ConformanceError):
    """A computation that has no meaning over the integers mod 2^64 (`conformance.ring`), and is not judged there."""


class OtherWeights(ConformanceError):
    """A layer that reports other weights than those given."""


class GraphError(ConformanceError):
    """An operation that cannot be captured in a graph, or a graph that a replay would give other inputs than it takes."""


class KnownListError(ConformanceError):
    """A list of known failures that cannot be read."""


class UnpackError(ConformanceError):
    """An unknown package, a wheel that cannot be downloaded or lacks a part, or a folder that holds another version."""


class ReportError(ConformanceError):
    """A report that is truncated, edited or of another version, or that cannot be written."""


class ClusterUnavailable(ConformanceError):
    """No Ray cluster at an address, or no node with the resources of a task."""


class UnequalNodes(ConformanceError):
    """Nodes of a cluster with other versions than the first one."""


class RunBroken(ConformanceError):
    """The suite itself failed: its report disappeared while it was written, or one of its own processes ended."""


class OutsideMemory(ConformanceError):
    """A kernel that accesses memory outside its tensors, or whose programs race on an address."""
