"""The ways in which an engine can fail to answer."""

from ..errors import ConformanceError


class EngineRefused(ConformanceError):
    """The engine reports that it does not support this configuration."""


class NotStarted(ConformanceError):
    """The engine ended, or said nothing readable, before its first answer."""


class EngineFailed(ConformanceError):
    """The engine answered with an error and is still running."""


class PlainFailed(EngineFailed):
    """The plain run failed at a prompt, so that nobody knows what a configuration should answer to it."""


class EngineDied(ConformanceError):
    """The engine exited, hung, used too much memory, or gave an invalid answer; its process has been ended."""
