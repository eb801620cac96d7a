"""Errors of the engine, in addition to those of `ssmspec_ref.errors`: checkpoints, memory.

SpecError
├── CheckpointError
│   ├── ConfigRefused      an unknown model, an unknown field, or a value that is not supported
│   ├── UnsafeFile         weights that are not safetensors
│   ├── BrokenFile         a file that is missing, truncated, or not valid JSON
│   ├── MissingTensor      a tensor that the config implies
│   ├── UnknownTensor      a tensor that the config does not imply
│   └── TensorMismatch     a tensor of another shape, or of a type that is not floating point
├── TokenizerMismatch      a drafter whose tokens mean other texts than the target's
└── MemoryRefused          more memory than allowed, counted before it is allocated
"""

from ssmspec_ref.errors import SpecError, Unsupported


class CheckpointError(SpecError):
    """A folder that cannot be loaded."""


class ConfigRefused(CheckpointError, Unsupported):
    """A config with a model, a field or a value that is not supported."""


class UnsafeFile(CheckpointError):
    """Weights in a format that can run code."""


class BrokenFile(CheckpointError):
    """A file that is missing, truncated, or not valid JSON."""


class MissingTensor(CheckpointError):
    """A tensor that the config implies is missing."""


class UnknownTensor(CheckpointError):
    """A tensor that the config does not imply."""


class TensorMismatch(CheckpointError):
    """A tensor of another shape or type than the config implies."""


class MemoryRefused(SpecError):
    """More memory than allowed."""


class TokenizerMismatch(SpecError):
    """A drafter and a target whose tokens mean different texts."""
