"""vLLM with a fault: its own Python is patched, then its adapter runs. For the engine's environment, without ours.

python planted_vllm.py ADAPTER FAULT
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

FAULTS: dict[str, Callable[[], None]] = {}


def fault(plant: Callable[[], None]) -> Callable[[], None]:
    FAULTS[plant.__name__] = plant
    return plant


def before_a_mixer(change: Callable[[Any, Any], None]) -> None:
    """`change(mixer, metadata)` before every run of a Mamba-2 layer."""
    mixers, context = (
        import_module(f"vllm.{name}") for name in ("model_executor.layers.mamba.mamba_mixer2", "forward_context")
    )
    right = mixers.MambaMixer2.conv_ssm_forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        every = context.get_forward_context().attn_metadata
        if every is not None:
            change(self, every[self.prefix])
        return right(self, *given, **named)

    mixers.MambaMixer2.conv_ssm_forward = forward


@fault
def a_decay_that_was_dropped() -> None:
    """Mamba-2 layers without their decay."""
    before_a_mixer(lambda mixer, metadata: mixer.A.data.fill_(-1e-13))


@fault
def the_state_of_the_request_before() -> None:
    """A prompt begins from what is in its slot."""

    def change(mixer: Any, metadata: Any) -> None:
        if metadata.has_initial_states_p is not None:
            metadata.has_initial_states_p.fill_(True)
            metadata.prep_initial_states = True

    before_a_mixer(change)


@fault
def chunks_begin_from_nothing() -> None:
    """A later chunk of a prompt reads neither the state nor the window of the one before."""

    def change(mixer: Any, metadata: Any) -> None:
        if metadata.has_initial_states_p is not None:
            metadata.has_initial_states_p.fill_(False)

    before_a_mixer(change)


def around(module: str, name: str, change: Callable[[Any], Any]) -> None:
    """Replace a function, or a method (`Class.method`), by what `change` makes of it."""
    home: Any = import_module(f"vllm.{module}")
    *classes, last = name.split(".")
    for one in classes:
        home = getattr(home, one)
    setattr(home, last, change(getattr(home, last)))


@fault
def every_draft_is_accepted() -> None:
    """Drafts are not compared with the target's tokens."""

    def change(right: Any) -> Any:
        def accepted(drafts: Any, *given: Any, **named: Any) -> Any:
            logits = next(one for one in given if getattr(one, "ndim", 0) == 2 and one.shape[0] == len(drafts))
            logits.scatter_(1, drafts.long()[:, None], 1e9)
            return right(drafts, *given, **named)

        return accepted

    around("v1.sample.rejection_sampler", "rejection_sample", change)


@fault
def rejected_drafts_keep_their_places() -> None:
    """The number of accepted drafts is ignored where tokens are placed: a step begins behind all drafts of the last."""
    ends: dict[str, int] = {}

    def change(right: Any) -> Any:
        def update(self: Any, scheduled: Any) -> Any:
            found = right(self, scheduled)
            for name, count in scheduled.num_scheduled_tokens.items():
                at = self.input_batch.req_id_to_index[name]
                counts = self.input_batch.num_computed_tokens_cpu
                if name in scheduled.scheduled_cached_reqs.req_ids:
                    counts[at] = max(int(counts[at]), ends.get(name, 0))
                ends[name] = int(counts[at]) + count
            return found

        return update

    around("v1.worker.gpu_model_runner", "GPUModelRunner._update_states", change)


@fault
def the_bonus_token_from_column_0() -> None:
    """The token behind accepted drafts is taken from the logits of the window's first column."""

    def change(right: Any) -> Any:
        def forward(self: Any, metadata: Any, *given: Any, **named: Any) -> Any:
            drafts = metadata.num_draft_tokens
            back = metadata.bonus_logits_indices.new_tensor(drafts)
            metadata.bonus_logits_indices = metadata.bonus_logits_indices - back
            return right(self, metadata, *given, **named)

        return forward

    around("v1.sample.rejection_sampler", "RejectionSampler.forward", change)


@fault
def an_end_in_the_bonus_token_is_not_seen() -> None:
    """Of the tokens of a step the one behind accepted drafts is not looked at for an end."""

    def change(right: Any) -> Any:
        def update(self: Any, request: Any, tokens: list[int], *given: Any, **named: Any) -> Any:
            asked = request.sampling_params
            ends = asked.stop_token_ids or []
            bonus = len(tokens) > 1 and not set(tokens[:-1]) & set(ends)
            asked.stop_token_ids = [] if bonus else ends
            try:
                return right(self, request, tokens, *given, **named)
            finally:
                asked.stop_token_ids = ends

        return update

    around("v1.core.sched.scheduler", "Scheduler._update_request_with_output", change)


@fault
def a_hit_of_another_prompt() -> None:
    """Blocks of the prefix cache are known by their place alone."""

    def change(right: Any) -> Any:
        return lambda function, parent, tokens, *more: right(function, parent, (0,) * len(tokens), *more)

    around("v1.core.kv_cache_utils", "hash_block_tokens", change)


@fault
def blocks_of_another_request() -> None:
    """The second request of a batch reads and writes the blocks of the first."""

    def change(right: Any) -> Any:
        def add(self: Any, blocks: list[int], row: int) -> None:
            right(self, blocks, row)
            if row == 1:
                self.block_table.np[1, : len(blocks)] = self.block_table.np[0, : len(blocks)]

        return add

    around("v1.worker.block_table", "BlockTable.add_row", change)


@fault
def one_seed_for_all() -> None:
    """Requests sample with one seed, whatever they ask for."""

    def change(right: Any) -> Any:
        def add(self: Any, request: Any) -> Any:
            if request.generator is not None:
                request.generator.manual_seed(0)
            return right(self, request)

        return add

    around("v1.worker.gpu_input_batch", "InputBatch.add_request", change)


@fault
def a_preempted_request_keeps_its_count() -> None:
    """A request that lost its blocks goes on as if they still held what it had read."""

    def change(right: Any) -> Any:
        def preempt(self: Any, request: Any, *given: Any, **named: Any) -> None:
            read = request.num_computed_tokens
            right(self, request, *given, **named)
            request.num_computed_tokens = read

        return preempt

    around("v1.core.sched.scheduler", "Scheduler._preempt_request", change)


if __name__ == "__main__":
    adapter, name = Path(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, str(adapter.parent))
    vllm, lines = (import_module(module) for module in (adapter.stem, "lines"))
    FAULTS[name]()
    lines.serve(vllm.EngineAdapter())
