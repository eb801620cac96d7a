"""vLLM as an engine, in one process: `LLM.generate` over token ids, drafts by n-grams or a model, prefix caching, chunks."""

import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_DO_NOT_TRACK": "1"}

import gc
import json
from pathlib import Path
from typing import Any

from lines import Refuse, ended, serve
from vllm import LLM, SamplingParams, TokensPrompt, __version__

LENGTH, BLOCK = 256, 32
"""Most tokens of a request; tokens of a block of keys and values in the cache, where 128 would leave short prompts uncached.
The blocks of a recurrent model are its chunks."""
ATTENTION = ("llama", "mistral")
NULL = 1
"""Blocks that vLLM keeps for itself."""
COUNTED = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "num_preemptions")


class EngineAdapter:
    llm: Any = None

    def start(self, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        self.llm = None
        gc.collect()
        named: dict[str, Any] = {}
        if options.get("speculation") == "ngram":
            lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
            named["speculative_config"] = {"method": "ngram", "num_speculative_tokens": options["drafts"], **lookup}
        elif options.get("speculation"):
            named["speculative_config"] = {
                "method": "draft_model", "model": options["drafter"], "num_speculative_tokens": options["drafts"],
            }  # fmt: skip
        if options.get("chunk"):
            named |= {"enable_chunked_prefill": True, "max_num_batched_tokens": max(options["chunk"], options["slots"] + 1)}
        room = options.get("tokens")
        kind = json.loads((Path(folder) / "config.json").read_text())["model_type"]
        if room and kind not in ATTENTION:
            raise Refuse("a recurrent request takes one block, however many tokens it has, and is never preempted")
        if room and room % BLOCK:
            raise Refuse(f"keys and values lie in blocks of {BLOCK} tokens, and {room} are no multiple")
        blocks = (options.get("cache") or room) and kind in ATTENTION
        if blocks:
            named |= {"block_size": BLOCK}
        if room:
            named |= {"num_gpu_blocks_override": room // BLOCK + NULL}
        try:
            self.llm = LLM(
                folder, skip_tokenizer_init=True, dtype=options["dtype"], max_model_len=room or LENGTH, seed=0,
                enforce_eager=not options.get("graphs"), max_num_seqs=options["slots"], disable_log_stats=False,
                enable_prefix_caching=bool(options.get("cache")),
                **named,
            )  # fmt: skip
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise Refuse(f"{type(error).__name__}: {error}") from error
        self.before = self.counts()
        return {
            "name": "vllm",
            "version": __version__,
            "dtype": options["dtype"],
            "can": ["batch", "stop", "logprobs", "sample", "graphs"] + ["preempt"] * (kind in ATTENTION),
            "block": BLOCK if blocks else None,
        }

    def dropped(self) -> None:
        """After an error, take out the requests that it has left in the engine, or the next call continues them."""
        engine = self.llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)

    def counts(self) -> tuple[int, ...]:
        """Drafted and accepted tokens and preemptions so far."""
        found = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        return tuple(int(found.get(f"vllm:{name}", 0)) for name in COUNTED)

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        prompts = [TokensPrompt(prompt_token_ids=request["ids"]) for request in requests]
        try:
            outs = self.llm.generate(prompts, [self.params(request) for request in requests], use_tqdm=False)
        except Exception:
            self.dropped()
            raise
        now = self.counts()
        told = dict(
            zip(("drafted", "accepted", "preempted"), (n - b for n, b in zip(now, self.before, strict=True)), strict=True)
        )
        self.before = now
        answers = []
        for n, (out, request) in enumerate(zip(outs, requests, strict=True)):
            ids = list(out.outputs[0].token_ids)
            given = out.outputs[0].logprobs or []
            probs = [
                float(found[token].logprob) if token in found else None for token, found in zip(ids, given, strict=False)
            ]
            answer = {"ids": ids, "finish": ended(ids, request), "cached": out.num_cached_tokens or 0}
            answer |= {"logprobs": probs if len(probs) == len(ids) else None}
            answers.append(answer | (told if n == 0 else dict.fromkeys(told, 0)))
        return answers

    def params(self, request: dict[str, Any]) -> Any:
        return SamplingParams(
            temperature=request.get("temperature", 0), seed=request.get("seed", 0), max_tokens=request["most"], logprobs=0,
            stop_token_ids=list(request.get("stop", ())) or None, ignore_eos=True, detokenize=False,
        )  # fmt: skip


if __name__ == "__main__":
    serve(EngineAdapter())
