"""Plain English: phrases that only we understand do not come back in pages, help and messages.

Each phrase has a plain form. A page or a message that needs one of them needs a better sentence.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commands import commands

ROOT = Path(__file__).parents[2]
PLAIN = {
    r"judged and done": "verify and run",
    r"what stands there": "contents",
    r"drafted for by": "with a drafter",
    r"(drafts|tokens|those) that stood": "accepted drafts",
    r"arrive by chance": "Poisson traffic",
    r"names the noise": "random seed",
    r"begin no (further )?(part|step)": "stop starting new batches after this time",
    r"inputs that c[oa]me second": "randomised second inputs",
    r"asks nothing of any other place": "self-contained, needs no network",
    r"turn it in the adapter": "transpose it on the way in and out",
    r"leave `[^`]*` away": "omit",
    r"behind the last time": "after the last timing",
    r"taken from them as often": "frequency penalty",
    r"goes on where it stood": "continues from there",
    r"what judges does not stand": "the judge is no part of what it judges",
    r"is asked for anew|asks to be written anew": "should be updated",
    r"\bcame (as|with|second|without)\b": "X is Y; it must be Z",
    r"what stands\b|those that stand\b|which are not those that": "the current ones",
    r"(is|are|was|were|all) asked for (before|ahead|anew|once more)": "is loaded, is read, is issued before",
    r"stands? for itself": "is separate",
    r"goes on with it|go on later|goes on where": "continues",
    r"leave (it|them|one|`?--[\w-]+`?)( and `?--[\w-]+`?)? (out|away)\b(?=[.;,)]| and give)": "omit",
    r"judged by (itself|themselves)|judges? (it|them|those) by": "tested separately",
    r"in a (process|launch|folder) of its own": "in its own process",
    r"makes? it again|written anew": "writes it again",
    r"keeps nothing": "cannot be written",
    r"gives more\b": "raise the option",
    r"has to be told|what came of it|came of each": "result",
    r"behind (the last|one|a) (launch|replay|timing)": "after",
    r"round(ing|ed) at random": "stochastic rounding",
    r"caches? of prefixes": "prefix cache",
    r"asked for \|": "only if your limits name it",
    r"what (was|is) handed out|what went in\b|\bthat went in\b": "the outputs, the input",
    r"go together by|so no such \w+ shows|nothing follows from": "say what is wrong or not tested",
}
DOCSTRINGS = PLAIN | {
    r"\banew\b": "again",
    r"\bof (its|their) own(?! \w)|\bof (its|their) own (and|that|which|in|on)\b": "its own, separate",
    r"\b(what|whatever) (came|comes) (out|back)\b|\bwhat came\b": "the result, the output",
    r"\b(what|whatever|that|who) stands?\b|\bstands? (at|in|behind|beside|for|before|there|alone)\b": "is at, is in",
    r"\b(takes?|took|taking) no part\b": "has no window, is skipped",
    r"\b(that|which|what|where it|and) (is|are|was|were) told\b|\btold (by|from) (its|their|his|the)\b": "is reported",
    r"\b(that|which) (is|are) none\b": "is not one",
    r"\bnot asked\b|\bis never asked\b": "is not used",
    r"\bof so many\b|\bso many (of|tokens|rows|places)\b": "this many",
    r"\bgo(es)? on (from|with|where|behind)\b|\bgone on (from|with)\b": "continues",
    r"\bh(e|o)lds?( \w+)? against\b": "compares, checks",
    r"\bas they come\b|\bas it comes\b": "immediately, on arrival",
    r"\bhand(s|ed)? (it |them )?on\b": "passes on",
    r"\bof a law\b|\bthe law (of the|that is) (sampled|weights|drafts)\b": "distribution",
    r"\bway of failing\b|\bways of failing\b": "kind of failure",
    r"\bwithout a word\b": "without a message",
    r"\bbehind (the|a|an|its|their|each|every|all|what|which|it|them|him|these|those|that|this|one)\b": "after",
    r"\bspeaks? for\b": "represents",
    r"\b(are|is|were) no numbers\b": "is not finite",
    r"\blets? go of\b": "frees",
    r"\bwhat (becomes|became) of\b": "the result of",
    r"\basks? for (it|its|the|all)\b": "loads, reads",
    r"\bin the place of\b": "instead of",
    r"\bso manieth\b": "one in this many",
    r"\bhangs? on\b": "depends on",
}
"""Phrases that may not come back in docstrings and comments."""
PATTERN = {re.compile(phrase, re.IGNORECASE): plain for phrase, plain in PLAIN.items()}
PROSE = {re.compile(phrase, re.IGNORECASE): plain for phrase, plain in DOCSTRINGS.items()}
PAGES = [
    *ROOT.glob("*.md"),
    ROOT / "perf_gates" / "README.md",
    *(page for page in ROOT.glob("docs/**/*.md") if "decisions" not in page.parts),
]
SPEAKING = (
    "ssmspec_ref/**/*.py",
    "ssmspec_fast/**/*.py",
    "conformance/**/*.py",
    "property_tests/**/*.py",
    "perf_gates/**/*.py",
)
"""Modules whose strings a user reads."""
DOCUMENTED = [
    "ssmspec_ref",
    "ssmspec_fast",
    "conformance",
    "kernels",
    "perf_gates",
    "property_tests",
]
"""Folders whose docstrings and comments are plain too."""
MODULES = sorted(file for pattern in SPEAKING for file in ROOT.glob(pattern))


def private(text: str, phrases: dict[re.Pattern[str], str] = PATTERN) -> list[str]:
    """The phrases in a text that are on a list, with their plain form."""
    text = re.sub(r"\s+", " ", text)
    return [f"{found[0]!r}: write {plain!r}" for phrase, plain in phrases.items() for found in phrase.finditer(text)]


def spoken(source: str) -> Iterator[str]:
    """The strings of a module that are not docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def written(source: str) -> Iterator[str]:
    """The docstrings of a module, each after `N:`, its line, and its comments, with adjacent ones joined."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield f"{node.lineno}: {node.value.value}"
    last, comment = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and comment:
                yield comment
                comment = ""
            comment = f"{comment or token.start[0]} {token.string.lstrip('# ')}"
            last = token.start[0]
    if comment:
        yield comment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain(page: Path) -> None:
    assert private(page.read_text(encoding="utf-8")) == []


def test_help_is_plain() -> None:
    assert private(commands()) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_messages_are_plain(module: Path) -> None:
    assert [found for text in spoken(module.read_text(encoding="utf-8")) for found in private(text)] == []


@pytest.mark.parametrize("folder", DOCUMENTED)
def test_docstrings_are_plain(folder: str) -> None:
    assert [
        f"{module.relative_to(ROOT)}:{text.split()[0].rstrip(':')} {found}"
        for module in sorted((ROOT / folder).rglob("*.py"))
        for text in written(module.read_text(encoding="utf-8"))
        for found in private(text, PROSE)
    ] == []


def test_a_private_phrase_in_a_docstring_is_seen() -> None:
    planted = '''
def commit():
    """Accept the first tokens. A row that took
    no part keeps its state."""
    held = 0  # this goes on
    # from the last draft
    said = "anew"
'''
    assert [private(text, PROSE) for text in written(planted)] == [
        ["'took no part': write 'has no window, is skipped'"],
        ["'goes on from': write 'continues'"],
    ]
    assert private("The process has a folder of its own.", PROSE)
    assert not private("One of its own processes ended.", PROSE)
    assert private("Names the noise.", PROSE)
    assert private("The last of each group speaks for it, where its logits are no numbers.", PROSE)
    assert private("The tile is asked for early: a lane asks for its run.", PROSE)
    assert private("The window after the committed tokens.", PROSE) == []


def test_a_private_phrase_is_seen() -> None:
    assert private("Green are the drafts\nthat stood.")
    assert private("It takes requests that arrive by chance.")
    assert private("chunk came\nas 0; give 1")
    assert private("All is asked for before anything waits, by the kernels that are there.")
    assert private("These are not those that stand; see what stands there.")
    assert private("Accepted drafts are green. chunk is 0; it must be 1 or more.") == []
    assert list(spoken('"""Names the noise."""\nsaid = "Names the noise."')) == ["Names the noise."]


def test_every_option_of_every_command_has_help() -> None:
    rows = [line for line in commands().splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if re.search(r"\|\s*(Default: [^|]*)?\|$", row)] == []
