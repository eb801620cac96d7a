"""Known failures: a file for each adapter, each entry with its reason, a link and a day on which it must be looked at again.

    [[known]]
    subject = "mamba2"             # patterns: * and ? as in file names
    contract = "*"
    case = "layer.rollback/*"
    reason = "crop() leaves the recurrent state as it is"
    link = "https://github.com/huggingface/transformers/issues/49036"
    expires = 2027-06-30

The list ratchets: an entry that a passing case matches, that has expired, or that matches nothing in a whole run, is an
error.
"""

import tomllib
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from ssmspec_ref.contract import Verdict

from .errors import KnownListError
from .report import Model

FOLDER = Path(__file__).parent / "known"


class Entry(Model):
    """One known failure."""

    case: str
    reason: str
    link: str
    expires: date
    subject: str = "*"
    contract: str = "*"

    def matches(self, subject: str, contract: str, case: str) -> bool:
        names = ((subject, self.subject), (contract, self.contract), (case, self.case))
        return all(fnmatchcase(name, pattern) for name, pattern in names)


class Known:
    """The list of one adapter, and which of its entries a run has met."""

    def __init__(self, entries: list[Entry], today: date) -> None:
        self.entries, self.today = entries, today
        self.met: set[Entry] = set()

    def entry(self, subject: str, contract: str, case: str) -> Entry | None:
        """The first entry that matches a case."""
        return next((e for e in self.entries if e.matches(subject, contract, case)), None)

    def apply(self, subject: str, contract: str, case: str, verdict: Verdict) -> tuple[Verdict, Entry | None, str]:
        """The verdict in the light of the list, the entry that matches, and what is wrong with that entry."""
        entry = self.entry(subject, contract, case)
        if entry is None or verdict is Verdict.INAPPLICABLE:
            return verdict, None, ""
        self.met.add(entry)
        if verdict is Verdict.PASS:
            return (
                Verdict.FAIL,
                entry,
                f"listed as a known failure ({entry.reason}), but it passes; narrow or remove the entry",
            )
        if entry.expires < self.today:
            return verdict, entry, f"the known failure expired on {entry.expires}; look at it again"
        return (Verdict.KNOWN_FAILURE if verdict is Verdict.FAIL else verdict), entry, ""

    def unmet(self) -> list[Entry]:
        """Entries that matched nothing."""
        return [entry for entry in self.entries if entry not in self.met]


def read_known(adapter: str, path: Path | None = None, today: date | None = None) -> Known:
    """The list of an adapter: `path`, or the one that ships for it; empty where there is none.

    Raises: KnownListError.
    """
    file = path or FOLDER / f"{adapter}.toml"
    if path is None and not file.exists():
        return Known([], today or date.today())
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        entries = [Entry.model_validate(entry) for entry in table.get("known", [])]
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise KnownListError(f"{file.name} cannot be read as a list of known failures: {error}") from error
    return Known(entries, today or date.today())
