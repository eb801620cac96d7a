"""mlx-lm as an engine: `generate_step`, `speculative_generate_step`, and `BatchGenerator` for several requests at once."""

import json
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from lines import Refuse, ended, serve
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.utils import load_model

KINDS = ("linear_attention", "full_attention")
GENERATE: Any = __import__("mlx_lm.generate", fromlist=["generate_step"])


def opened(folder: str, dtype: Any) -> Any:
    """Load a model, adding the config fields that mlx-lm needs and transformers does not write."""
    config = json.loads((Path(folder) / "config.json").read_text())
    if config["model_type"] == "mamba2":
        config.setdefault("intermediate_size", int(config["expand"] * config["hidden_size"]))
        config["time_step_limit"] = [0.0, 1e30]
    if config["model_type"] == "lfm2":
        config = {"block_dim": config["hidden_size"], "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0} | config
    if config["model_type"] == "kimi_linear":
        config = kimi_linear(config)
    if config["model_type"] == "qwen3_5_text":
        config["rope_theta"] = config["rope_parameters"]["rope_theta"]
        config = {"model_type": "qwen3_5", "text_config": config, "tie_word_embeddings": config["tie_word_embeddings"]}
    with tempfile.TemporaryDirectory() as made:
        for path in Path(folder).iterdir():
            if path.name != "config.json":
                (Path(made) / path.name).symlink_to(path.resolve())
        (Path(made) / "config.json").write_text(json.dumps(config))
        model, _ = load_model(Path(made))
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


def kimi_linear(config: dict[str, Any]) -> dict[str, Any]:
    """The published fields of Kimi Linear, of a config as transformers writes it."""
    numbers = {kind: [n for n, one in enumerate(config["layer_types"], 1) if one == kind] for kind in KINDS}
    linear = {
        "num_heads": config["linear_num_heads"], "head_dim": config["linear_head_dim"], "short_conv_kernel_size": 4,
        "kda_layers": numbers["linear_attention"], "full_attn_layers": numbers["full_attention"],
    }  # fmt: skip
    more = {"model_max_length": config["max_position_embeddings"], "num_experts": 0, "moe_intermediate_size": 0}
    return {"head_dim": config["linear_head_dim"], "rope_theta": 10000.0, "linear_attn_config": linear, **more} | config


class EngineAdapter:
    def start(self, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        if options.get("speculation") == "ngram":
            raise Refuse("mlx-lm drafts by a model only")
        self.options, self.kept = options, []
        try:
            self.model = opened(folder, getattr(mx, options["dtype"]))
        except (ValueError, ModuleNotFoundError, TypeError) as error:
            raise Refuse(str(error)) from error
        self.drafter = None
        if options.get("speculation"):
            self.drafter = opened(options["drafter"], getattr(mx, options["dtype"]))
            if not can_trim_prompt_cache(make_prompt_cache(self.model)):
                raise Refuse("Speculative decoding requires a trimmable prompt cache")
        can = ["stop", "sample", "logprobs", "cancel", "drafts"] + (
            [] if self.drafter or options.get("cache") else ["batch", "join"]
        )
        return {"name": "mlx-lm", "version": mlx_lm.__version__, "dtype": options["dtype"], "can": can}

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(requests) > 1:
            return self.several(requests)
        return [self.one(request) for request in requests]

    def one(self, request: dict[str, Any]) -> dict[str, Any]:
        mx.random.seed(request.get("seed", 0))
        temperature = request.get("temperature", 0)
        sampler = None
        if temperature:
            sampler = lambda x: mx.random.categorical(x / temperature)  # noqa: E731
        cancel, prompt = request.get("cancel"), request["ids"]
        cache, cached = self.cached(prompt)
        chunk = self.options.get("chunk") or 2048
        named = {"max_tokens": request["most"], "sampler": sampler, "prompt_cache": cache, "prefill_step_size": chunk}
        ids, probs, drafted = [], [], 0
        drafts = request.get("drafts", self.options["drafts"])
        if self.drafter is not None and drafts:
            named["prompt_cache"] = [*cache, *make_prompt_cache(self.drafter)]
            steps = GENERATE.speculative_generate_step(
                mx.array(prompt[cached:]), self.model, self.drafter, num_draft_tokens=drafts, **named
            )
        else:
            steps = ((*found, False) for found in GENERATE.generate_step(mx.array(prompt[cached:]), self.model, **named))
        for token, probabilities, draft in steps:
            ids.append(int(token))
            probs.append(float(probabilities[int(token)]))
            drafted += bool(draft)
            if ids[-1] in request.get("stop", ()) or len(ids) == cancel:
                break
        steps.close()
        self.keep(prompt, ids, cache)
        finish = "cancelled" if len(ids) == cancel and len(ids) < request["most"] else ended(ids, request)
        answer = {"ids": ids, "logprobs": probs, "finish": finish, "cached": cached}
        if self.drafter is not None:
            windows = len(ids) - drafted
            answer |= {"accepted": drafted, "drafted": max(drafted, windows * drafts)}
        return answer

    def cached(self, prompt: list[int]) -> tuple[Any, int]:
        """A cache whose tokens are a prefix of this prompt, and their number."""
        if self.options.get("cache"):
            for tokens, cache in self.kept:
                if len(tokens) < len(prompt) and prompt[: len(tokens)] == tokens:
                    self.kept.remove((tokens, cache))
                    return cache, len(tokens)
        return make_prompt_cache(self.model), 0

    def keep(self, prompt: list[int], ids: list[int], cache: Any) -> None:
        """Record the tokens in the cache after a run: prompt and all tokens but the last, or the cache's own count."""
        if self.options.get("cache") and self.drafter is None:
            # generate_step has fed every token that it returned, and computes one ahead
            self.kept = [(prompt + ids, cache)]

    def several(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Use the batch generator; a request joins when its `after` says so."""
        if any(request.get("temperature") for request in requests):
            raise Refuse("the adapter samples one request at a time; give requests of one each")
        batch = GENERATE.BatchGenerator(
            self.model, max_tokens=64, stop_tokens=None, completion_batch_size=self.options["slots"],
            prefill_batch_size=self.options["slots"], prefill_step_size=self.options.get("chunk") or 2048,
        )  # fmt: skip
        found: list[dict[str, Any]] = [{"ids": [], "logprobs": [], "finish": "length"} for _ in requests]
        waiting = sorted(range(len(requests)), key=lambda n: requests[n].get("after", 0))
        live: dict[int, int] = {}
        steps = 0
        while waiting or live:
            while waiting and (requests[waiting[0]].get("after", 0) <= steps or not live):
                n = waiting.pop(0)
                (uid,) = batch.insert([requests[n]["ids"]], max_tokens=[requests[n]["most"]])
                live[uid] = n
            for response in batch.next_generated():
                if response.uid not in live:
                    continue
                n = live[response.uid]
                request, answer = requests[n], found[n]
                answer["ids"].append(int(response.token))
                answer["logprobs"].append(float(response.logprobs[int(response.token)]))
                over = answer["ids"][-1] in request.get("stop", ())
                cut = len(answer["ids"]) == request.get("cancel") and len(answer["ids"]) < request["most"]
                answer["finish"] = "stop" if over else "cancelled" if cut else "length"
                if over or cut:
                    if response.finish_reason is None:
                        batch.remove([response.uid])
                    del live[response.uid]
                elif response.finish_reason is not None:
                    del live[response.uid]
            steps += 1
        batch.close()
        return found


if __name__ == "__main__":
    serve(EngineAdapter())
