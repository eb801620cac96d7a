"""Where workers share failing examples: a folder, on a shared file system perhaps, or a Redis server.

Hypothesis keeps in its database what failed, and what came near to a target. Only the failures are kept here (`Failures`):
what one worker came near to would change what the next one draws, and a seed would not name its examples any more.
"""

from collections.abc import Iterable
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase


class DatabaseUnavailable(Exception):
    """The server does not answer, or its client is not installed."""


class Failures(ExampleDatabase):
    """A database of Hypothesis', of which the examples near to a target are left out."""

    NEAR = b".pareto"

    def __init__(self, kept: ExampleDatabase) -> None:
        super().__init__()
        self.kept = kept

    def save(self, key: bytes, value: bytes) -> None:
        if not key.endswith(self.NEAR):
            self.kept.save(key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """In one order, wherever they lie."""
        return sorted(self.kept.fetch(key))

    def delete(self, key: bytes, value: bytes) -> None:
        self.kept.delete(key, value)


def open_database(place: str | None) -> ExampleDatabase | None:
    """The database at a folder, or at redis://HOST:PORT/NUMBER.

    Raises: DatabaseUnavailable, before any example is drawn.
    """
    if place is None:
        return None
    if not place.startswith(("redis://", "rediss://", "unix://")):
        return Failures(DirectoryBasedExampleDatabase(Path(place)))
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError as error:
        raise DatabaseUnavailable(f"{place} needs the client of Redis; pip install 'ssmspec[fuzz]'") from error
    server = Redis.from_url(place)
    try:
        server.ping()
    except RedisError as error:
        raise DatabaseUnavailable(f"no Redis server answers at {place} ({error}); start one, or give a folder") from error
    return Failures(RedisExampleDatabase(server))
