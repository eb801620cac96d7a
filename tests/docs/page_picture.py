"""The picture of a report's page in docs/reference/reports.md: its first screen in Chromium, light, 1240 pixels wide.

ssmspec conform run --adapter reference --adapter conformance.faults.recurrences.arithmetic:adapter \
    --operation '[cs][os][nd]*.s*' --tier smoke --report R
python -m tests.docs.page_picture R docs/pictures/report.png
"""

import sys
from pathlib import Path

from tests.browser import browser

WIDTH, HEIGHT = 1240, 1180
"""Pixels."""


def drawn(report: Path, to: Path) -> None:
    """Save the first screen of a report's page as PNG."""
    with browser() as chromium:
        tab = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto((report / "report.html").resolve().as_uri())
        tab.screenshot(path=to)


if __name__ == "__main__":
    drawn(Path(sys.argv[1]), Path(sys.argv[2]))
