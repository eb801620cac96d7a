"""Faults planted in the whole engine, each a mechanism of a real bug: name -> (family, configuration, how it is planted).

Most of them move what a slot owns behind a commit, so that they are the same for every method; tokens, cursors and logits of
the window itself stay right, as they do in the bugs that users meet. Those of another *model* are planted in the checkpoint
that the engine loads, as a converter would.

A fault is what takes the place of a method, and is called with `kept`, which remembers what one engine's fault needs, with
the method that was there, and with what the method was given.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import pytest
import torch

from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.adapters.program import Recorded
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.several import Several
from ssmspec_fast.engine import prefill
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.scheduler import Scheduler
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.state import RecurrentState

from .direct import PLANTED

Plant = Callable[[pytest.MonkeyPatch], None]
Kept = dict[Any, Any]
FAULTS: dict[str, tuple[str, str, Plant]] = {}


def wrong(
    configuration: str, home: Any, name: str, family: str = "mamba2", form: Any = lambda fault: fault
) -> Callable[[Any], Any]:
    """Plants a function, in the form of a fault, in place of a method; for the engine with the fault alone."""

    def add(function: Any) -> Any:
        fault = form(function)

        def plant(mp: pytest.MonkeyPatch) -> None:
            old, kept = getattr(home, name), Kept()

            def other(*given: Any, **named: Any) -> Any:
                return fault(kept, old, *given, **named) if not PLANTED or PLANTED[-1] else old(*given, **named)

            mp.setattr(home, name, other)

        FAULTS[function.__name__] = family, configuration, plant
        return function

    return add


def recurrent(decoder: Any) -> list[RecurrentState]:
    return [layer for layer in decoder.pools.layers if isinstance(layer, RecurrentState)]


def states(decoder: Any) -> list[RecurrentState]:
    return [replace(layer, M=layer.M.clone(), S=layer.S.clone()) for layer in recurrent(decoder)]


def committed(verdict: Any) -> tuple[Any, Any]:
    """The slots that take part in a commit, and how far each advances."""
    live = verdict.slots >= 0
    return verdict.slots[live], verdict.run.advanced[live]


def behind(change: Any) -> Any:
    """After every commit `change(layer, before, slots, advanced)` of each recurrent layer; `before` is what it was."""

    @wraps(change)
    def commit(kept: Kept, old: Any, self: Any, feed: Any, verdict: Any) -> None:
        before = states(self)
        old(self, feed, verdict)
        for layer, was in zip(recurrent(self), before, strict=True):
            change(layer, was, *committed(verdict))

    return commit


def counted(count: Any) -> Any:
    """The states are committed with another count of tokens than the sequences; `count(kept, advanced, feed)` says which."""

    @wraps(count)
    def commit(kept: Kept, old: Any, self: Any, feed: Any, verdict: Any) -> None:
        advanced, length = verdict.run.advanced, self.pools.length.clone()
        other = count(kept, advanced, feed).clamp(0, feed.window.tokens.shape[1]).to(advanced.dtype)
        old(self, feed, verdict._replace(run=verdict.run._replace(advanced=other)))
        slots, right = committed(verdict)
        self.pools.length[slots] = length[slots] + right.to(length.dtype)

    return commit


def begun(change: Any) -> Any:
    """After every prefill `change(layer, before, slots, others)`; `others` are the slots that took no part."""

    @wraps(change)
    def fed(kept: Kept, old: Any, self: Any, prompts: Any, slots: Any) -> None:
        before = states(self)
        old(self, prompts, slots)
        for layer, was in zip(recurrent(self), before, strict=True):
            change(layer, was, slots, [slot for slot in range(self.slots) if slot not in slots])

    return fed


def shared(change: Any) -> Any:
    """After the prefill of a prompt that begins with two tokens of an earlier one: `change(decoder, old, prompt, slot)`."""

    @wraps(change)
    def fed(kept: Kept, old: Any, self: Any, prompts: Any, slots: Any) -> None:
        old(self, prompts, slots)
        for prompt, slot in zip(prompts, slots, strict=True):
            if tuple(prompt[:2]) in kept and len(prompt) > 2:
                change(self, old, prompt, slot)
            kept[tuple(prompt[:2])] = True

    return fed


def settled(change: Any) -> Any:
    """A request begins in a slot with other settings; `change(kept, sequences, slot, settings)` says which."""

    @wraps(change)
    def begin(kept: Kept, old: Any, self: Any, at: Any, given: Any) -> Any:
        return old(self, at, change(kept, self, at, given))

    return begin


commits = partial(wrong, home=Decoder, name="commit")
prefills = partial(wrong, home=Decoder, name="prefill")
drafted = partial(commits, "model-3")
requests = partial(wrong, "varied-4", Sequences, "set", form=settled)


@drafted(form=counted)
def accepted_count_ignored(kept: Kept, advanced: Any, feed: Any) -> Any:
    return torch.full_like(advanced, feed.window.tokens.shape[1])


@drafted(form=counted)
def only_the_root_is_committed(kept: Kept, advanced: Any, feed: Any) -> Any:
    return advanced.clamp_max(1)


@drafted(form=counted)
def the_last_accepted_is_not_committed(kept: Kept, advanced: Any, feed: Any) -> Any:
    return torch.where(advanced > 1, advanced - 1, advanced)


@drafted(form=counted)
def one_rejected_draft_is_committed(kept: Kept, advanced: Any, feed: Any) -> Any:
    return advanced + 1


@drafted(form=counted)
def the_count_of_the_window_before(kept: Kept, advanced: Any, feed: Any) -> Any:
    now = list(zip(feed.window.sequences.tolist(), advanced.tolist(), strict=True))
    found = [kept.get(slot, count) for slot, count in now]
    kept.update(now)
    return torch.tensor(found)


@drafted(form=counted)
def the_count_of_the_row_before(kept: Kept, advanced: Any, feed: Any) -> Any:
    return torch.where(feed.window.sequences >= 0, advanced.roll(1), advanced)


@commits("varied-4", form=counted)
def a_full_window_counts_as_the_longest_beside_it(kept: Kept, advanced: Any, feed: Any) -> Any:
    """A request whose shorter window was accepted whole is committed with the padding behind it."""
    own = feed.window.live().sum(1)
    return torch.where((advanced == own) & (own > 1), feed.window.tokens.shape[1], advanced)


@drafted(form=behind)
def window_of_the_convolution_not_rolled_back(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    some = slots[advanced > 1]
    layer.M[some] = before.M[some]


@drafted(form=behind)
def window_of_the_convolution_one_late(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    some = slots[advanced > 1]
    layer.M[some] = torch.cat([before.M[some][:, :, :1], layer.M[some][:, :, :-1]], dim=2)


@drafted(form=behind)
def state_not_committed(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    some = slots[advanced > 1]
    layer.S[some] = before.S[some]


@drafted(form=behind)
def window_of_the_convolution_lost_behind_a_rejection(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    layer.M[slots[advanced == 1]] = 0


@commits("plain", form=behind)
def the_state_of_slot_0(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    layer.S[slots] = layer.S[:1].clone().expand_as(layer.S[slots])


@commits("plain", form=behind)
def states_of_two_requests_swapped(layer: Any, before: Any, slots: Any, advanced: Any) -> None:
    layer.S[slots] = layer.S[slots.flip(0)].clone()


@commits("ngram-4")
def a_step_without_drafts_reads_column_0(kept: Kept, old: Any, self: Any, feed: Any, verdict: Any) -> None:
    """After a window with accepted drafts, a window of the root alone goes on from the state before them."""
    before = states(self)
    old(self, feed, verdict)
    has_drafts = feed.window.live().sum(1)[verdict.row] > 1
    for n, slot in enumerate(verdict.slots.tolist()):
        if slot < 0:
            continue
        if bool(has_drafts[n]) and int(verdict.run.advanced[n]) > 1:
            kept[slot] = [layer.S[slot].clone() for layer in before]
        elif slot in kept and not bool(has_drafts[n]):
            for layer, S in zip(recurrent(self), kept.pop(slot), strict=True):
                layer.S[slot] = S
        else:
            kept.pop(slot, None)


@commits("ngram-4")
def drafts_all_counted_and_slot_0_overwritten(kept: Kept, old: Any, self: Any, feed: Any, verdict: Any) -> None:
    """The update of the state takes the number of accepted drafts and does not read it, and writes slot 0 as well."""
    counted(accepted_count_ignored)(kept, old, self, feed, verdict)
    for layer in recurrent(self):
        layer.S[0] = layer.S[committed(verdict)[0][-1]]


@commits("ngram-4")
def fewer_drafts_than_were_accepted_before(kept: Kept, old: Any, self: Any, feed: Any, verdict: Any) -> None:
    """A step whose window is shorter than what the one before accepted reads past a buffer."""
    widths = feed.window.live().sum(1)[verdict.row].tolist()
    for slot, width, advanced in zip(verdict.slots.tolist(), widths, verdict.run.advanced.tolist(), strict=True):
        if slot >= 0 and width < kept.get(slot, 0):
            raise RuntimeError("The expanded size of the tensor must match the existing size")
        kept[slot] = advanced
    old(self, feed, verdict)


@prefills("plain", form=begun)
def a_reused_slot_keeps_its_state(layer: Any, before: Any, slots: Any, others: Any) -> None:
    layer.S[slots] += before.S[slots]


@prefills("plain", form=begun)
def a_reused_slot_keeps_its_window(layer: Any, before: Any, slots: Any, others: Any) -> None:
    layer.M[slots] = torch.where(layer.M[slots] == 0, before.M[slots], layer.M[slots])


@prefills("plain", form=begun)
def who_joins_clears_the_others(layer: Any, before: Any, slots: Any, others: Any) -> None:
    layer.M[others] = 0


@prefills("plain", form=shared)
def a_hit_at_another_boundary(decoder: Any, old: Any, prompt: Any, slot: int) -> None:
    """A prompt that begins as an earlier one gets the state of one token less than it is said to hold."""
    if len(prompt) > 3:
        length = decoder.pools.length[slot].clone()
        decoder.pools.length[slot] = 0
        old(decoder, [prompt[:-1]], [slot])
        decoder.pools.length[slot] = length


@prefills("plain", form=shared)
def a_window_lost_at_a_fork(decoder: Any, old: Any, prompt: Any, slot: int) -> None:
    for layer in recurrent(decoder):
        layer.M[slot] = 0


@prefills("chunk-8")
def no_states_between_chunks(kept: Kept, old: Any, self: Any, prompts: Any, slots: Any) -> None:
    """The scan gives no intermediate states, so that a prompt of more than two chunks has none to be kept."""
    if any(len(prompt) > 2 * self.chunk for prompt in prompts):
        raise IndexError("index 2 is out of bounds for dimension 0 with size 2")
    old(self, prompts, slots)


@wrong("chunk-8", prefill, "feed")
def every_chunk_begins_from_nothing(kept: Kept, old: Any, model: Any, pools: Any, method: Any, run: Any, *rest: Any) -> None:
    old(model, pools, method, run._replace(fresh=torch.ones_like(run.fresh)), *rest)


def told(change: Any) -> Any:
    """`change(values)` of the log-probabilities of each slot that a window emits."""

    @wraps(change)
    def called(kept: Kept, old: Any, self: Any, *given: Any) -> Any:
        verdict = old(self, *given)
        self.found = {slot: change(values) for slot, values in self.found.items()}
        return verdict

    return called


@wrong("ngram-4", Recorded, "__call__", form=told)
def log_probabilities_0_of_accepted_drafts(values: list[float]) -> list[float]:
    return [*(0.0 for _ in values[:-1]), *values[-1:]]


@wrong("ngram-4", Recorded, "__call__", form=told)
def log_probabilities_of_the_token_before(values: list[float]) -> list[float]:
    return values[:1] + values[:-1]


@wrong("model-3 recurrent", ModelDrafter, "propose", "llama")
def recurrent_drafter_not_rewound(kept: Kept, old: Any, self: Any, sequences: Any, slots: Any) -> Any:
    """Drafts stay in the drafter's state, accepted or not; the root alone is read behind them. The target has no state to put
    back, so that its cache alone says whether anything is."""
    live, beside = slots[slots >= 0], self.rows.beside(slots, self.rows.width)[slots >= 0, 0]
    goes_on = sequences.length[live] > sequences.prompt[live]
    self.decoder.pools.length[live[goes_on]] = sequences.length[live[goes_on]] - 1
    found = old(self, sequences, slots)
    for layer in recurrent(self.decoder):
        layer.M[live], layer.S[live] = layer.M[beside], layer.S[beside]
    return found


@wrong("model-3", ModelDrafter, "propose")
def state_of_the_drafter_stale(*given: Any) -> Any:
    """The same of a target that has a state."""
    return recurrent_drafter_not_rewound(*given)


def dies() -> None:
    """In a process of its own a program may abort here."""
    raise RuntimeError("failed to restore the draft checkpoint")


@wrong("model-3 recurrent", ModelDrafter, "propose", "llama")
def recurrent_drafter_aborts(kept: Kept, old: Any, self: Any, *given: Any) -> Any:
    """The drafter's checkpoint is taken where the target has one too."""
    steps = kept.setdefault(id(self), [self])
    steps.append(1)
    if len(steps) > 3:
        dies()
    return old(self, *given)


@wrong("ngram-4", Naive, "__call__")
def no_end_at_a_bonus_token(kept: Kept, old: Any, self: Any, *given: Any) -> Any:
    """An end of sequence or stop token behind drafts that were all accepted is not looked at."""
    verdict = old(self, *given)
    run, wide = verdict.run, given[0].window.live().sum(1)[verdict.row]
    budget = given[2].budget[verdict.slots.clamp_min(0)] if len(given) > 2 else wide
    bonus = (run.advanced == wide) & (run.advanced < budget)
    return verdict._replace(run=run._replace(ended=run.ended & ~bonus))


@wrong("plain", Sequences, "seeds")
def one_seed_for_all(kept: Kept, old: Any, self: Any, at: Any, default: Any) -> Any:
    return old(self, at * 0, default)


@wrong("ngram-4", Naive, "picks")
def noise_of_the_window_in_place_of_the_position(kept: Kept, old: Any, *given: Any) -> Any:
    """Every token of a window is drawn with the noise of its first."""
    picks = old(*given)
    return picks[:, :1].expand_as(picks)


@wrong("plain", Scheduler, "admit")
def a_waiting_request_replaces_a_running_state(kept: Kept, old: Any, self: Any) -> Any:
    """A request that finds every slot busy is read into one of them before it is told to wait."""
    done = old(self)
    for one in (waits.request for waits in self.waiting):
        if len(self.running) == self.engine.slots and (id(self), one.number) not in kept:
            kept[id(self), one.number] = self
            decoder, slot = self.engine.target, max(self.running)
            length = decoder.pools.length[slot].clone()
            decoder.prefill([one.prompt], [slot])
            decoder.pools.length[slot] = length
    return done


@wrong("varied-4", Several, "most")
def the_first_requests_drafts_for_all(kept: Kept, old: Any, self: Any, sequences: Any, slots: Any) -> Any:
    """A step drafts as many tokens for all of its requests as its first one asks for."""
    live = slots[slots >= 0]
    return old(self, sequences, (live[:1] if len(live) else slots[:1]).expand_as(slots))


@requests()
def no_drafts_are_as_many_as_by_default(kept: Kept, sequences: Any, at: Any, given: Any) -> Any:
    """0 counts as not given."""
    return replace(given, drafts=given.drafts or None)


@requests()
def drafts_of_the_request_before(kept: Kept, sequences: Any, at: Any, given: Any) -> Any:
    """A slot keeps the number of drafts of its first request."""
    return given if isinstance(at, slice) else replace(given, drafts=kept.setdefault((id(sequences), at), given.drafts))


@requests()
def drafter_of_the_request_before(kept: Kept, sequences: Any, at: Any, given: Any) -> Any:
    """A slot keeps the drafter of its first request."""
    return given if isinstance(at, slice) else replace(given, drafter=kept.setdefault((id(sequences), at), given.drafter))


@requests()
def the_first_drafter_for_all(kept: Kept, sequences: Any, at: Any, given: Any) -> Any:
    return replace(given, drafter=None)


@requests()
def the_second_drafter_for_all(kept: Kept, sequences: Any, at: Any, given: Any) -> Any:
    return replace(given, drafter=(sequences.names or (None,))[-1])


@wrong("varied-4", Several, "start")
def a_drafter_that_goes_on_behind_a_request_of_another(kept: Kept, old: Any, self: Any, sequences: Any, slots: Any) -> None:
    """In a slot whose last request named another drafter, a drafter reads no prompt: its state is of an older request."""
    owners = {(id(self), slot): owner for slot, owner in zip(slots.tolist(), sequences.drafter[slots].tolist(), strict=True)}
    begins = [at[1] for at, owner in owners.items() if kept.get(at, owner) == owner]
    kept.update(owners)
    old(self, sequences, torch.tensor(begins, dtype=torch.int64))


Convert = Callable[[dict[str, Any], dict[str, Any]], None]
CONVERTED: dict[str, tuple[str, Convert]] = {}
"""Of *same model?*: name -> (family, what a converter does to config and weights)."""


def converted(family: str) -> Callable[[Convert], Convert]:
    def add(change: Convert) -> Convert:
        CONVERTED[change.__name__] = family, change
        return change

    return add


@converted("qwen3_5")
def norms_rounded_to_bf16(config: dict[str, Any], weights: dict[str, Any]) -> None:
    """1 + w in bf16, where the weights are w."""
    for name in weights:
        if name.endswith(("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")):
            weights[name] = (1 + weights[name]).bfloat16().float() - 1


@converted("bamba")
def rotary_positions_of_the_whole_head(config: dict[str, Any], weights: dict[str, Any]) -> None:
    """The converter does not write that half of a head is turned."""
    config["partial_rotary_factor"] = config["rope_parameters"]["partial_rotary_factor"] = 1.0


@converted("mamba2")
def a_decay_that_was_dropped(config: dict[str, Any], weights: dict[str, Any]) -> None:
    for name in weights:
        if name.endswith("A_log"):
            weights[name] = weights[name] * 0 - 30


@converted("kimi_linear")
def one_decay_for_a_head(config: dict[str, Any], weights: dict[str, Any]) -> None:
    """A converter to kernels with a decay per head: the mean over its key channels."""
    heads = config["linear_num_heads"]
    for name in weights:
        if name.endswith(("f_b_proj.weight", "dt_bias")):
            rows = weights[name].view(heads, config["linear_head_dim"], -1)
            weights[name] = rows.mean(1, keepdim=True).expand_as(rows).reshape(weights[name].shape).contiguous()


@converted("kimi_linear")
def scores_scaled_without_the_shared_key(config: dict[str, Any], weights: dict[str, Any]) -> None:
    """A head's own channels in place of all: the queries of latent attention are that much larger."""
    own, shared = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    for name in weights:
        if "kv_a_layernorm" in name:
            queries = name.replace("kv_a_layernorm", "q_proj")
            weights[queries] = weights[queries] * ((own + shared) / own) ** 0.5
