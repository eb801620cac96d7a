"""A specification is shown in a line: reports of failed properties print their arguments."""

from conformance.suite import SPECIFICATIONS


def test_a_specification_is_shown_by_its_operation_and_what_sets_it_apart() -> None:
    shown = [repr(specification) for specification in SPECIFICATIONS]
    assert max(map(len, shown)) < 100
    assert len(set(shown)) == len(shown)
