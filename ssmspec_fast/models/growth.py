"""How much a tokenizer may lengthen a text, from its rules: a file of 4 kB can hold rules that fill any memory.

    growth of a replacement  = characters of the result for each that is replaced, at least 1             (1)
    growth of rules in a row = the product                                                                (2)

A pattern that is a regular expression may match a single character, or none between two of them.
"""

import base64
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

GROWTH, ADDED = 64.0, 4096
"""The most that a text may grow, several times what any published tokenizer does, and the tokens added at its ends."""
PARTS = ("normalizer", "pre_tokenizer", "decoder")
ROWS = ("normalizers", "pretokenizers", "decoders", "processors")


def wrong(rules: dict[str, Any]) -> str:
    """Why these rules may lengthen a text without bound; "" if they do not."""
    for part in PARTS:
        grows = 1.0
        for one in each(rules.get(part)):
            grows *= growth(one)
            if grows > GROWTH:
                return f"its {part} may make a text more than {GROWTH:g} times as long"
    added = sum(map(tokens, each(rules.get("post_processor"))))
    if added > ADDED:
        return f"its post_processor adds {added:,} tokens to a text; at most {ADDED:,} are allowed"
    return ""


def each(rule: Any) -> Iterator[dict[str, Any]]:
    """A rule, or those in a sequence of them, in sequences too."""
    left = [rule]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            for name in ROWS:
                inside = one.get(name)
                left += inside if isinstance(inside, list) else []


def growth(rule: dict[str, Any]) -> float:
    """(1). Other rules map characters one by one, or add a bounded number."""
    kind, content, pattern = rule.get("type"), rule.get("content"), rule.get("pattern")
    prefix, table = rule.get("prepend"), rule.get("precompiled_charsmap")
    if kind == "Prepend" and isinstance(prefix, str):  # to each piece between two added tokens
        return 1.0 + len(prefix)
    if kind == "Precompiled" and isinstance(table, str):
        return longest(table)
    if kind != "Replace" or not isinstance(content, str):
        return 1.0
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(plain, str) and plain:
        return max(1.0, len(content) / len(plain))
    return 1.0 + len(content)


def longest(table: str) -> float:
    """The most characters by which a table of SentencePiece replaces one. It holds, in base64, the bytes of a trie (uint32,
    little-endian), the trie, and the replacements, with a zero after each."""
    raw = b""
    with suppress(ValueError):  # the library refuses what is not base64
        raw = base64.b64decode(table)
    replacements = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(1.0, *(len(one.decode(errors="replace")) for one in replacements.split(b"\0")))


def tokens(rule: dict[str, Any]) -> int:
    """The tokens that a template of a text adds."""
    special = rule.get("special_tokens")
    ids = special if isinstance(special, dict) else {}
    found = 0
    for name in ("single", "pair"):
        pieces = rule.get(name)
        for piece in pieces if isinstance(pieces, list) else ():
            said = piece.get("SpecialToken") if isinstance(piece, dict) else None
            held = ids.get(said.get("id")) if isinstance(said, dict) and isinstance(said.get("id"), str) else None
            count = len(held["ids"]) if isinstance(held, dict) and isinstance(held.get("ids"), list) else 1
            found += count
    return found
