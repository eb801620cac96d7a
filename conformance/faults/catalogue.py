"""Every planted fault, with its bug class and the operation whose cases must fail it."""

from ssmspec_ref.contract import Adapter

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
from .fault import Fault, adapter_of
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
from .whole_layers import attention, gates, layers, prompts

MODULES = (
    arithmetic, conduct, size_limits, cheats, commits, other_rules, sampling, histories, rings, prompts, edges, tiles,
    extremes, interleaved, positions, strides, flushes, large_sizes, checkpoints, unreached, unread, guarded, bits,
    state_formats, pools, offsets, far_inputs, beginnings, past_a_tile, two_options, reused, graphs, tokens, runs, lives,
    ranks, long_runs, channel_gates, gates, short_convolutions, trapezoids, pieces, processors, acceptance, attention,
    packed, windows, layers, speculation, chunks, slot_order, trees, texts, softmax, whole_windows, shared_memory,
    carried, late_flushes, siblings, ends,
)  # fmt: skip
FAULTS: tuple[Fault, ...] = tuple(fault for module in MODULES for fault in module.FAULTS)


def of_name(name: str, operation: str = "") -> Fault:
    """The first planted fault of a name, of an operation if one is given. Raises: StopIteration."""
    return next(fault for fault in FAULTS if fault.name == name and operation in ("", fault.operation))


def adapter() -> Adapter:
    """All of them, each as one subject."""
    return adapter_of("operations", FAULTS)
