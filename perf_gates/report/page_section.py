"""The generated part of a page: the text between `<!-- NAME -->` and `<!-- end of NAME -->`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PageSection:
    """The part with this name."""

    name: str

    @property
    def begin(self) -> str:
        return f"<!-- {self.name} -->"

    @property
    def end(self) -> str:
        return f"<!-- end of {self.name} -->"

    def split(self, page: str) -> tuple[str, str, str]:
        """The text before the markers, between them, and after them.

        Raises: ValueError for a page that does not contain each marker once.
        """
        if page.count(self.begin) != 1 or page.count(self.end) != 1:
            raise ValueError(f"the page must hold {self.begin} and {self.end} once each")
        before, rest = page.split(self.begin)
        held, behind = rest.split(self.end)
        return before, held.strip(), behind

    def put(self, page: str, text: str) -> str:
        """The page with the text between its markers. Raises: ValueError, as `split`."""
        before, _, behind = self.split(page)
        return f"{before}{self.begin}\n\n{text}\n\n{self.end}{behind}"

    def write(self, file: Path, text: str) -> None:
        """Puts the text into a page. Raises: ValueError, as `split`."""
        file.write_text(self.put(file.read_text(), text))
