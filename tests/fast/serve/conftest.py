"""What tests of the server are given: a server of the default options for each module, and its client."""

from collections.abc import Iterator

import openai
import pytest

from .serving import Running, serving


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[openai.OpenAI]:
    with running.client() as found:
        yield found
