"""Laws of decoders hold for the reference, for every method of the engine and on the interpreted kernels, and find faults."""

import pytest

from conformance.adapters import sequences as reference
from conformance.faults.decoding import concurrent, sequences
from conformance.faults.rollback import drafts
from conformance.run.load import load
from property_tests.cli import app
from property_tests.drawing.walks import Case, case_of
from property_tests.laws.decoder_laws import DECODER_LAWS, DecoderLaw
from property_tests.laws.relations import Broken
from ssmspec_ref.contract import Adapter, Decoding

ENGINE = "ssmspec_fast.adapters.sequences:adapter"
BY_NAME = {law.name: law for law in DECODER_LAWS}
LAWS = pytest.mark.parametrize("law", DECODER_LAWS, ids=lambda law: law.name)


@LAWS
def test_a_law_holds_for_the_reference(law: DecoderLaw) -> None:
    cases = list(law.over(reference.adapter(), DECODER_LAWS.index(law)))
    assert len({case.decoding.name for case in cases}) >= (1 if "trees" in law.needs else 4)
    for case in cases:
        law.holds(case)


@LAWS
def test_a_law_holds_for_the_engine(law: DecoderLaw) -> None:
    """Every method that takes such windows, over PyTorch's operations, each with a model of other layers."""
    adapter = load(ENGINE)
    taken = [d for d in adapter.decodings if law.takes(d) and d.name.endswith("; torch")]
    assert len(taken) == (0 if law.needs == ("chains", "trees") else 1 if law.needs else 11)
    for seed, decoding in enumerate(taken):
        law.holds(case_of(adapter, decoding, seed))


def interpreted() -> list[tuple[str, str]]:
    """A method over the kernels for each law, in turn, so that every law and every method is there, bitwise and not."""
    adapter = load(ENGINE)
    methods = [d for d in adapter.decodings if "; kernels" in d.name]
    found = list[tuple[str, str]]()
    for number, law in enumerate(DECODER_LAWS):
        taken = [d for d in methods if law.takes(d)]
        found += [(law.name, taken[number % len(taken)].name)] if taken else []
    return found


def test_every_method_is_there_on_interpreted_kernels() -> None:
    methods = {d.name.split(";")[0] for d in load(ENGINE).decodings} - {"plain"}
    assert {name.split(";")[0] for _, name in interpreted()} == methods
    assert {name.split("; ")[1] for _, name in interpreted()} == {"kernels", "kernels, bitwise"}
    assert {law for law, _ in interpreted()} == set(BY_NAME) - {"chain_as_tree"}  # no method of the engine takes both


@pytest.mark.parametrize(("law", "method"), interpreted())
def test_a_law_holds_on_interpreted_kernels(law: str, method: str) -> None:
    adapter = load(ENGINE)
    BY_NAME[law].holds(case_of(adapter, next(d for d in adapter.decodings if d.name == method), 1))


@pytest.mark.parametrize(("law", "fault"), [(law.name, fault) for law in DECODER_LAWS for fault in law.kills])
def test_a_law_finds_the_faults_beside_it(law: str, fault: str) -> None:
    """With every kind of layer: seeds 0, alone, and 1 and 3, two together."""
    adapters = [sequences.adapter(), drafts.adapter(), concurrent.adapter()]
    adapter, decoding = next((a, d) for a, d in product_of(adapters) if d.name == fault)
    for seed in (0, 1, 3):
        with pytest.raises(Broken):
            BY_NAME[law].holds(case_of(adapter, decoding, seed))


def product_of(adapters: list[Adapter]) -> list[tuple[Adapter, Decoding]]:
    return [(adapter, decoding) for adapter in adapters for decoding in adapter.decodings]


@LAWS
def test_a_right_decoder_breaks_no_law(law: DecoderLaw) -> None:
    adapter = sequences.adapter()
    right = next(d for d in adapter.decodings if d.name == "Right")
    law.holds(case_of(adapter, right, 1))


def test_every_fault_is_some_laws() -> None:
    planted = {
        fault.__name__ for faults in (*sequences.CLASSES.values(), drafts.FAULTS, concurrent.FAULTS) for fault in faults
    }
    assert {fault for law in DECODER_LAWS for fault in law.kills} == planted


def test_a_law_that_compares_nothing_is_an_error() -> None:
    case = next(BY_NAME["company"].over(reference.adapter(), 0))
    assert isinstance(case, Case)
    one, other = case.walk([1]), case.walk([2, 0, 1])
    with pytest.raises(ValueError, match="no prefix in common"):
        case.agree(one, other)
    with pytest.raises(ValueError, match="no prefix in common"):
        case.agree_exactly(one, other)


def test_the_command_asks_every_law_and_names_what_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """Over the faults of drafts: each is broken by the laws beside it, and the command says so."""
    with pytest.raises(SystemExit) as ended:
        app(["laws", "--adapter", "conformance.faults.rollback.drafts:adapter"])
    said = capsys.readouterr().out
    assert ended.value.code == 1
    for law in DECODER_LAWS:
        assert f"\n{law.name} " in said
        assert all(f"BROKEN {law.name}, {f.__name__}:" in said for f in drafts.FAULTS if f.__name__ in law.kills)
