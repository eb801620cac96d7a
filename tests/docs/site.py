"""Hooks of the site (mkdocs.yml): links to files that are not pages become plain names; decisions enter the menu; long tables
have a filter, and are folded on pages that are registers.

tox run -e docs
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

from tests.docs.commands import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
LONG = 20
"""A table with more rows has a filter."""
REGISTERS = ("evidence/", "performance.md")
"""Pages on which long tables are folded."""
FILTER = (
    "for (const row of this.parentElement.querySelectorAll('tbody tr'))"
    " row.hidden = !row.textContent.toLowerCase().includes(this.value.toLowerCase())"
)
FENCED = re.compile(r"(```.*?```)", re.DOTALL)


def on_config(config: Any) -> Any:
    """The pages of a folder that grows by itself: decisions."""
    found = [f"decisions/{page.name}" for page in sorted((DOCS / "decisions").glob("*.md"))]
    config["nav"] = [
        {name: found if page == "DECISIONS" else page} for entry in config["nav"] for name, page in entry.items()
    ]
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Text with its links to pages; a link to another file of the repository becomes the name that it shows.

    Raises: PluginError for a link to a file that does not exist.
    """
    markdown = markdown.replace("<!-- commands -->", commands())
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda link: _inside(link, DOCS / page.file.src_path), part)
        for part in FENCED.split(markdown)
    )


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The page with a filter at each long table, which is folded if the page is a register."""
    register = page.file.src_path.startswith(REGISTERS)
    return TABLE.sub(lambda table: _filtered(table[0], register), html)


def _filtered(table: str, folded: bool) -> str:
    rows = table.partition("<tbody>")[2].count("<tr>")
    if rows <= LONG:
        return table
    search = f'<input type="search" placeholder="filter" aria-label="filter {rows} rows" oninput="{FILTER}">'
    if not folded:
        return f"<div>{search}{table}</div>"
    return f"<details><summary>{rows} rows</summary>{search}{table}</details>"


def _inside(link: re.Match[str], source: Path) -> str:
    target = (source.parent / link[2]).resolve()
    if not target.exists():
        raise PluginError(f"{source.relative_to(ROOT)}: {link[2]} does not exist")
    return link[0] if DOCS in target.parents and target.is_file() else link[1]
