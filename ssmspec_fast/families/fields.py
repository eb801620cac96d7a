"""A config.json read field by field: what is not read, or not known to mean nothing here, is refused by name."""

import math
from collections.abc import Mapping
from typing import Any

from ..config import BlockConfig, ModelConfig, NormConfig, Rotary
from ..errors import ConfigRefused

INERT = {
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size", "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_dropout", "hidden_dropout",
    "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "mamba_chunk_size", "name_or_path",
    "num_logits_to_keep", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type",
    "rescale_prenorm_residual", "resid_dropout", "return_dict", "sep_token_id", "time_step_floor",
    "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale", "torch_dtype", "transformers_version",
    "use_associative_scan", "use_bfloat16", "use_cache", "use_mamba_kernels", "use_mambapy", "z_loss_coefficient",
}  # fmt: skip
"""Fields that say how a model was stored or trained, or how another program runs it; none changes what it computes."""
NEEDED = object()


class Fields:
    """The fields of one config; `family` names it in messages."""

    def __init__(self, family: str, data: Mapping[str, Any]) -> None:
        self.family, self.data, self.seen = family, data, set(INERT)

    def get(self, name: str, default: Any = NEEDED) -> Any:
        """A field as it stands; null is the default, too."""
        self.seen.add(name)
        value = self.data.get(name)
        if value is None and default is NEEDED:
            raise ConfigRefused(f"{self.family}: field {name} is missing from config.json; it is needed")
        return default if value is None else value

    def count(self, name: str, default: Any = NEEDED, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigRefused(f"{self.family}: field {name} came as {value!r}; it must be a whole number from {least}")
        return value

    def number(self, name: str, default: Any = NEEDED) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigRefused(f"{self.family}: field {name} came as {value!r}; it must be a finite number")
        return float(value)

    def flag(self, name: str, default: Any = NEEDED) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigRefused(f"{self.family}: field {name} came as {value!r}; it must be true or false")
        return value

    def must(self, name: str, *allowed: Any) -> Any:
        """A field with one of the supported values; the first is its value where it is absent.

        Raises: ConfigRefused.
        """
        value = self.get(name, allowed[0])
        if value not in allowed:
            raise ConfigRefused(f"{self.family}: field {name} came as {value!r}; supported: {', '.join(map(repr, allowed))}")
        return value

    def ignore(self, *names: str) -> None:
        """Fields of this family that mean nothing for what is computed here."""
        self.seen |= set(names)

    def limits(self, name: str) -> tuple[float, float]:
        """A pair of bounds; infinity is written as JSON's Infinity or as {"__float__": "Infinity"}."""
        pair = self.get(name, (0.0, math.inf))
        found = [float(x["__float__"]) if isinstance(x, Mapping) and "__float__" in x else x for x in pair]
        if len(found) != 2 or not all(isinstance(x, int | float) for x in found) or not 0 <= found[0] <= found[1]:
            raise ConfigRefused(f"{self.family}: field {name} came as {pair!r}; it must be two numbers, 0 <= low <= high")
        return float(found[0]), float(found[1])

    def eos(self) -> tuple[int, ...]:
        value = self.get("eos_token_id", ())
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    def storage(self) -> str | None:
        value = self.data.get("dtype", self.data.get("torch_dtype"))
        return None if value is None else str(value).removeprefix("torch.")

    def rotary(self, channels: int, part: float = 1.0) -> Rotary:
        """The rotary embedding of heads of so many channels, `part` of which turn unless a field says otherwise.

        Raises: ConfigRefused for a scaling that is not supported, by name.
        """
        given = dict(self.get("rope_parameters", None) or self.get("rope_scaling", None) or {})
        self.ignore("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct")
        given.pop("mrope_section", None), given.pop("mrope_interleaved", None)  # text has one position in all its sections
        kind = given.pop("rope_type", given.pop("type", "default"))
        given.pop("type", None)
        old = self.data.get("rope_theta", self.data.get("rotary_emb_base"))
        theta = float(given.pop("rope_theta", 10000.0 if old is None else old))
        old = self.data.get("partial_rotary_factor", self.data.get("rotary_pct"))
        turned = int(channels * given.pop("partial_rotary_factor", part if old is None else old))
        names = {"default": (), "linear": ("factor",), "llama3": LLAMA3}.get(kind)
        if names is None:
            raise ConfigRefused(f"{self.family}: rope_type came as {kind!r}; supported: 'default', 'linear', 'llama3'")
        if set(given) - set(names) or set(names) - set(given):
            raise ConfigRefused(f"{self.family}: rope_type {kind!r} came with {sorted(given)}; it needs {sorted(names)}")
        if turned % 2 or not theta > 0:
            raise ConfigRefused(f"{self.family}: rotary channels {turned}, theta {theta}; give an even number and theta > 0")
        return Rotary(turned, theta, kind, tuple(float(given[name]) for name in names))

    def model(
        self,
        width: int,
        blocks: tuple[BlockConfig, ...],
        norm: NormConfig,
        *,
        tied: bool = False,
        length: int | None = None,
        **more: Any,
    ) -> ModelConfig:
        """The model of these blocks, with the fields that all families read alike; `tied` and `length` where none says so.

        Raises: ConfigRefused, also for the fields that nobody read.
        """
        config = ModelConfig(
            self.family,
            self.count("vocab_size"),
            width,
            blocks,
            norm,
            tied=self.flag("tie_word_embeddings", tied),
            length=None if length is None else self.count("max_position_embeddings", length),
            eos=self.eos(),
            storage=self.storage(),
            **more,
        )
        self.finish()
        return config

    def finish(self) -> None:
        """Raises: ConfigRefused for the fields that nobody read."""
        unknown = sorted(name for name in set(self.data) - self.seen if self.data[name] is not None)
        if unknown:
            raise ConfigRefused(
                f"{self.family}: config.json has the unknown field{'s' * (len(unknown) > 1)} {', '.join(unknown)}; "
                "what an unknown field means for the result cannot be known, so the folder is not loaded"
            )


LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
