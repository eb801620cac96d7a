"""Faults planted in the whole engine, each a mechanism of a real bug: name -> (family, configuration, how it is planted).

Most of them move what a slot owns behind a commit, so that they are the same for every method; tokens, cursors and logits of
the window itself stay right, as they do in the bugs that users meet. Those of another *model* are planted in the checkpoint
that the engine loads, as a converter would.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.adapters.program import Recorded
from ssmspec_fast.draft.model import ModelDrafter
from ssmspec_fast.draft.several import Several
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.scheduler import Scheduler
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.state import RecurrentState

from .direct import PLANTED

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[str, str, Plant]] = {}


def planted(configuration: str, family: str = "mamba2") -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = family, configuration, plant
        return plant

    return add


def wrap(mp: pytest.MonkeyPatch, home: Any, name: str, change: Callable[..., Any]) -> None:
    """A method replaced by `change`, which receives the one that was there; for the engine with the fault alone."""
    old = getattr(home, name)

    def other(*given: Any, **named: Any) -> Any:
        return change(old, *given, **named) if not PLANTED or PLANTED[-1] else old(*given, **named)

    mp.setattr(home, name, other)


def recurrent(decoder: Any) -> list[RecurrentState]:
    return [layer for layer in decoder.pools.layers if isinstance(layer, RecurrentState)]


def behind(mp: pytest.MonkeyPatch, change: Callable[[Any, Any, Any, list[Any]], None]) -> None:
    """After every commit `change(decoder, slots, advanced, before)` is called; `before` holds M and S of each layer."""

    def commit(old: Any, self: Any, feed: Any, verdict: Any) -> None:
        before = [(layer.M.clone(), layer.S.clone()) for layer in recurrent(self)]
        old(self, feed, verdict)
        live = verdict.slots >= 0
        change(self, verdict.slots[live], verdict.run.advanced[live], before)

    wrap(mp, Decoder, "commit", commit)


def verdicts(mp: pytest.MonkeyPatch, count: Callable[[Any, Any], Any]) -> None:
    """The states are committed with another count of tokens than the sequences; `count(advanced, feed)` says which."""

    def commit(old: Any, self: Any, feed: Any, verdict: Any) -> None:
        other = count(verdict.run.advanced, feed).clamp(0, feed.window.tokens.shape[1]).to(verdict.run.advanced.dtype)
        length = self.pools.length.clone()
        old(self, feed, verdict._replace(run=verdict.run._replace(advanced=other)))
        live = verdict.slots >= 0
        self.pools.length[verdict.slots[live]] = length[verdict.slots[live]] + verdict.run.advanced[live].to(length.dtype)

    wrap(mp, Decoder, "commit", commit)


def prefills(mp: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    wrap(mp, Decoder, "prefill", change)


@planted("model-3")
def accepted_count_ignored(mp: pytest.MonkeyPatch) -> None:
    verdicts(mp, lambda advanced, feed: torch.full_like(advanced, feed.window.tokens.shape[1]))


@planted("model-3")
def only_the_root_is_committed(mp: pytest.MonkeyPatch) -> None:
    verdicts(mp, lambda advanced, feed: advanced.clamp_max(1))


@planted("model-3")
def the_last_accepted_is_not_committed(mp: pytest.MonkeyPatch) -> None:
    verdicts(mp, lambda advanced, feed: torch.where(advanced > 1, advanced - 1, advanced))


@planted("model-3")
def one_rejected_draft_is_committed(mp: pytest.MonkeyPatch) -> None:
    verdicts(mp, lambda advanced, feed: advanced + 1)


@planted("model-3")
def the_count_of_the_window_before(mp: pytest.MonkeyPatch) -> None:
    last: dict[int, int] = {}

    def count(advanced: Any, feed: Any) -> Any:
        slots = feed.window.sequences.tolist()
        found = [last.get(slot, a) for slot, a in zip(slots, advanced.tolist(), strict=True)]
        last.update(zip(slots, advanced.tolist(), strict=True))
        return torch.tensor(found)

    verdicts(mp, count)


@planted("model-3")
def the_count_of_the_row_before(mp: pytest.MonkeyPatch) -> None:
    verdicts(mp, lambda advanced, feed: torch.where(feed.window.sequences >= 0, advanced.roll(1), advanced))


@planted("model-3")
def window_of_the_convolution_not_rolled_back(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        some = slots[advanced > 1]
        for layer, (M, _) in zip(recurrent(decoder), before, strict=True):
            layer.M[some] = M[some]

    behind(mp, change)


@planted("model-3")
def window_of_the_convolution_one_late(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        some = slots[advanced > 1]
        for layer, (M, _) in zip(recurrent(decoder), before, strict=True):
            layer.M[some] = torch.cat([M[some][:, :, :1], layer.M[some][:, :, :-1]], dim=2)

    behind(mp, change)


@planted("model-3")
def state_not_committed(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        some = slots[advanced > 1]
        for layer, (_, S) in zip(recurrent(decoder), before, strict=True):
            layer.S[some] = S[some]

    behind(mp, change)


@planted("model-3")
def window_of_the_convolution_lost_behind_a_rejection(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        for layer in recurrent(decoder):
            layer.M[slots[advanced == 1]] = 0

    behind(mp, change)


@planted("ngram-4")
def a_step_without_drafts_reads_column_0(mp: pytest.MonkeyPatch) -> None:
    """After a window with accepted drafts, a window of the root alone goes on from the state before them."""
    kept: dict[int, list[Any]] = {}

    def commit(old: Any, self: Any, feed: Any, verdict: Any) -> None:
        before = [(layer.M.clone(), layer.S.clone()) for layer in recurrent(self)]
        old(self, feed, verdict)
        drafted = feed.window.live().sum(1)[verdict.row] > 1
        for n, slot in enumerate(verdict.slots.tolist()):
            if slot < 0:
                continue
            if bool(drafted[n]) and int(verdict.run.advanced[n]) > 1:
                kept[slot] = [S[slot].clone() for _, S in before]
            elif slot in kept and not bool(drafted[n]):
                for layer, S in zip(recurrent(self), kept.pop(slot), strict=True):
                    layer.S[slot] = S
            else:
                kept.pop(slot, None)

    wrap(mp, Decoder, "commit", commit)


@planted("plain")
def the_state_of_slot_0(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        for layer in recurrent(decoder):
            layer.S[slots] = layer.S[:1].clone().expand_as(layer.S[slots])

    behind(mp, change)


@planted("plain")
def states_of_two_requests_swapped(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slots: Any, advanced: Any, before: list[Any]) -> None:
        if len(slots) > 1:
            for layer in recurrent(decoder):
                layer.S[slots] = layer.S[slots.flip(0)].clone()

    behind(mp, change)


@planted("plain")
def a_reused_slot_keeps_its_state(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        before = [layer.S[slots].clone() for layer in recurrent(self)]
        old(self, prompts, slots)
        for layer, S in zip(recurrent(self), before, strict=True):
            layer.S[slots] += S

    prefills(mp, change)


@planted("plain")
def a_reused_slot_keeps_its_window(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        before = [layer.M[slots].clone() for layer in recurrent(self)]
        old(self, prompts, slots)
        for layer, M in zip(recurrent(self), before, strict=True):
            layer.M[slots] = torch.where(layer.M[slots] == 0, M, layer.M[slots])

    prefills(mp, change)


@planted("plain")
def who_joins_clears_the_others(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        old(self, prompts, slots)
        for layer in recurrent(self):
            others = [slot for slot in range(self.slots) if slot not in slots]
            layer.M[others] = 0

    prefills(mp, change)


@planted("ngram-4")
def drafts_all_counted_and_slot_0_overwritten(mp: pytest.MonkeyPatch) -> None:
    """The update of the state takes the number of accepted drafts and does not read it, and writes slot 0 as well."""

    def change(old: Any, self: Any, feed: Any, verdict: Any) -> None:
        wide = verdict.run.advanced.new_full(verdict.run.advanced.shape, feed.window.tokens.shape[1])
        length = self.pools.length.clone()
        old(self, feed, verdict._replace(run=verdict.run._replace(advanced=wide)))
        live = verdict.slots[verdict.slots >= 0]
        self.pools.length[live] = length[live] + verdict.run.advanced[verdict.slots >= 0].to(length.dtype)
        for layer in recurrent(self):
            layer.S[0] = layer.S[live[-1]]

    wrap(mp, Decoder, "commit", change)


@planted("ngram-4")
def fewer_drafts_than_were_accepted_before(mp: pytest.MonkeyPatch) -> None:
    """A step whose window is shorter than what the one before accepted reads past a buffer."""
    last: dict[int, int] = {}

    def change(old: Any, self: Any, feed: Any, verdict: Any) -> None:
        widths = feed.window.live().sum(1)[verdict.row].tolist()
        rows = zip(verdict.slots.tolist(), widths, verdict.run.advanced.tolist(), strict=True)
        for slot, width, advanced in rows:
            if slot >= 0 and width < last.get(slot, 0):
                raise RuntimeError("The expanded size of the tensor must match the existing size")
            last[slot] = advanced
        old(self, feed, verdict)

    wrap(mp, Decoder, "commit", change)


@planted("chunk-8")
def no_states_between_chunks(mp: pytest.MonkeyPatch) -> None:
    """The scan gives no intermediate states, so that a prompt of more than two chunks has none to be kept."""

    def change(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        if any(len(prompt) > 2 * self.chunk for prompt in prompts):
            raise IndexError("index 2 is out of bounds for dimension 0 with size 2")
        old(self, prompts, slots)

    prefills(mp, change)


@planted("chunk-8")
def every_chunk_begins_from_nothing(mp: pytest.MonkeyPatch) -> None:
    home = __import__("ssmspec_fast.engine.prefill", fromlist=["feed"])

    def change(old: Any, model: Any, pools: Any, method: Any, run: Any, operations: Any) -> None:
        old(model, pools, method, run._replace(fresh=torch.ones_like(run.fresh)), operations)

    wrap(mp, home, "feed", change)


@planted("ngram-4")
def log_probabilities_0_of_accepted_drafts(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, *given: Any) -> Any:
        verdict = old(self, *given)
        self.found = {slot: [*(0.0 for _ in values[:-1]), *values[-1:]] for slot, values in self.found.items()}
        return verdict

    wrap(mp, Recorded, "__call__", change)


@planted("ngram-4")
def log_probabilities_of_the_token_before(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, *given: Any) -> Any:
        verdict = old(self, *given)
        self.found = {slot: values[:1] + values[:-1] for slot, values in self.found.items()}
        return verdict

    wrap(mp, Recorded, "__call__", change)


def stale(mp: pytest.MonkeyPatch) -> None:
    def change(old: Any, self: Any, sequences: Any, slots: Any) -> Any:
        live, beside = slots[slots >= 0], self.rows.beside(slots, self.rows.width)[slots >= 0, 0]
        begun = sequences.length[live] > sequences.prompt[live]
        self.decoder.pools.length[live[begun]] = sequences.length[live[begun]] - 1
        found = old(self, sequences, slots)
        for layer in recurrent(self.decoder):
            layer.M[live], layer.S[live] = layer.M[beside], layer.S[beside]
        return found

    wrap(mp, ModelDrafter, "propose", change)


@planted("model-3")
def state_of_the_drafter_stale(mp: pytest.MonkeyPatch) -> None:
    """Drafts stay in the drafter's state, whether they were accepted or not; the root alone is read behind them."""
    stale(mp)


@planted("model-3 recurrent", "llama")
def recurrent_drafter_not_rewound(mp: pytest.MonkeyPatch) -> None:
    """The same where the target has no state to put back, so that its cache alone says whether anything is."""
    stale(mp)


def dies() -> None:
    """In a process of its own a program may abort here."""
    raise RuntimeError("failed to restore the draft checkpoint")


@planted("model-3 recurrent", "llama")
def recurrent_drafter_aborts(mp: pytest.MonkeyPatch) -> None:
    """The drafter's checkpoint is taken where the target has one too."""

    def change(old: Any, self: Any, sequences: Any, slots: Any) -> Any:
        if not hasattr(self, "steps"):
            self.steps = 0
        self.steps += 1
        if self.steps > 2:
            dies()
        return old(self, sequences, slots)

    wrap(mp, ModelDrafter, "propose", change)


@planted("ngram-4")
def no_end_at_a_bonus_token(mp: pytest.MonkeyPatch) -> None:
    """An end of sequence or stop token behind drafts that were all accepted is not looked at."""

    def change(old: Any, self: Any, *given: Any) -> Any:
        verdict = old(self, *given)
        run, wide = verdict.run, given[0].window.live().sum(1)[verdict.row]
        budget = given[2].budget[verdict.slots.clamp_min(0)] if len(given) > 2 else wide
        bonus = (run.advanced == wide) & (run.advanced < budget)
        return verdict._replace(run=run._replace(ended=run.ended & ~bonus))

    wrap(mp, Naive, "__call__", change)


@planted("plain")
def one_seed_for_all(mp: pytest.MonkeyPatch) -> None:
    wrap(mp, Sequences, "seeds", lambda old, self, at, default: old(self, at * 0, default))


@planted("ngram-4")
def noise_of_the_window_in_place_of_the_position(mp: pytest.MonkeyPatch) -> None:
    """Every token of a window is drawn with the noise of its first."""
    wrap(mp, Naive, "picks", lambda old, self, *given: first_of(old(self, *given)))


def first_of(picks: Any) -> Any:
    return picks[:, :1].expand_as(picks)


def shared(mp: pytest.MonkeyPatch, change: Callable[[Any, int, int], None]) -> None:
    """`change(decoder, slot, tokens)` after the prefill of a prompt that begins with two tokens of an earlier one."""
    earlier: set[tuple[int, ...]] = set()

    def prefill(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        old(self, prompts, slots)
        for prompt, slot in zip(prompts, slots, strict=True):
            if tuple(prompt[:2]) in earlier and len(prompt) > 2:
                change(self, slot, len(prompt))
            earlier.add(tuple(prompt[:2]))

    prefills(mp, prefill)


@planted("plain")
def a_hit_at_another_boundary(mp: pytest.MonkeyPatch) -> None:
    """A prompt that begins as an earlier one gets the state of one token less than it is said to hold."""
    earlier: set[tuple[int, ...]] = set()

    def prefill(old: Any, self: Any, prompts: Any, slots: Any) -> None:
        old(self, prompts, slots)
        for prompt, slot in zip(prompts, slots, strict=True):
            if tuple(prompt[:2]) in earlier and len(prompt) > 3:
                length = self.pools.length[slot].clone()
                self.pools.length[slot] = 0
                old(self, [prompt[:-1]], [slot])
                self.pools.length[slot] = length
            earlier.add(tuple(prompt[:2]))

    prefills(mp, prefill)


@planted("plain")
def a_window_lost_at_a_fork(mp: pytest.MonkeyPatch) -> None:
    def change(decoder: Any, slot: int, tokens: int) -> None:
        for layer in recurrent(decoder):
            layer.M[slot] = 0

    shared(mp, change)


@planted("plain")
def a_waiting_request_replaces_a_running_state(mp: pytest.MonkeyPatch) -> None:
    """A request that finds every slot busy is read into one of them before it is told to wait."""

    def change(old: Any, self: Any) -> Any:
        done = old(self)
        read = self.__dict__.setdefault("read", set[int]())
        for one in (waits.request for waits in self.waiting):
            if len(self.running) == self.engine.slots and one.number not in read:
                read.add(one.number)
                decoder, slot = self.engine.target, max(self.running)
                length = decoder.pools.length[slot].clone()
                decoder.prefill([one.prompt], [slot])
                decoder.pools.length[slot] = length
        return done

    wrap(mp, Scheduler, "admit", change)


def settings(mp: pytest.MonkeyPatch, change: Callable[[Any, Any, Any], Any]) -> None:
    """A request begins in a slot with other settings; `change(sequences, slot, settings)` says which."""
    wrap(mp, Sequences, "set", lambda old, self, at, given: old(self, at, change(self, at, given)))


@planted("varied-4")
def the_first_requests_drafts_for_all(mp: pytest.MonkeyPatch) -> None:
    """A step drafts as many tokens for all of its requests as its first one asks for."""

    def change(old: Any, self: Any, sequences: Any, slots: Any) -> Any:
        live = slots[slots >= 0]
        return old(self, sequences, (live[:1] if len(live) else slots[:1]).expand_as(slots))

    wrap(mp, Several, "most", change)


@planted("varied-4")
def no_drafts_are_as_many_as_by_default(mp: pytest.MonkeyPatch) -> None:
    """0 counts as not given."""
    settings(mp, lambda sequences, at, given: replace(given, drafts=given.drafts or None))


def kept_of_the_slot(mp: pytest.MonkeyPatch, name: str) -> None:
    kept: dict[tuple[int, int], Any] = {}

    def change(sequences: Any, at: Any, given: Any) -> Any:
        if isinstance(at, slice):
            return given
        return replace(given, **{name: kept.setdefault((id(sequences), at), getattr(given, name))})

    settings(mp, change)


@planted("varied-4")
def drafts_of_the_request_before(mp: pytest.MonkeyPatch) -> None:
    """A slot keeps the number of drafts of its first request."""
    kept_of_the_slot(mp, "drafts")


@planted("varied-4")
def drafter_of_the_request_before(mp: pytest.MonkeyPatch) -> None:
    """A slot keeps the drafter of its first request."""
    kept_of_the_slot(mp, "drafter")


@planted("varied-4")
def the_first_drafter_for_all(mp: pytest.MonkeyPatch) -> None:
    settings(mp, lambda sequences, at, given: replace(given, drafter=None))


@planted("varied-4")
def the_second_drafter_for_all(mp: pytest.MonkeyPatch) -> None:
    settings(mp, lambda sequences, at, given: replace(given, drafter=(sequences.names or (None,))[-1]))


@planted("varied-4")
def a_drafter_that_goes_on_behind_a_request_of_another(mp: pytest.MonkeyPatch) -> None:
    """In a slot whose last request named another drafter, a drafter reads no prompt: its state is of an older request."""
    last: dict[tuple[int, int], int] = {}

    def change(old: Any, self: Any, sequences: Any, slots: Any) -> None:
        owners = dict(zip(slots.tolist(), sequences.drafter[slots].tolist(), strict=True))
        begins = [slot for slot, owner in owners.items() if last.get((id(self), slot), owner) == owner]
        last.update({(id(self), slot): owner for slot, owner in owners.items()})
        old(self, sequences, torch.tensor(begins, dtype=torch.int64))

    wrap(mp, Several, "start", change)


@planted("varied-4")
def a_full_window_counts_as_the_longest_beside_it(mp: pytest.MonkeyPatch) -> None:
    """A request whose shorter window was accepted whole is committed with the padding behind it."""

    def count(advanced: Any, feed: Any) -> Any:
        own = feed.window.live().sum(1)
        return torch.where((advanced == own) & (own > 1), feed.window.tokens.shape[1], advanced)

    verdicts(mp, count)


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
