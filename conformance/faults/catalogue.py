"""Every planted fault, with its bug class and the operation whose cases must fail it."""

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ssmspec_ref.contract import Graph, Subject

from .by_hand import (
    carried,
    chunks,
    ends,
    late_flushes,
    shared_memory,
    siblings,
    slot_order,
    softmax,
    texts,
    trees,
    whole_windows,
)
from .memory import (
    beginnings,
    bits,
    far_inputs,
    graphs,
    offsets,
    past_a_tile,
    pools,
    reused,
    state_formats,
    strides,
    two_options,
)
from .misbehaving import cheats, conduct
from .recurrences import (
    arithmetic,
    channel_gates,
    edges,
    extremes,
    guarded,
    large_sizes,
    other_rules,
    packed,
    short_convolutions,
    size_limits,
    tiles,
    trapezoids,
    unreached,
    unread,
)
from .rollback import (
    checkpoints,
    commits,
    flushes,
    histories,
    interleaved,
    lives,
    long_runs,
    pieces,
    positions,
    ranks,
    rings,
    speculation,
    windows,
)
from .sampled import acceptance, processors, runs, sampling, tokens
from .single import Wrong, single
from .whole_layers import attention, gates, layers, prompts

THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w-]+#\d+")


@dataclass(frozen=True)
class Fault:
    """One wrong implementation: the subject that contains it, and the operation that must fail it.

    `says` describes the mistake; `source` is a public thread about it, "" if there is none.
    """

    name: str
    bug_class: str
    operation: str
    says: str
    source: str
    subject: Subject


def fault(bug_class: str, operation: str, subject: Subject) -> Fault:
    """The fault of a subject; its description is the docstring of the function or class that it runs."""
    run: Any = subject.capabilities[operation].run
    while isinstance(run, partial | Graph):
        run = run.func if isinstance(run, partial) else run.prepare
    told = inspect.getdoc(run if inspect.isfunction(run) or inspect.isclass(run) else type(run)) or ""
    said = " ".join(told.split())
    source = THREAD.search(said)
    return Fault(f"{subject.name}", bug_class, operation, said, source[0] if source else "", subject)


def _faults() -> Iterator[Fault]:
    for scan in arithmetic.WRONG:
        yield fault(ARITHMETIC[scan.__name__], "ssd.scan_masked", arithmetic.subject(scan))
    for subject in conduct.adapter().subjects:
        (operation,) = subject.capabilities
        yield fault(CONDUCT.get(subject.name, "CONDUCT"), operation, subject)
    for operation, run in size_limits.WRONG:
        yield fault(REACH[run.__name__], operation, size_limits.subject(operation, run))
    for run in cheats.FAULTS:
        yield fault("CHEAT", "ssd.scan", cheats.subject(run))
    for of, made in ((commits.FAULTS, commits.subject), (other_rules.FAULTS, other_rules.subject), (sampling.FAULTS, single)):
        for operation, every in of.items():
            for run, bug_class in every:
                yield fault(bug_class, operation, made(operation, run))
    for faults, made in ((histories.FAULTS, single), (rings.FAULTS, rings.subject), (prompts.FAULTS, single)):
        for run, operation, bug_class in faults:
            yield fault(bug_class, operation, made(operation, run))
    for module in (
        edges,
        tiles,
        extremes,
        interleaved,
        positions,
        strides,
        flushes,
        large_sizes,
        checkpoints,
        unreached,
        unread,
        guarded,
        bits,
        state_formats,
        pools,
        offsets,
        far_inputs,
        beginnings,
        past_a_tile,
        two_options,
        reused,
        graphs,
        tokens,
        runs,
        lives,
        ranks,
        long_runs,
        channel_gates,
        gates,
        short_convolutions,
        trapezoids,
        pieces,
    ):
        yield from _of_operations(module.FAULTS)
    for run, bug_class in processors.FAULTS:
        yield fault(bug_class, processors.OPERATION, single(processors.OPERATION, run))
    yield from _classed_below()
    for module in (
        chunks,
        slot_order,
        trees,
        texts,
        softmax,
        whole_windows,
        shared_memory,
        carried,
        late_flushes,
        siblings,
        ends,
    ):
        yield from _of_operations(module.FAULTS)


def _of_operations(faults: Iterable[Wrong]) -> Iterator[Fault]:
    """The faults of one file that names the operation of each."""
    for run, operation, bug_class, *given in faults:
        yield fault(bug_class, operation, single(operation, run, *given))


def _classed_below() -> Iterator[Fault]:
    """The faults with their bug classes from the tables below."""
    for operation, every in (acceptance.WRONG | attention.WRONG).items():
        for run in every:
            yield fault(DECISIONS[run.__name__], operation, single(operation, run))
    for rule in packed.windowed():
        for run in packed.WRONG:
            yield fault(PACKED[run.__name__], f"{rule}.scan_packed", packed.subject(rule, run))
        for operation, build in windows.WRONG:
            yield fault(WINDOWS[build.__name__], f"{rule}.{operation}", windows.subject(operation, build, rule))
    for build, operations in (layers.WRONG | {build: (operation,) for build, operation in layers.REACH.items()}).items():
        for operation in operations:
            yield fault(LAYERS[build.__name__], operation, layers.subject(build))
    for build in (*speculation.WRONG, *speculation.REACH):
        subject = speculation.subject(build)
        yield fault(SPECULATION[build.__name__], min(subject.capabilities), subject)


ARITHMETIC = {
    "state_leak": "SLOT-SCOPE",
    "bf16_state": "NUMERIC",
    "tf32": "NUMERIC",
    "group_map": "GROUP-MAP",
    "lost_skip": "VARIANT",
    "no_op_decays": "PAD-LEAK",
    "exp2_constant": "NUMERIC",
    "previous_bias": "VARIANT",
}
CONDUCT = {"zeros": "CHEAT", "keeps_rejected": "CONV", "tree_as_chain": "TREE-MASK"}
REACH = {
    "transposed_square": "TRANSPOSE",
    "one_tile_of_states": "INDEX",
    "eight_rows": "INDEX",
    "forgets_at_256": "CHUNK",
    "early_threshold": "NUMERIC",
    "floor_under_steps": "NUMERIC",
    "assumes_compact": "INDEX",
    "keeps_by_address": "CHEAT",
    "other_eps": "NUMERIC",
    "one_tile_of_keys": "INDEX",
    "near_ancestors": "TREE-MASK",
    "bits_of_a_word": "TREE-MASK",
}
DECISIONS = {
    "ignores_the_end": "STOP",
    "spends_one_more": "STOP",
    "last_twin": "GREEDY",
    "path_without_root": "ACCEPT-IDX",
    "other_stride": "TREE-COMMIT",
    "independent_siblings": "Q-MISMATCH",
    "picks_from_the_target": "ACCEPT-RULE",
    "noise_of_the_parent": "RNG",
    "sees_siblings": "TREE-MASK",
    "one_slot_more": "INDEX",
    "tiled_heads": "GROUP-MAP",
    "other_scale": "VARIANT",
    "sixty_four_slots": "INDEX",
    "overwrites": "TREE-COMMIT",
    "moves_keys_only": "TREE-COMMIT",
    "one_length": "SLOT-SCOPE",
}
PACKED = {
    "one_sequence": "SLOT-SCOPE",
    "never_fresh": "SLOT-REUSE",
    "empty_is_cleared": "CHUNK",
    "states_in_order_of_length": "SLOT-SCOPE",
}
WINDOWS = {
    "KeepsOneMore": "ACCEPT-IDX",
    "LosesAtTheFlush": "REPLAY",
    "OneCursor": "SLOT-SCOPE",
    "NarrowCheckpoint": "NUMERIC",
    "DropsTheLast": "REPLAY",
    "RestingRowsAdvance": "PAD-SLOT",
    "ReplaysThePrefix": "TREE-COMMIT",
    "KeepsTheFirstWindow": "SCHED",
    "ReplaysWhenVerified": "REPLAY",
}
LAYERS = {
    "ForgetsState": "INIT-DROP",
    "PadsDecay": "PAD-LEAK",
    "KeepsRecurrentState": "ROLLBACK",
    "ClampsPrefill": "VARIANT",
    "LiesAboutWeights": "CONDUCT",
    "UndoesWholeCalls": "ROLLBACK",
    "UndoesOneCall": "ROLLBACK",
    "MasksLastPads": "PAD-LEAK",
    "AssumesEps": "NUMERIC",
    "LosesStateAt64": "CHUNK",
    "MasksTheFirstCall": "PAD-LEAK",
}
SPECULATION = {
    "KeepsConvWindow": "ROLLBACK",
    "RestingRowsAdvance": "PAD-SLOT",
    "LosesLastToken": "COMMIT",
    "TreeAsChain": "TREE-MASK",
    "RollsBackToStart": "ROLLBACK",
    "FirstColumnWithoutDrafts": "ACCEPT-IDX",
    "SettlesWhenRead": "COMMIT",
    "ForgetsPast32": "REPLAY",
    "EightTokensAtMost": "REPLAY",
    "TilesGroups": "GROUP-MAP",
}
FAULTS: tuple[Fault, ...] = tuple(_faults())
