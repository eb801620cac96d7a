"""Plain decoding: what a request is promised alone and in any batch, and where it ends."""

from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.state import RecurrentState, tensors
from ssmspec_fast.errors import MemoryRefused
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref import decode
from ssmspec_ref import model as reference
from ssmspec_ref.errors import BudgetError, EmptyWindow, LengthError, ParameterError, Unsupported

from .models import NAMES, ONE_OF_EACH, drawn, prompts, to_reference
from .runs import BITWISE, apart, begun, emitted, engine, logits_after, unused

LENGTHS = (1, 9, 4, 17, 2)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_bitwise_prefill_equals_token_by_token(name: str) -> None:
    """Packed or stepped, in one run or in several, the states have the same bits."""
    model, prompt = drawn(name), prompts(0, (13,))[0]
    found = [logits_after(model, prompt, BITWISE, n, chunk=chunk)[0] for n, chunk in ((1, 99), (12, 99), (12, 3))]
    for pools in found[1:]:
        for came, wanted in zip(tensors(pools.layers), tensors(found[0].layers), strict=True):
            assert torch.equal(came, wanted)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_request_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    """Logits of one row beside 0 to 4 others, in another slot each time."""
    model, given, found = drawn(name), prompts(1, LENGTHS), []
    for slots in ([1], [4, 2], [0, 3, 1, 4, 2]):
        decoder, sequences = begun(model, Plain(), given[-len(slots) :], slots, slots=5)
        with torch.no_grad():
            feed = decoder.feed(Nothing().propose(sequences, torch.tensor(slots)).window, sequences)
            found.append(decoder.verify(feed)[-1])
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_request_alone(name: str) -> None:
    made, given, settings = engine(name, slots=2), prompts(2, LENGTHS), Settings(7, eos=(3,))
    assert emitted(made, given, settings) == [emitted(made, [prompt], settings)[0] for prompt in given]


@pytest.mark.parametrize("name", ["bamba", "mamba_in_llama", "mamba_in_llama-rms"])
def test_logits_equal_the_oracle(name: str) -> None:
    """In float64, within 1e-9 relative: both round at 2^-53, and a difference of formula is larger than 1e-6."""
    model, prompt = drawn(name, torch.float64), prompts(3, (13,))[0]
    oracle = to_reference(model)
    wanted, _ = reference.scan(reference.new_state(oracle, 1), np.array([prompt]), oracle)
    assert apart(logits_after(model, [*prompt, 0], TorchOperations())[1], wanted[0]) <= 1e-9


@pytest.mark.parametrize("name", ["bamba", "mamba_in_llama"])
def test_tokens_equal_the_oracle(name: str) -> None:
    model, given = drawn(name, torch.float64), prompts(4, (3, 8))
    wanted, _ = decode.decode(tuple(map(tuple, given)), to_reference(model), decode.Settings(9))
    assert tuple(emitted(engine(model, operations=TorchOperations()), given, 9)) == wanted.emitted


def test_a_request_ends_at_its_first_end_and_at_its_budget() -> None:
    given, made = prompts(5, (6, 3)), engine("mamba2")
    whole = emitted(made, given, 20)
    assert [len(tokens) for tokens in whole] == [20, 20]
    eos, pair = whole[0][4], whole[1][7:9]
    ended = made.generate(given, Settings(20, eos=(eos,), stop=(tuple(pair),)))
    for result, tokens in zip(ended, whole, strict=True):
        n = next(
            (i + 1 for i in range(20) if tokens[i] == eos or tokens[max(0, i - 1) : i + 1] == pair),
            20,
        )
        assert result.tokens == tokens[:n]
    assert ended[0].finish == "eos" or tuple(ended[0].tokens[-2:]) == pair
    assert [r.finish for r in made.generate(given, Settings(3))] == ["length", "length"]
    assert emitted(made, given, 0) == [(), ()]


def test_a_stop_sequence_may_not_begin_in_the_prompt() -> None:
    made, given = engine("mamba2"), prompts(6, (5,))
    (first,) = emitted(made, given, 4)
    across = (given[0][-1], first[0])
    assert len(emitted(made, given, Settings(4, stop=(across,)))[0]) > 1 or across == first[:2]


@pytest.mark.parametrize("name", ["mamba2", "bamba", "gpt_neox"])  # whose head is not the embedding
def test_a_failing_row_does_not_harm_the_others(name: str) -> None:
    """One token's embedding is NaN: its prompt fails, by name, and its slot serves the next prompt as ever."""
    model, given = drawn(name), prompts(2, LENGTHS)
    wanted = emitted(engine(model, slots=2), given, 5)
    spare = unused(given, wanted)
    model.embedding[spare] = float("nan")
    found = engine(model, slots=2).generate([[1, spare, 2], *given], Settings(5))
    assert (found[0].tokens, found[0].finish) == ((), "failed")
    assert [result.tokens for result in found[1:]] == wanted


def test_a_key_names_a_request_whatever_its_place() -> None:
    """The noise of sampling reads it; the results stay in the order of the prompts."""
    made, given, seen = engine("mamba2", slots=2), prompts(8, (3, 5, 2)), {}
    add = Sequences.add

    def noted(self: Sequences, slot: int, prompt: list[int], budget: int, request: int, *more: Any) -> None:
        seen[request] = prompt
        add(self, slot, prompt, budget, request, *more)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Sequences, "add", noted)
        named = made.generate(given, Settings(3), keys=(70, 5, 11))
    assert seen == dict(zip((70, 5, 11), given, strict=True))
    assert named == made.generate(given, Settings(3))
    with pytest.raises(ParameterError, match="there are 3 prompts and 1 keys"):
        made.generate(given, Settings(3), keys=(4,))


def test_statistics_count_every_emitted_token() -> None:
    for result in engine("mamba").generate(prompts(7, LENGTHS), Settings(6)):
        assert sum(result.statistics.advanced) == len(result.tokens)


def test_between_two_windows_a_slot_holds_one_state_and_its_cache() -> None:
    """Counted in elements: nothing else of the size of a state is held."""
    model = drawn("bamba")
    decoder = Decoder(model, Plain(), BITWISE, slots=3, cache=10)
    for config, held in zip(model.config.mixers, decoder.pools.layers, strict=True):
        if isinstance(held, RecurrentState):
            assert held.S.shape == (3, 6, 8, 5)
            assert held.M.shape == (3, 68, 4)
        else:
            assert held.K.shape == held.V.shape == (3, 10, config.groups, config.channels)  # type: ignore[union-attr]
    assert list(tensors([decoder.pools.kept, decoder.pools.flight])) == []


def test_wrong_requests_are_refused_by_name_before_any_work() -> None:
    made = engine("mamba2", slots=1, cache=8)
    for given, settings, error in (
        ([[]], Settings(1), EmptyWindow),
        ([[61]], Settings(1), ParameterError),
        ([[-1]], Settings(1), ParameterError),
        ([[1] * 6], Settings(3), LengthError),
    ):
        with pytest.raises(error):
            made.generate(given, settings)
    with pytest.raises(BudgetError):
        Settings(-1)
    needed = made.target.pools.bytes
    with pytest.raises(MemoryRefused, match=f"{needed:,} bytes, but the limit is {needed - 1:,}"):
        engine(made.model, slots=1, cache=8, memory=needed - 1)
    assert engine(made.model, slots=1, cache=8, memory=needed).target.pools.bytes == needed
    with pytest.raises(Unsupported, match="plain decoding takes windows of 1 token"):
        Decoder(made.model, Plain(), BITWISE, slots=1, cache=8, window=3)


def test_planted_library_arithmetic_is_no_bitwise_arithmetic() -> None:
    """The vector loops, sums and products of PyTorch do depend on where a number stands; the folded ones do not."""
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(7, 333)).astype(np.float32))
    W = torch.as_tensor(rng.normal(size=(50, 333)).astype(np.float32))
    for bitwise, same in ((True, True), (False, False)):
        math = Arithmetic(bitwise)
        sums = [math.sum(x), torch.stack([math.sum(torch.cat([row, torch.zeros(19)])) for row in x])]
        products = [math.product(x, W), torch.cat([math.product(row[None], W) for row in x])]
        functions = [math.exp(x), torch.stack([torch.cat([math.exp(part) for part in torch.split(row, 5)]) for row in x])]
        equal = [torch.equal(*pair) for pair in (sums, products, functions)]
        assert all(equal) is same
