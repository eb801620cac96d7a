"""Known failures: a file per adapter, each entry with a reason, a link and an expiry date.

    [[known]]
    subject = "mamba2"             # patterns: * and ? as in file names
    contract = "*"
    case = "layer.rollback/*"
    reason = "crop() leaves the recurrent state unchanged"
    link = "https://github.com/huggingface/transformers/issues/49036"
    expires = 2027-06-30

The list can only shrink: it is an error if an entry matches a passing case, has expired, or matches nothing in a complete
run.
"""

import tomllib
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from ssmspec_ref.contract import Verdict
from ssmspec_ref.options.words import nearest

from ..errors import KnownListError
from ..progress import files
from ..report.stream import Model

FOLDER = Path(__file__).parent.parent / "known"


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

    def meet(self, subject: str, contract: str, case: str) -> None:
        """Record that a case was run, elsewhere."""
        if entry := self.entry(subject, contract, case):
            self.met.add(entry)

    def apply(self, subject: str, contract: str, case: str, verdict: Verdict) -> tuple[Verdict, Entry | None, str]:
        """The verdict after applying the list, the matching entry, and what is wrong with that entry."""
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
            return verdict, entry, f"the entry of this known failure expired on {entry.expires}; check it again"
        return (Verdict.KNOWN_FAILURE if verdict is Verdict.FAIL else verdict), entry, ""

    def unmet(self) -> list[Entry]:
        """Entries that matched nothing."""
        return [entry for entry in self.entries if entry not in self.met]


def read_known(adapter: str, path: Path | None = None, today: date | None = None) -> Known:
    """The list of an adapter: `path`, or the one that ships for it; empty if there is none.

    Raises: KnownListError.
    """
    shipped = {file.stem: file for file in FOLDER.glob("*.toml")}  # an adapter's name is never used as a path
    file = path or shipped.get(adapter)
    if file is None:
        return Known([], today or date.today())
    try:
        listed = tomllib.loads(files.read(file, follow=True).decode()).get("known", [])
        if not isinstance(listed, list):
            raise KnownListError(f"{file.name} cannot be read as a list of known failures: write each one as [[known]]")
        entries = [Entry.model_validate(entry) for entry in listed]
    except ValidationError as error:
        raise KnownListError(f"{file.name} cannot be read as a list of known failures: {_wrong(error)}") from error
    except OSError as error:
        raise KnownListError(f"{file.name} cannot be read as a list of known failures: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise KnownListError(f"{file.name} cannot be read as a list of known failures: {error}") from error
    return Known(entries, today or date.today())


def _wrong(error: ValidationError) -> str:
    """What is wrong with an entry, in one line."""
    given = [".".join(map(str, one["loc"])) for one in error.errors() if one["type"] == "extra_forbidden"]
    keys = [f"{name!r} is not a key{nearest(name, Entry.model_fields)}" for name in given]
    other = [f"{one['loc'][0]}: {one['msg']}" for one in error.errors() if one["loc"] and one["type"] != "extra_forbidden"]
    return "; ".join([*keys, *other]) or "an entry is not a table"
