"""Where workers share failing examples: a folder, possibly on a shared file system, or a Redis server.

Hypothesis stores in its database failing examples and those close to a target. Only the failures are kept here (`Failures`):
the others would change what the next worker draws, and a seed would no longer determine its examples.
"""

from collections.abc import Iterable
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from ssmspec_ref.options.extras import installing

from ..store.synced import Synced

REDIS = ("redis://", "rediss://", "unix://")
EXAMPLES = "examples"
"""The folder of failing examples in the folder of a campaign."""
PROBE = b"ssmspec probe"
ANSWER = 5.0
"""Most seconds that a Redis server may take to answer."""


class DatabaseUnavailable(Exception):
    """A database that cannot be used: no server answers, a folder is not writable, or an unknown kind of address."""


class Failures(ExampleDatabase):
    """A Hypothesis database without the examples close to a target."""

    NEAR = b".pareto"

    def __init__(self, kept: ExampleDatabase) -> None:
        super().__init__()
        self.kept = kept

    def save(self, key: bytes, value: bytes) -> None:
        if not key.endswith(self.NEAR):
            self.kept.save(key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The examples in one order, wherever they are stored."""
        return sorted(self.kept.fetch(key))

    def delete(self, key: bytes, value: bytes) -> None:
        self.kept.delete(key, value)

    def settle(self) -> None:
        """Sends what waits for a shared database that did not answer."""
        if isinstance(self.kept, Synced):
            self.kept.settle()


def open_database(place: str | None, folder: Path) -> Failures:
    """The database of the campaign in `folder`, shared at `place` with others: a folder, or redis://HOST:PORT/NUMBER.

    Raises: DatabaseUnavailable, before any example is drawn.
    """
    shared = None if place is None else redis(place) if place.startswith(REDIS) else directory(place)
    own = folder / EXAMPLES
    here = probed(DirectoryBasedExampleDatabase(own), str(own))
    return Failures(here if place is None or shared is None else Synced(here, shared, folder / "unsent.jsonl", place))


def directory(place: str) -> ExampleDatabase:
    """Hypothesis' folder database at a path. Raises: DatabaseUnavailable."""
    if "://" in place:
        raise DatabaseUnavailable(f"{place} is not a database; give a folder, or one of {', '.join(f'{r}…' for r in REDIS)}")
    return probed(DirectoryBasedExampleDatabase(Path(place)), place)


def redis(place: str) -> ExampleDatabase:
    """Hypothesis' database on a server. Raises: DatabaseUnavailable."""
    try:
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis
        from redis.exceptions import RedisError
    except ImportError as error:
        raise DatabaseUnavailable(f"{place} needs the Redis client; {installing('fuzz')}") from error
    try:
        server = Redis.from_url(place, socket_timeout=ANSWER, socket_connect_timeout=ANSWER)
        server.ping()
    except (RedisError, ValueError, OSError) as error:
        raise DatabaseUnavailable(f"no Redis server answers at {place} ({error}); start one, or give a folder") from error
    try:
        return probed(RedisExampleDatabase(server), place)
    except RedisError as error:
        raise DatabaseUnavailable(f"the Redis server at {place} does not save ({error}); give a writable one") from error


def probed(database: ExampleDatabase, place: str) -> ExampleDatabase:
    """The database, after a test that it stores an example: Hypothesis does not report one that cannot be written.

    Raises: DatabaseUnavailable.
    """
    try:
        database.save(PROBE, PROBE)
        held = PROBE in set(database.fetch(PROBE))
        database.delete(PROBE, PROBE)
    except OSError as error:
        raise DatabaseUnavailable(f"{place} cannot be written ({error}); give a writable folder") from error
    if not held:
        raise DatabaseUnavailable(f"{place} does not save; give a writable folder, or redis://HOST:PORT/0")
    return database
