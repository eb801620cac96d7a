"""Both convolutions' launchers, with the cases of every law."""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.conv import conv_commit, conv_packed, conv_step, conv_tree, conv_window
from ssmspec_kernels.shortconv import (
    shortconv_commit,
    shortconv_packed,
    shortconv_scan,
    shortconv_snapshots,
    shortconv_tree,
)
from tests.kernels import conv_plot as conv
from tests.kernels.conv_plot import Commits, Options, committed, drawn, short
from tests.kernels.laws import Subject, check_own_slots, nothing_accepted, of_accepted, of_places, same
from tests.kernels.plot import every_row, with_places
from tests.kernels.tensors import Kept, watch

ONCE = ("M", "S", "u", "B", "C", "x", "out", "previous")


def drawn_by(launcher: str) -> Any:
    return lambda o: drawn(launcher, o)


# --- windows, single tokens, and the state after every token ---


def check_single_tokens(module: ModuleType) -> None:
    """A window is its tokens one by one, by the launcher of one token."""
    o = Options(t=6, seed=11)
    call, alone = drawn("conv_window", o), drawn("conv_window", o)
    call.run(module)
    fixed = {name: alone.given[name] for name in ("M", "weight", "bias", "slots", "activation")}
    for t in range(o.t):
        conv_step.conv_step(**fixed, u=alone["u"][:, t], out=alone["out"][:, t])
    assert same([call["M"][call.named], call["out"][call.rows]], [alone["M"][call.named], alone["out"][call.rows]])


WINDOWS = [
    Options(poison=7.0),
    Options(live=True, seed=1),
    Options(t=4, c=9, w=3, replay="advanced", keep="committed", state="bf16", io="bf16", seed=2),
    Options(t=3, c=13, w=5, replay="path", keep="committed", io="bf16", bias=False, seed=3),
    Options(t=6, c=8, w=2, replay="path", live=True, state="fp16", io="fp16", activation=False, seed=4),
    Options(t=2, c=11, w=8, replay="advanced", bias=False, seed=5),
    Options(t=5, c=7, w=4, replay="advanced", keep="none", padding=False, seed=6),
    Options(t=7, c=3, w=6, keep="none", live=True, state="fp32", io="fp16", seed=7),
    Options(t=1, b=1, c=17, w=7, state="bf16", io="fp32", activation=False, seed=8),
    Options(t=16, b=3, c=2, w=4, live=True, exact=True, seed=9),
    Options(t=3, c=5, w=4, replay="path", keep="none", live=True, exact=True, seed=10),
]
WINDOW = Subject(
    "conv_window",
    conv_window,
    drawn_by("conv_window"),
    conv.of_window,
    cover=WINDOWS,
    moves=WINDOWS,
    small=Options(t=5),
    once=ONCE,
    formula=conv.bytes_of_window,
    read_only={"keep": "none"},
    special=[check_single_tokens],
)
STEPS = [
    Options(t=1, poison=7.0),
    Options(t=1, c=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    Options(t=1, c=16, w=3, state="fp32", io="bf16", activation=False, seed=2),
    Options(t=1, c=9, w=8, state="fp16", io="fp16", padding=False, seed=3),
    Options(t=1, c=19, w=5, state="fp32", io="fp16", bias=False, activation=False, seed=4),
    Options(t=1, b=1, c=3, w=4, state="bf16", io="fp32", seed=5),
    Options(t=1, w=7, c=13, exact=True, seed=6),
]
STEP: Subject = Subject(
    "conv_step",
    conv_step,
    drawn_by("conv_step"),
    conv.of_window,
    cover=STEPS,
    moves=STEPS,
    once=ONCE,
    far=[(Options(b=1, t=1, c=3, state="bf16"), "s")],
    special=[lambda module: check_own_slots(STEP, module, Options(t=1))],
)
SCANS = [
    short(poison=7.0),
    short(t=1, w=2, state="bf16", io="bf16", seed=1),
    short(t=6, live=True, io="bf16", seed=2),
    short(t=4, c=5, w=4, state="fp16", io="fp16", bias=False, seed=3),
    short(t=3, c=9, w=8, write=False, live=True, seed=4),
    short(t=2, b=1, c=17, w=5, state="bf16", io="fp32", seed=5),
    short(t=9, b=3, c=3, live=True, exact=True, seed=6),
    short(t=40, b=3, c=2, live=True, io="bf16", seed=7),
]
SCAN = Subject(
    "shortconv_scan",
    shortconv_scan,
    drawn_by("shortconv_scan"),
    conv.of_window,
    cover=SCANS,
    moves=SCANS,
    steps=[short(t=t, c=5) for t in (5, 33, 40)],  # longer windows are a loop, shorter ones are not
    small=short(),
    once=ONCE,
)
KEEPING = [
    short(t=4, spare=20),
    short(t=5, w=4, live=True, state="bf16", io="bf16", spare=24, seed=1),
    short(t=34, b=2, c=3, w=2, io="bf16", spare=70, seed=2),
]
SNAPSHOTS = Subject(
    "shortconv_snapshots",
    shortconv_snapshots,
    lambda o: with_places(drawn("shortconv_snapshots", o)),
    conv.of_states,
    cover=KEEPING,
    moves=KEEPING,
    once=ONCE,
    formula=of_places,
)

# --- trees ---


def check_order(launcher: str, module: ModuleType) -> None:
    """Of parents out of order, and of such that are nowhere, nothing outside is read."""
    for bad in ([-1, 2, 0, 7], [3, 3, 3, 3], [-1, 0, 127, 1]):
        call = drawn(launcher, Options(t=4, keep="none"))
        call["parents"].copy_(torch.tensor(bad))
        with watch(**call.tensors) as seen:
            call.run(module)
        assert seen.outside == []


TREES = [
    Options(t=9, keep="none", poison=7.0),
    Options(t=13, c=5, w=2, state="bf16", io="bf16", keep="none", bias=False, seed=1),
    Options(t=7, c=9, w=3, replay="path", keep="committed", io="bf16", seed=2),
    Options(t=12, c=8, w=8, replay="advanced", keep="committed", state="fp16", io="fp16", seed=3),
    Options(t=16, c=3, w=5, replay="path", keep="none", activation=False, padding=False, seed=4),
    Options(t=1, b=2, c=7, w=4, keep="none", state="bf16", io="fp32", padding=False, seed=5),
    Options(t=21, b=3, c=4, w=6, keep="none", exact=True, seed=6),
    Options(t=128, b=2, c=2, w=4, keep="none", io="bf16", padding=False, seed=7),
]
TREE = Subject(
    "conv_tree",
    conv_tree,
    drawn_by("conv_tree"),
    conv.of_nodes,
    cover=TREES,
    moves=TREES,
    once=ONCE,
    formula=conv.bytes_of_window,
    special=[partial(check_order, "conv_tree")],
)
SHORT_TREES = [
    short(t=9, poison=7.0),
    short(t=13, c=5, w=2, state="bf16", io="bf16", bias=False, seed=1),
    short(t=12, c=8, w=8, state="fp16", io="fp16", seed=2),
    short(t=1, b=2, c=7, w=4, io="bf16", padding=False, seed=3),
    short(t=21, b=3, c=4, w=6, exact=True, padding=False, seed=4),
    short(t=128, b=2, c=2, io="bf16", padding=False, seed=5),
]
SHORT_TREE = Subject(
    "shortconv_tree",
    shortconv_tree,
    drawn_by("shortconv_tree"),
    conv.of_nodes,
    cover=SHORT_TREES,
    moves=SHORT_TREES,
    once=ONCE,
    formula=conv.bytes_of_nodes,
    special=[partial(check_order, "shortconv_tree")],
)

# --- packed runs ---


def check_past_the_run(launcher: str, module: ModuleType) -> None:
    """Of bounds that end past the run, nothing behind it is touched."""
    call = drawn(launcher, replace(RUNS[4], lengths=MANY, b=5, padding=False, behind=0))
    call["bounds"][-1] += 5
    kept = Kept(**call.tensors)
    call.run(module)
    kept.check(out=slice(None), **{call.pool: call.named})
    assert np.isfinite(call.state()).all()


def runs(*cases: Options) -> list[Options]:
    """Each with the number of its sequences, and once more with some that start anew."""
    return [replace(o, b=len(o.lengths), fresh=anew) for o in cases for anew in (False, True)]


MANY, LONG = (3, 2, 0, 17, 1), (1, 1, 1, 30, 1)
RUNS = runs(
    Options(lengths=MANY, poison=7.0),
    Options(lengths=(5, 8), c=5, w=2, state="bf16", io="bf16", bias=False, padding=False, seed=2),
    Options(lengths=LONG, c=16, w=8, io="bf16", seed=3),
    Options(lengths=(7, 7, 7), c=3, w=3, state="fp16", io="fp16", activation=False, write=False, seed=4),
    Options(lengths=(16, 16, 16), c=9, w=5, state="bf16", io="fp32", padding=False, behind=0, seed=5),
    Options(lengths=(40,), c=2, w=4, seed=6),
)
PACKED = Subject(
    "conv_packed",
    conv_packed,
    drawn_by("conv_packed"),
    conv.of_run,
    cover=RUNS,
    moves=RUNS,
    once=("store out", "store M"),  # the tokens ask for what lies under their taps, each for itself
    formula=conv.bytes_of_run,
    special=[partial(check_past_the_run, "conv_packed")],
)
SHORT_RUNS = runs(
    short(lengths=MANY, poison=7.0),
    short(lengths=(5, 8), c=5, w=2, state="bf16", io="bf16", bias=False, padding=False, seed=2),
    short(lengths=LONG, c=16, w=8, io="bf16", seed=3),
    short(lengths=(1, 1, 30), c=3, w=4, state="fp16", io="fp16", padding=False, seed=4),
    short(lengths=(40,), c=2, w=5, io="bf16", seed=6),
)
SHORT_PACKED = Subject(
    "shortconv_packed",
    shortconv_packed,
    drawn_by("shortconv_packed"),
    conv.of_run,
    cover=SHORT_RUNS,
    moves=SHORT_RUNS,
    once=("store out", "store S"),
    formula=conv.bytes_of_run,
    special=[partial(check_past_the_run, "shortconv_packed")],
)

# --- commits ---

INPUTS = [
    Commits(t=7, w=4),
    Commits(path=True, t=7, w=4, seed=1),
    Commits(t=5, c=3, w=2, state="bf16", io="bf16", seed=2),
    Commits(path=True, t=6, c=16, state="fp32", io="bf16", padding=False, seed=3),
    Commits(path=True, t=11, c=9, w=8, state="fp16", io="fp16", seed=4),
    Commits(b=3, t=8, c=21, w=5, state="bf16", io="fp32", seed=5),
]
INPUTS = [replace(o, drafts=1, how={"block_c": 8}) for o in INPUTS]
COMMIT = Subject(
    "conv_commit",
    conv_commit,
    committed("conv_commit"),
    conv.of_inputs,
    cover=INPUTS,
    moves=INPUTS,
    once=ONCE,
    formula=conv.bytes_of_inputs,
)
ACCEPTED = [
    Commits(),
    Commits(path=True, t=7, w=8, io="bf16", seed=1),
    Commits(t=3, c=5, w=4, state="bf16", io="bf16", seed=2),
    Commits(path=True, t=6, c=9, w=2, state="fp16", io="fp16", seed=3),
]
SHORT_COMMIT = Subject(
    "shortconv_commit",
    shortconv_commit,
    committed("shortconv_commit"),
    conv.of_commit,
    cover=ACCEPTED,
    moves=ACCEPTED,
    formula=lambda module, call: of_accepted(module, call, w=call.axes["q"] + 1),
    once=("store S",),
    special=[nothing_accepted(committed("shortconv_commit"), *ACCEPTED)],
)
SPREAD = replace(
    SHORT_COMMIT,
    name="shortconv_commit, every row",
    draw=every_row(committed("shortconv_commit")),
    special=[],
    cover=[],
    moves=[],
    far=[(Commits(b=3, layers=3, c=5, t=3, state="bf16", io="bf16", spare=2), letter) for letter in "isdmt"],
)
SUBJECTS = [WINDOW, STEP, SCAN, SNAPSHOTS, TREE, SHORT_TREE, PACKED, SHORT_PACKED, COMMIT, SHORT_COMMIT, SPREAD]
