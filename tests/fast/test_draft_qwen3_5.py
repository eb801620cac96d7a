"""A hybrid of Gated DeltaNet and attention under every method and drafter: greedy output is plain decoding's."""

import pytest

from . import draft_cells as cells


@pytest.mark.parametrize("cell", cells.GREEDY, ids="-".join)
def test_output_is_plain_decodings_and_every_acceptance_was_seen(cell: tuple[str, str, str]) -> None:
    cells.check("qwen3_5", cell)


def test_a_request_alone_has_the_same_tokens() -> None:
    cells.check_alone("qwen3_5")
