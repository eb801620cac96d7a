"""Arrays read with a wrong stride, and states scaled for each row: what the changed inputs hold."""

import numpy as np

from conformance.diagnose.leaves import leaves
from conformance.diagnose.mistakes.every import mistakes
from conformance.diagnose.mistakes.misread import misread
from conformance.diagnose.mistakes.named import by_name
from conformance.suite import find
from ssmspec_ref.contract import NumericContract


def changes(case: str) -> dict[str, np.ndarray]:
    specification, chosen = find(case)
    every = leaves(specification.operation, specification.draw(chosen, NumericContract()))
    return {says: change(leaf.value) for leaf, says, change in misread(every)}


def test_rows_padded_to_whole_blocks_are_read_past_the_next_rows_first_tokens() -> None:
    specification, chosen = find("ssd.scan_masked/b2,t5,g1,h1,p1,n1/plain/gentle/s0")
    (live,) = [a for a in specification.draw(chosen, NumericContract()) if isinstance(a, np.ndarray) and a.dtype.kind == "b"]
    made = changes("ssd.scan_masked/b2,t5,g1,h1,p1,n1/plain/gentle/s0")
    read = made["rows of live lay 8 tokens apart, as if padded to a multiple of 8"]
    flat = np.concatenate([live.reshape(-1), np.zeros(8, dtype=bool)])
    assert (read == np.stack([flat[:5], flat[8:13]])).all()


def test_tokens_are_read_with_the_stride_of_groups() -> None:
    specification, chosen = find("delta.scan/b1,t3,g1,h2,k2,v2/plain/gentle/s0")
    named = by_name(leaves("delta.scan", specification.draw(chosen, NumericContract())))
    read = changes("delta.scan/b1,t3,g1,h2,k2,v2/plain/gentle/s0")
    (says,) = [one for one in read if one.startswith("tokens of beta")]
    flat = named["beta"].value.reshape(-1)
    assert (read[says] == np.array([[[flat[0], flat[1]], [flat[1], flat[2]], [flat[2], flat[3]]]])).all()


def test_a_state_is_scaled_where_its_row_reads_it() -> None:
    case = "ssd.scan/b5,t7,g2,h6,p5,n4/slots=padded/gentle/s0"
    specification, chosen = find(case)
    given = specification.draw(chosen, NumericContract())
    every = leaves(specification.operation, given)
    made = dict(mistakes(specification.operation, every))
    before, after = (
        by_name(every),
        by_name(leaves(specification.operation, made["the state passed in were not decayed by the first token"](given))),
    )
    changed = (before["states"].value != after["states"].value).any(axis=(1, 2, 3))
    read = before["read"].value
    assert set(np.flatnonzero(changed)) == set(read[read >= 0])
