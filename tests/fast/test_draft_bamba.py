"""A hybrid of Mamba-2 and attention under every method and drafter: greedy output is plain decoding's, bit for bit."""

import pytest

from . import draft_cells as cells


@pytest.mark.parametrize("cell", cells.GREEDY, ids="-".join)
def test_output_is_plain_decodings_and_every_acceptance_was_seen(cell: tuple[str, str, str]) -> None:
    cells.check("bamba", cell)


def test_a_request_alone_has_the_same_tokens() -> None:
    cells.check_alone("bamba")
