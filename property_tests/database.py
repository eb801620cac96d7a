"""Where workers share failing examples: a folder, on a shared file system perhaps, or a Redis server."""

from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase


class DatabaseUnavailable(Exception):
    """The server does not answer, or its client is not installed."""


def open_database(place: str | None) -> ExampleDatabase | None:
    """The database at a folder, or at redis://HOST:PORT/NUMBER.

    Raises: DatabaseUnavailable, before any example is drawn.
    """
    if place is None:
        return None
    if not place.startswith(("redis://", "rediss://", "unix://")):
        return DirectoryBasedExampleDatabase(Path(place))
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
    return RedisExampleDatabase(server)
