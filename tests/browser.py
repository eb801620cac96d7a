"""The browser of the system, driven: its absence is an error that says how to get it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = "SSMSPEC_NO_BROWSER"


def executable() -> str:
    """The path of a Chromium. Without one the test fails, unless the environment says that there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and os.environ.get(WITHOUT) == "1":
        pytest.skip(f"{WITHOUT}=1")
    if found is None:
        pytest.fail(
            f"no {', '.join(NAMES)} on the path: apt-get install chromium, or set {WITHOUT}=1 to leave the page untested"
        )
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser that has no network."""
    path = executable()
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"])
        try:
            yield started
        finally:
            started.close()
