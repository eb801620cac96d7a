"""transformers as an engine: `generate`, greedy or assisted by a model or by prompt lookup, one request or a padded batch.

python with_transformers.py        speaks JSON lines
"""

import sys
from typing import Any

for package in ("mamba_ssm", "causal_conv1d", "fla", "kernels"):
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]  # a GPU's kernels do not run here

import torch  # noqa: E402
import transformers  # noqa: E402
from lines import Refuse, ended, serve  # noqa: E402

FIRST = 1


class EngineAdapter:
    """One model, and its drafter."""

    def start(self, folder: str, options: dict[str, Any]) -> dict[str, Any]:
        for name in ("chunk",):
            if options.get(name):
                raise Refuse(f"no {name} in `generate`")
        if options.get("cache"):
            raise Refuse("`generate` keeps no state between two calls")
        torch.set_num_threads(1)
        dtype = getattr(torch, options["dtype"])
        self.options = options
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.drafter = None
        if options.get("speculation") == "model":
            self.drafter = transformers.AutoModelForCausalLM.from_pretrained(options["drafter"], dtype=dtype).eval()
            self.drafter.generation_config.num_assistant_tokens_schedule = "constant"
            self.drafter.generation_config.eos_token_id = None  # its own end would end its drafts, where the target has none
            self.drafter.generation_config.assistant_confidence_threshold = 0.0
        can = ["stop", "sample", "logprobs", "drafts", "drafter", *([] if options.get("speculation") else ["batch"])]
        drafters = dict.fromkeys((options.get("speculation") or "ngram", "ngram"))
        if options.get("speculation"):
            self.counted()
            try:  # refuse before any request, with the error that a user would get at the first one
                self.one({"ids": [FIRST] * 6, "most": 4})
            except (ValueError, NotImplementedError, AttributeError) as error:
                raise Refuse(f"{type(error).__name__}: {error}") from error
        return {
            "name": "transformers",
            "version": transformers.__version__,
            "dtype": options["dtype"],
            "can": can,
            "drafters": [*drafters],
        }

    def counted(self) -> None:
        """Count drafted and accepted tokens inside transformers."""
        from transformers.generation import candidate_generator as home

        adapter = self
        for kind in (home.AssistedCandidateGenerator, home.PromptLookupCandidateGenerator):
            if getattr(kind, "counted", False):
                continue
            plain = kind.get_candidates

            def get(self: Any, ids: Any, *more: Any, plain: Any = plain, **named: Any) -> Any:
                found = plain(self, ids, *more, **named)
                adapter.drafted += found[0].shape[1] - ids.shape[1]
                adapter.calls += 1
                return found

            kind.get_candidates, kind.counted = get, True

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(requests) == 1:
            return [self.one(requests[0])]
        return self.several(requests)

    def one(self, request: dict[str, Any]) -> dict[str, Any]:
        self.drafted, self.calls = 0, 0
        more: dict[str, Any] = {}
        drafts, speculation = self.options["drafts"], self.options.get("speculation")
        if speculation:
            drafts, speculation = request.get("drafts", drafts), request.get("drafter", speculation)
        if speculation and not drafts:
            more = {}
        elif speculation == "ngram":
            more = {"prompt_lookup_num_tokens": drafts, "max_matching_ngram_size": 2}
        elif self.drafter is not None:
            self.drafter.generation_config.num_assistant_tokens = drafts
            more = {"assistant_model": self.drafter}
        out = self.asked([request], more)
        answer = self.answer(out, 0, request, len(request["ids"]))
        if self.options.get("speculation"):
            answer |= {"drafted": self.drafted, "accepted": min(self.drafted, max(0, len(answer["ids"]) - self.calls))}
        return answer

    def several(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len({(r.get("temperature", 0), tuple(r.get("stop", ()))) for r in requests}) > 1:
            raise Refuse("`generate` takes one setting for a batch")
        out = self.asked(requests, {})
        longest = max(len(request["ids"]) for request in requests)
        return [self.answer(out, row, request, longest) for row, request in enumerate(requests)]

    def asked(self, requests: list[dict[str, Any]], more: dict[str, Any]) -> Any:
        longest = max(len(request["ids"]) for request in requests)
        ids = torch.tensor([[0] * (longest - len(r["ids"])) + r["ids"] for r in requests])
        mask = torch.tensor([[0] * (longest - len(r["ids"])) + [1] * len(r["ids"]) for r in requests])
        temperature, stop = requests[0].get("temperature", 0), list(requests[0].get("stop", ()))
        drawn = (
            {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}
        )
        torch.manual_seed(requests[0].get("seed", 0))
        with torch.no_grad():
            return self.model.generate(
                ids, attention_mask=mask, max_new_tokens=max(r["most"] for r in requests), eos_token_id=stop or None,
                pad_token_id=0, return_dict_in_generate=True, output_logits=True, **drawn, **more,
            )  # fmt: skip

    def answer(self, out: Any, row: int, request: dict[str, Any], before: int) -> dict[str, Any]:
        ids = out.sequences[row, before:].tolist()[: request["most"]]
        for n, token in enumerate(ids):
            if token in request.get("stop", ()):
                ids = ids[: n + 1]
        logits = [step[row] for step in out.logits[: len(ids)]]
        probs = [float(torch.log_softmax(x.double(), -1)[token]) for x, token in zip(logits, ids, strict=False)]
        found = probs if len(probs) == len(ids) else None
        return {"ids": ids, "logprobs": found, "finish": ended(ids, request)}


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    serve(EngineAdapter())
