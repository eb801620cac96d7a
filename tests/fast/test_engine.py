"""Plain decoding: what a request is promised alone and in any batch, and where it ends."""

from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.requests import Settings
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.state import Pools, RecurrentState, tensors
from ssmspec_fast.errors import MemoryRefused
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.models.model import Model
from ssmspec_fast.operations.arithmetic import Arithmetic
from ssmspec_fast.operations.torch_ops import TorchOperations
from ssmspec_ref import decode
from ssmspec_ref import model as reference
from ssmspec_ref.errors import BudgetError, EmptyWindow, LengthError, ParameterError, Unsupported

from .models import NAMES, ONE_OF_EACH, drawn, prompts, to_reference

LENGTHS = (1, 9, 4, 17, 2)
BITWISE = TorchOperations(bitwise=True)


def after(
    model: Model, prompt: list[int], operations: TorchOperations, prefilled: int, chunk: int = 4096
) -> tuple[Pools, torch.Tensor]:
    """States and logits after a prompt of which the first tokens were prefilled and the rest came one by one."""
    decoder = Decoder(model, Plain(), operations, slots=3, cache=24, chunk=chunk)
    sequences, slot = new_sequences(3, 24, (), (), "cpu"), torch.tensor([2])
    decoder.prefill([prompt[:prefilled]], [2])
    sequences.add(2, prompt[:prefilled], 20, 0)
    logits = []
    for token in prompt[prefilled:]:
        feed = decoder.feed(Nothing().propose(sequences, slot).window, sequences)
        logits.append(decoder.verify(feed)[0, 0])
        decoder.pools.length[2] += 1
        sequences.tokens[2, sequences.length[2]] = token
        sequences.length[2] += 1
    return decoder.pools, torch.stack(logits)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_bitwise_prefill_equals_token_by_token(name: str) -> None:
    """Packed or stepped, in one run or in several, the states have the same bits."""
    model, prompt = drawn(name), prompts(0, (13,))[0]
    with torch.no_grad():
        found = [after(model, prompt, BITWISE, n, chunk)[0] for n, chunk in ((1, 99), (12, 99), (12, 3))]
    for pools in found[1:]:
        for came, wanted in zip(tensors(pools.layers), tensors(found[0].layers), strict=True):
            assert torch.equal(came, wanted)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_request_has_the_same_bits_alone_and_in_any_batch(name: str) -> None:
    """Logits of one row beside 0 to 4 others, in another slot each time."""
    model, given, found = drawn(name), prompts(1, LENGTHS), []
    for slots in ([1], [4, 2], [0, 3, 1, 4, 2]):
        decoder = Decoder(model, Plain(), BITWISE, slots=5, cache=32)
        sequences = new_sequences(5, 32, (), (), "cpu")
        with torch.no_grad():
            decoder.prefill(given[-len(slots) :], slots)
            for slot, prompt in zip(slots, given[-len(slots) :], strict=True):
                sequences.add(slot, prompt, 4, 0)
            feed = decoder.feed(Nothing().propose(sequences, torch.tensor(slots)).window, sequences)
            found.append(decoder.verify(feed)[-1])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_request_alone(name: str) -> None:
    model, given, settings = drawn(name), prompts(2, LENGTHS), Settings(7, eos=(3,))
    engine = Engine(model, slots=2, cache=32, operations=BITWISE)
    together = [result.tokens for result in engine.generate(given, settings)]
    alone = [engine.generate([prompt], settings)[0].tokens for prompt in given]
    assert together == alone


@pytest.mark.parametrize("name", ["bamba", "mamba_in_llama", "mamba_in_llama-rms"])
def test_logits_equal_the_oracle(name: str) -> None:
    """In float64, within 1e-9 relative: both round at 2^-53, and a difference of formula is larger than 1e-6."""
    model, prompt = drawn(name, torch.float64), prompts(3, (13,))[0]
    oracle = to_reference(model)
    wanted, _ = reference.scan(reference.new_state(oracle, 1), np.array([prompt]), oracle)
    with torch.no_grad():
        came = after(model, [*prompt, 0], TorchOperations(), 5)[1].numpy()
    assert np.max(np.abs(came - wanted[0, 4:])) <= 1e-9 * np.max(np.abs(wanted))


@pytest.mark.parametrize("name", ["bamba", "mamba_in_llama"])
def test_tokens_equal_the_oracle(name: str) -> None:
    model, given = drawn(name, torch.float64), prompts(4, (3, 8))
    wanted, _ = decode.decode(tuple(map(tuple, given)), to_reference(model), decode.Settings(9))
    came = Engine(model, slots=2, cache=32).generate(given, Settings(9))
    assert tuple(result.tokens for result in came) == wanted.emitted


def test_a_request_ends_at_its_first_end_and_at_its_budget() -> None:
    model, given = drawn("mamba2"), prompts(5, (6, 3))
    engine = Engine(model, slots=2, cache=64)
    whole = [result.tokens for result in engine.generate(given, Settings(20))]
    assert [len(tokens) for tokens in whole] == [20, 20]
    eos, pair = whole[0][4], whole[1][7:9]
    ended = engine.generate(given, Settings(20, eos=(eos,), stop=(tuple(pair),)))
    for result, tokens in zip(ended, whole, strict=True):
        n = next(
            (i + 1 for i in range(20) if tokens[i] == eos or tokens[max(0, i - 1) : i + 1] == pair),
            20,
        )
        assert result.tokens == tokens[:n]
    assert ended[0].finish == "eos" or tuple(ended[0].tokens[-2:]) == pair
    assert [r.finish for r in engine.generate(given, Settings(3))] == ["length", "length"]
    assert [r.tokens for r in engine.generate(given, Settings(0))] == [(), ()]


def test_a_stop_sequence_may_not_begin_in_the_prompt() -> None:
    model, given = drawn("mamba2"), prompts(6, (5,))
    engine = Engine(model, slots=1, cache=32)
    first = engine.generate(given, Settings(4))[0].tokens
    across = (given[0][-1], first[0])
    assert len(engine.generate(given, Settings(4, stop=(across,)))[0].tokens) > 1 or across == first[:2]


@pytest.mark.parametrize("name", ["mamba2", "bamba", "gpt_neox"])  # whose head is not the embedding
def test_a_failing_row_does_not_harm_the_others(name: str) -> None:
    """One token's embedding is NaN: its prompt fails, by name, and its slot serves the next prompt as ever."""
    model, given = drawn(name), prompts(2, LENGTHS)
    wanted = [result.tokens for result in Engine(model, slots=2, cache=32, operations=BITWISE).generate(given, Settings(5))]
    spare = next(token for token in range(61) if token not in {t for p in (*given, *wanted) for t in p})
    model.embedding[spare] = float("nan")
    found = Engine(model, slots=2, cache=32, operations=BITWISE).generate([[1, spare, 2], *given], Settings(5))
    assert (found[0].tokens, found[0].finish) == ((), "failed")
    assert [result.tokens for result in found[1:]] == wanted


def test_a_key_names_a_request_whatever_its_place() -> None:
    """The noise of sampling reads it; the results stay in the order of the prompts."""
    engine, given, seen = Engine(drawn("mamba2"), slots=2, cache=32), prompts(8, (3, 5, 2)), {}
    add = Sequences.add

    def noted(self: Sequences, slot: int, prompt: list[int], budget: int, request: int, *more: Any) -> None:
        seen[request] = prompt
        add(self, slot, prompt, budget, request, *more)

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Sequences, "add", noted)
        named = engine.generate(given, Settings(3), keys=(70, 5, 11))
    assert seen == dict(zip((70, 5, 11), given, strict=True))
    assert named == engine.generate(given, Settings(3))
    with pytest.raises(ParameterError, match="there are 3 prompts and 1 keys"):
        engine.generate(given, Settings(3), keys=(4,))


def test_statistics_count_every_emitted_token() -> None:
    engine = Engine(drawn("mamba"), slots=2, cache=32)
    for result in engine.generate(prompts(7, LENGTHS), Settings(6)):
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
    engine = Engine(drawn("mamba2"), slots=1, cache=8)
    for given, settings, error in (
        ([[]], Settings(1), EmptyWindow),
        ([[61]], Settings(1), ParameterError),
        ([[-1]], Settings(1), ParameterError),
        ([[1] * 6], Settings(3), LengthError),
    ):
        with pytest.raises(error):
            engine.generate(given, settings)
    with pytest.raises(BudgetError):
        Settings(-1)
    needed = engine.target.pools.bytes
    with pytest.raises(MemoryRefused, match=f"{needed:,} bytes, but the limit is {needed - 1:,}"):
        Engine(engine.model, slots=1, cache=8, memory=needed - 1)
    assert Engine(engine.model, slots=1, cache=8, memory=needed).target.pools.bytes == needed
    with pytest.raises(Unsupported, match="plain decoding takes windows of 1 token"):
        Decoder(engine.model, Plain(), BITWISE, slots=1, cache=8, window=3)


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
