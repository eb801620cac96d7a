"""Packed runs equal each sequence alone; a pool of states is touched where the batch names a slot, and nowhere else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssmspec_ref import conv, packed, records, slots
from ssmspec_ref.errors import SlotError
from ssmspec_ref.layers import mixer as layers
from ssmspec_ref.packed import Boundaries
from ssmspec_ref.shapes import Array
from tests import families
from tests.families import KINDS, TOLERANCE, Sizes, deviation, each_convolved, examples, same_bits

from .recurrences import RECURRENCES, case
from .refusals import refused

quick = examples(60)
lengths_of_sequences = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any).map(np.array)


def packed_layer(
    kind: families.Kind, seed: int, sizes: Sizes, lengths: Array, family: families.Family = "gentle"
) -> tuple[layers.Mixer, layers.MixerState, layers.MixerInputs]:
    mixer = families.mixer(kind, seed, sizes, family)
    inputs = families.inputs(mixer, seed, 1, int(lengths.sum()), family, channel_gate=kind == "delta_channel")
    return mixer, families.state(mixer, seed, len(lengths), family), inputs


def alone(record: Any, lengths: Array, b: int, tokens: int) -> Any:
    """The first tokens of one sequence of a packed window."""
    begin = int(lengths[:b].sum())
    return records.each(lambda a: a[:, begin : begin + tokens], record)


def row(state: Any, b: int) -> Any:
    return records.rows(state, np.array([b]))


def deviation_from_alone(
    mixer: layers.Mixer, state: layers.MixerState, inputs: layers.MixerInputs, lengths: Array, marks: Boundaries, run: Any
) -> float:
    """How far outputs, final states and states at the boundaries are from each sequence's own; the largest of them."""
    y, after, marked = run(mixer, state, inputs, lengths, marks)
    worst = [0.0]
    for b, length in enumerate(lengths):
        if length:
            y_ref, ref = layers.scan(row(state, b), alone(inputs, lengths, b, int(length)), mixer)
            worst += [deviation(alone(y, lengths, b, int(length)), y_ref), deviation(row(after, b), ref)]
        else:
            worst.append(deviation(row(after, b), row(state, b)))
    for m, (b, t) in enumerate(zip(marks.sequence, marks.tokens, strict=True)):
        ref = layers.scan(row(state, b), alone(inputs, lengths, b, int(t)), mixer)[1] if t else row(state, b)
        worst.append(deviation(row(marked, m), ref))
    return float(np.max(worst))


@quick
@given(st.sampled_from(KINDS), families.drawn_sizes(), families.seeds, lengths_of_sequences, st.integers(1, 4))
def test_a_packed_run_equals_each_sequence_alone(
    kind: families.Kind, sizes: Sizes, seed: int, lengths: Array, block: int
) -> None:
    mixer, state, inputs = packed_layer(kind, seed, sizes, lengths)
    marks = packed.every(lengths, block)
    marks = records.rows(marks, np.random.default_rng(seed).permutation(len(marks.tokens)))  # boundaries in any order
    assert deviation_from_alone(mixer, state, inputs, lengths, marks, packed.scan_mixer) <= TOLERANCE


@pytest.mark.parametrize("name", RECURRENCES)
@examples(20)
@given(families.seeds, lengths_of_sequences, st.data())
def test_a_packed_recurrence_equals_each_sequence_alone_at_any_boundary(
    name: str, seed: int, lengths: Array, data: st.DataObject
) -> None:
    S = case(name, seed, Sizes(b=len(lengths))).S
    c = case(name, seed, Sizes(b=1, t=int(lengths.sum())))
    sequence = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=6)), dtype=np.int64)
    tokens = np.array([data.draw(st.integers(0, int(lengths[b]))) for b in sequence], dtype=np.int64)
    marks = Boundaries(sequence, tokens)
    y, after, marked = packed.scan(c.recurrence.definition, S, c.window, lengths, c.params, marks)
    for b, length in enumerate(lengths):
        if length:
            own = c.of(alone(c.window, lengths, b, int(length)))._replace(S=S[[b]])
            assert c.near((alone(y, lengths, b, int(length)), after[[b]]), own.scan())
    for m, (b, t) in enumerate(zip(sequence, tokens, strict=True)):
        own = c.of(alone(c.window, lengths, b, int(t)))._replace(S=S[[b]]) if t else None
        assert c.near(marked[[m]], S[[b]] if own is None else own.scan()[1])


def test_boundaries_are_the_multiples_of_a_block_inside_each_sequence_and_its_end() -> None:
    marks = packed.every(np.array([5, 0, 4, 1]), 2)
    assert marks.sequence.tolist() == [0, 0, 0, 1, 2, 2, 3]
    assert marks.tokens.tolist() == [2, 4, 5, 0, 2, 4, 1]


def test_without_boundaries_the_marked_states_are_the_final_ones() -> None:
    lengths = np.array([3, 0, 4])
    mixer, state, inputs = packed_layer("ssd", 1, Sizes(), lengths)
    _, after, marked = packed.scan_mixer(mixer, state, inputs, lengths)
    assert same_bits(marked, after)
    assert same_bits(row(after, 1), row(state, 1))


def test_pack_undoes_unpack() -> None:
    _, window, _ = families.ssd_case(0, Sizes(b=1, t=9), "mamba")
    lengths = np.array([0, 4, 2, 0, 3])
    rows, live = packed.unpack(window, lengths)
    assert live.sum(axis=1).tolist() == lengths.tolist()
    assert same_bits(packed.pack(rows.x, live), window.x)


def one_row(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    """The whole run as one sequence: each begins where the one before it ended."""
    y, _ = layers.scan(row(state, 0), inputs, mixer)
    return y, *packed.scan_mixer(mixer, state, inputs, lengths, marks)[1:]


def zero_start(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    return packed.scan_mixer(mixer, layers.new_state(mixer, len(lengths)), inputs, lengths, marks)


def conv_across(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    """The convolution runs over the whole row; only the recurrence knows the sequences."""
    c, _ = conv.scan(state.M[:1], inputs.pre, mixer.conv)
    window = mixer.project(c, inputs.gates)
    y, S, S_marked = packed.scan(mixer.recurrence, state.S, window, lengths, mixer.params, marks)
    _, after, marked = packed.scan_mixer(mixer, state, inputs, lengths, marks)
    return y, layers.MixerState(after.M, S), layers.MixerState(marked.M, S_marked)


def marks_from_the_run(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    """Boundaries counted on the grid of the run instead of from each sequence's first token."""
    block, grid = 2, np.cumsum(lengths) - lengths
    inside = marks.tokens < lengths[marks.sequence]
    tokens = np.where(inside, marks.tokens - grid[marks.sequence] % block, marks.tokens)
    return packed.scan_mixer(mixer, state, inputs, lengths, Boundaries(marks.sequence, tokens))


def ends_for_all(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    """Every boundary gets the state at the end of its sequence."""
    return packed.scan_mixer(mixer, state, inputs, lengths, Boundaries(marks.sequence, lengths[marks.sequence]))


def states_rolled(mixer: Any, state: Any, inputs: Any, lengths: Array, marks: Boundaries) -> Any:
    """Sequence b starts from the state of sequence b + 1."""
    rolled = records.each(lambda a: np.roll(a, 1, axis=0), state)
    return packed.scan_mixer(mixer, rolled, inputs, lengths, marks)


@pytest.mark.parametrize("fault", [one_row, zero_start, conv_across, marks_from_the_run, ends_for_all, states_rolled])
@each_convolved
def test_planted_faults_of_packed_runs_are_caught(kind: families.Kind, fault: Callable[..., Any]) -> None:
    lengths = np.array([5, 3, 6])
    mixer, state, inputs = packed_layer(kind, 4, Sizes(), lengths)
    marks = packed.every(lengths, 2)
    assert deviation_from_alone(mixer, state, inputs, lengths, marks, packed.scan_mixer) <= TOLERANCE
    assert not deviation_from_alone(mixer, state, inputs, lengths, marks, fault) <= TOLERANCE


# ---------------------------------------------------------------------------------------------------------------- slots


def a_pool(kind: families.Kind, seed: int, size: int) -> tuple[layers.Mixer, layers.MixerState]:
    mixer = families.mixer(kind, seed, Sizes())
    return mixer, families.state(mixer, seed, size)


@st.composite
def drawn_slots(draw: st.DrawFn, size: int = 8) -> Array:
    """Different slots out of order, with padding among them, slot 0 as likely as any."""
    named = draw(st.permutations(range(size)))[: draw(st.integers(0, 5))]
    places = draw(st.permutations([*named, *draw(st.lists(st.integers(-3, -1), max_size=3))]))
    return np.array(places, dtype=np.int64)


@quick
@given(st.sampled_from(KINDS), families.seeds, drawn_slots())
def test_put_writes_the_named_slots_and_leaves_every_other_bit(kind: families.Kind, seed: int, named: Array) -> None:
    _, pool = a_pool(kind, seed, 8)
    batch = families.state(families.mixer(kind, seed, Sizes()), seed + 1, len(named))
    before = records.each(np.copy, pool)
    after = slots.put(pool, named, batch)
    live = named >= 0
    others = np.setdiff1d(np.arange(8), named)
    assert same_bits(records.rows(after, named[live]), records.rows(batch, np.flatnonzero(live)))
    assert same_bits(records.rows(after, others), records.rows(pool, others))
    assert same_bits(pool, before)
    assert not any(np.shares_memory(a, b) for a, b in zip(records.arrays(after), records.arrays(pool), strict=True))


@quick
@given(st.sampled_from(KINDS), families.seeds, drawn_slots())
def test_taking_back_what_was_put_gives_the_batch_and_zeros_for_padding(kind: families.Kind, seed: int, named: Array) -> None:
    _, pool = a_pool(kind, seed, 8)
    batch = families.state(families.mixer(kind, seed, Sizes()), seed + 1, len(named))
    taken = slots.take(slots.put(pool, named, batch), named)
    live = np.flatnonzero(named >= 0)
    assert same_bits(records.rows(taken, live), records.rows(batch, live))
    assert not any(a[named < 0].any() for a in records.arrays(taken))
    assert same_bits(slots.put(pool, named, slots.take(pool, named)), pool)


def test_a_batch_advances_through_the_pool_as_each_sequence_alone() -> None:
    mixer, pool = a_pool("delta", 2, 8)
    named, inputs = np.array([5, -1, 0, 7]), families.inputs(mixer, 2, 4, 3)
    y, after = layers.scan(slots.take(pool, named), inputs, mixer)
    pool_after = slots.put(pool, named, after)
    for b, slot in enumerate(named):
        if slot >= 0:
            y_ref, ref = layers.scan(row(pool, slot), row(inputs, b), mixer)
            assert deviation(y[[b]], y_ref) <= TOLERANCE
            assert deviation(row(pool_after, slot), ref) <= TOLERANCE
    assert same_bits(records.rows(pool_after, np.array([1, 2, 3, 4, 6])), records.rows(pool, np.array([1, 2, 3, 4, 6])))


def by_row(pool: Array, named: Array, batch: Array) -> Array:
    """Written by batch row instead of by slot."""
    return slots.put(pool, np.where(named >= 0, np.arange(len(named)), -1), batch)


def padding_in_slot_0(pool: Array, named: Array, batch: Array) -> Array:
    after = pool.copy()
    after[np.maximum(named, 0)] = batch
    return after


def padding_in_the_last_slot(pool: Array, named: Array, batch: Array) -> Array:
    after = pool.copy()
    after[named] = batch
    return after


def slot_0_is_padding(pool: Array, named: Array, batch: Array) -> Array:
    return slots.put(pool, np.where(named > 0, named, -1), batch)


@pytest.mark.parametrize("fault", [by_row, padding_in_slot_0, padding_in_the_last_slot, slot_0_is_padding])
def test_planted_faults_of_the_pool_are_caught(fault: Callable[..., Array]) -> None:
    rng = np.random.default_rng(0)
    pool, batch, named = rng.normal(size=(8, 3)), rng.normal(size=(4, 3)), np.array([5, 0, 2, -1])
    expected = pool.copy()
    expected[[5, 0, 2]] = batch[:3]
    assert same_bits(slots.put(pool, named, batch), expected)
    assert not same_bits(fault(pool, named, batch), expected)


@pytest.mark.parametrize("named", [[3, 1, 3], [0, 8], [-1, 0, -1, 0]])
def test_a_slot_twice_or_outside_the_pool_is_refused_before_anything(named: list[int]) -> None:
    pool = np.random.default_rng(0).normal(size=(8, 3))
    refused(SlotError, "", slots.take, pool, np.array(named))
    refused(SlotError, "", slots.put, pool, np.array(named), np.zeros((len(named), 3)))
