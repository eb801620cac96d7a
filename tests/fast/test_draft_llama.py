"""Attention alone under every method, drafter and acceptance: greedy output is plain decoding's, bit for bit."""

import pytest

from . import draft_cells as cells


@pytest.mark.parametrize("cell", cells.CELLS, ids="-".join)
def test_output_is_plain_decodings_and_every_acceptance_was_seen(cell: tuple[str, str, str]) -> None:
    cells.check("llama", cell)


def test_a_request_alone_has_the_same_tokens() -> None:
    cells.check_alone("llama")
