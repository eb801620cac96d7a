"""One class for each kind of caller error. The message says what was given, what is needed, and what to do.

SpecError
├── ArgumentError
│   ├── ShapeMismatch         an axis has two sizes, or an array has too many or too few axes
│   ├── PrecisionError        the oracle computes in float64 only; tokens and lengths are int64, masks bool
│   ├── ParameterError        a parameter lies outside its domain
│   │   └── OptionError       a value on the command line, or options that cannot be given together
│   ├── EmptyWindow           a window without tokens
│   ├── LengthError           a row is longer than the window, or negative
│   ├── SlotError             a slot twice in a batch, or outside the pool
│   ├── ProbabilityError      NaN, negative, or a row that does not sum to one
│   └── BudgetError           a negative budget of tokens
├── TreeError
│   ├── NotTopological        a parent does not precede its child, or the root is not node 0
│   └── NotNested             a mask whose ancestor sets do not nest, where only nesting sets are defined
├── AcceptanceError           more tokens accepted than the window holds, or a path that is not a path of the tree
├── RingOverflow              the window does not fit the ring beside its history
└── Unsupported               a combination that is not defined, with the reason
"""


class SpecError(Exception):
    """Base class of the errors that ssmspec raises for invalid calls."""


class ArgumentError(SpecError, ValueError):
    """An argument outside the contract."""


class ShapeMismatch(ArgumentError):
    """An axis has two sizes, or an array has too many or too few axes."""


class PrecisionError(ArgumentError, TypeError):
    """An array whose dtype is not the one required: float64 for values, int64 for tokens and lengths, bool for masks."""


class ParameterError(ArgumentError):
    """A parameter outside its domain."""


class OptionError(ParameterError):
    """A value on the command line, or options that cannot be given together."""


class EmptyWindow(ArgumentError):
    """A window without tokens."""


class LengthError(ArgumentError):
    """A row longer than its window, or of negative length."""


class SlotError(ArgumentError):
    """A slot that occurs twice in one batch, or lies outside the pool."""


class NoRoom(SpecError, MemoryError):
    """Addresses that the system does not give, or memory that it takes although nothing is written to it."""


class ProbabilityError(ArgumentError):
    """A row that is not a probability distribution."""


class BudgetError(ArgumentError):
    """A negative budget of tokens."""


class TreeError(SpecError, ValueError):
    """Base class of errors in a tree of tokens."""


class NotTopological(TreeError):
    """A parent that does not precede its child."""


class NotNested(TreeError):
    """Ancestor sets that do not nest."""


class AcceptanceError(SpecError, ValueError):
    """More tokens accepted than the window holds, or a path that is not a path of the tree."""


class RingOverflow(SpecError, ValueError):
    """A window that does not fit in the ring after its history."""


class Unsupported(SpecError):
    """A combination that is not defined."""
