"""A config.json read field by field: a field that is neither read nor known to be irrelevant is refused by name."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from ..errors import ConfigRefused
from ..models.config import BlockConfig, ModelConfig, NormConfig, Rotary

INERT = {
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size", "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_dropout", "hidden_dropout",
    "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "mamba_chunk_size", "name_or_path",
    "num_logits_to_keep", "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "problem_type",
    "rescale_prenorm_residual", "resid_dropout", "return_dict", "sep_token_id", "time_step_floor",
    "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale", "torch_dtype", "transformers_version",
    "use_associative_scan", "use_bfloat16", "use_cache", "use_mamba_kernels", "use_mambapy", "z_loss_coefficient",
}  # fmt: skip
"""Fields that say how a model was stored or trained, or how another program runs it; none changes the result."""
NEEDED = object()
MOST, LAYERS, LONGEST, TURNED = 2**24, 4096, 2**31, 2**16
"""The largest size of an axis, number of layers, sequence length and rotary channels: each several times that of any
published model, and small enough that a config alone cannot make large allocations."""


class Fields:
    """The fields of one config; `family` names it in messages.

    `accepted` are fields that the user declares irrelevant: they are passed over, here and in the records inside.
    """

    def __init__(self, family: str, data: Mapping[str, Any], accepted: Iterable[str] = ()) -> None:
        self.family, self.data, self.seen = family, data, set(INERT)
        self.accepted, self.passed = frozenset(accepted), set[str]()

    def inside(self, name: str, called: str | None = None) -> "Fields":
        """The fields of a record of this config; `called` names it in messages."""
        return self.beside(called or f"{self.family}: {name}", self.record(name))

    def beside(self, family: str, data: Mapping[str, Any]) -> "Fields":
        """The fields of a record that belongs to this config."""
        made = Fields(family, data, self.accepted)
        made.passed = self.passed
        return made

    def get(self, name: str, default: Any = NEEDED) -> Any:
        """A field as stored; null counts as absent."""
        self.seen.add(name)
        value = self.data.get(name)
        if value is None and default is NEEDED:
            raise ConfigRefused(f"{self.family}: field {name} is missing from config.json; it is needed")
        return default if value is None else value

    def refuse(self, name: str, value: Any, needed: str) -> ConfigRefused:
        """The error for a field; a long value is shortened."""
        return ConfigRefused(f"{self.family}: field {name} is {repr(value)[:80]}; it must be {needed}")

    def count(self, name: str, default: Any = NEEDED, least: int = 1, most: int = MOST) -> int:
        """A whole number from `least` to `most`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(name, value, f"a whole number from {least} to {most}")
        return value

    def layers(self, name: str = "num_hidden_layers") -> int:
        return self.count(name, most=LAYERS)

    def number(self, name: str, default: Any = NEEDED, least: float = -math.inf) -> float:
        return self.as_number(name, self.get(name, default), least)

    def as_number(self, name: str, value: Any, least: float = -math.inf) -> float:
        """A finite number of at least `least`."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= HUGE or -value > HUGE:
            low = "" if least == -math.inf else f" of at least {least:g}"
            raise self.refuse(name, value, f"a finite number{low}")
        return float(value)

    def eps(self, name: str, default: Any = NEEDED) -> float:
        """The epsilon added to a mean of squares: far from 1, or it would be most of the mean."""
        value = self.number(name, default, 0.0)
        if value > 0.1:
            raise self.refuse(name, value, "a number from 0 to 0.1")
        return value

    def names(self, name: str, default: Any = NEEDED) -> list[str]:
        """A list of words, one for each layer."""
        value = self.get(name, default)
        if isinstance(value, str):
            value = list(value)
        if not isinstance(value, list | tuple) or len(value) > LAYERS or not all(isinstance(x, str) for x in value):
            raise self.refuse(name, value, f"a list of words, {LAYERS} at most")
        return list(value)

    def places(self, name: str, layers: int) -> set[int]:
        """A list of layer numbers."""
        value = self.get(name, ())
        if not isinstance(value, list | tuple) or any(isinstance(x, bool) or not isinstance(x, int) for x in value):
            raise self.refuse(name, value, "a list of numbers of layers")
        if any(not 0 <= x < layers for x in value):
            raise self.refuse(name, sorted(value), f"numbers of layers, 0 to {layers - 1}")
        return set(value)

    def numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """As many numbers as the default has."""
        value = self.get(name, default)
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise self.refuse(name, value, f"a list of {len(default)} numbers")
        return tuple(self.as_number(name, x) for x in value)

    def record(self, name: str) -> dict[str, Any]:
        """A JSON object; empty if absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.refuse(name, value, "an object")
        return dict(value)

    def divides(self, one: str, count: int, other: str, whole: int) -> None:
        """Raises: ConfigRefused unless `count` divides `whole`."""
        if whole % count:
            raise ConfigRefused(f"{self.family}: {one} {count} do not divide {other} {whole}; the config is inconsistent")

    def flag(self, name: str, default: Any = NEEDED) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ConfigRefused(f"{self.family}: field {name} is {value!r}; it must be true or false")
        return value

    def must(self, name: str, *allowed: Any) -> Any:
        """A field with one of the supported values; the first is the default.

        Raises: ConfigRefused.
        """
        value = self.get(name, allowed[0])
        if not any((type(value) is type(one) and value == one) or _same_number(value, one) for one in allowed):
            shown = repr(value)[:80]
            raise ConfigRefused(f"{self.family}: field {name} is {shown}; supported: {', '.join(map(repr, allowed))}")
        return value

    def ignore(self, *names: str) -> None:
        """Marks fields of this family that do not change the result here."""
        self.seen |= set(names)

    def limits(self, name: str) -> tuple[float, float]:
        """A pair of bounds; infinity is written as JSON's Infinity or as {"__float__": "Infinity"}."""
        pair = self.get(name, (0.0, math.inf))
        found = [math.inf if x == {"__float__": "Infinity"} else x for x in pair] if isinstance(pair, list | tuple) else []
        known = [x for x in found if isinstance(x, int | float) and not isinstance(x, bool) and (x <= HUGE or x == math.inf)]
        if len(found) != 2 or len(known) != 2 or not 0 <= known[0] <= known[1]:
            raise self.refuse(name, pair, "two numbers, 0 <= low <= high")
        return float(known[0]), float(known[1])

    def eos(self, vocabulary: int) -> tuple[int, ...]:
        value = self.get("eos_token_id", ())
        found = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(x, bool) or not isinstance(x, int) or not 0 <= x < vocabulary for x in found):
            raise self.refuse("eos_token_id", value, f"a token of the vocabulary, 0 to {vocabulary - 1}, or a list of them")
        return tuple(found)

    def storage(self) -> str | None:
        name = "dtype" if "dtype" in self.data else "torch_dtype"
        value = self.data.get(name)
        if value is not None and not isinstance(value, str):
            raise self.refuse(name, value, "the name of a data type, such as 'float32'")
        return None if value is None else value.removeprefix("torch.")

    def rotary(self, channels: int, part: float = 1.0) -> Rotary:
        """The rotary embedding of heads with `channels` channels, `part` of which are rotated unless a field says otherwise.

        Raises: ConfigRefused for a scaling that is not supported, by name.
        """
        given = self.record("rope_parameters") or self.record("rope_scaling")
        self.ignore("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "partial_rotary_factor", "rotary_pct")
        section = given.pop("mrope_section", None)
        given.pop("mrope_interleaved", None)  # text has the same position in all sections
        said = [x for x in (given.pop("rope_type", None), given.pop("type", None)) if x is not None]
        for x in said:
            if not isinstance(x, str):
                raise self.refuse("rope_type", x, "a text")
        kinds = set(said) or {"default"}
        kind = next(iter(kinds))
        theta = self.agreed(given, "rope_theta", ("rope_theta", "rotary_emb_base"), 10000.0)
        factor = self.agreed(given, "partial_rotary_factor", ("partial_rotary_factor", "rotary_pct"), part)
        if not 0 < factor <= 1:
            raise self.refuse("partial_rotary_factor", factor, "a fraction, above 0 and at most 1")
        turned = int(channels * factor)
        names = SCALINGS[kind][1] if kind in SCALINGS else None
        if names is None or len(kinds) > 1:
            found = "' and '".join(sorted(kinds))
            raise ConfigRefused(f"{self.family}: rope_type is '{found}'; supported: 'default', 'linear', 'llama3'")
        if set(given) - set(names) or set(names) - set(given):
            raise ConfigRefused(f"{self.family}: rope_type {kind!r} has the fields {sorted(given)}; it needs {sorted(names)}")
        if turned % 2 or turned > TURNED or not theta > 0:
            raise ConfigRefused(
                f"{self.family}: rotary channels are {turned}, theta is {theta}; "
                f"give an even number up to {TURNED}, and theta > 0"
            )
        self.sections(section, turned // 2)
        factors = tuple(self.as_number(f"{name} of the rotary embedding", given[name]) for name in names)
        if any(not x > 0 for x in factors) or (kind == "llama3" and not factors[1] < factors[2]):
            raise self.refuse("rope_parameters", dict(zip(names, factors, strict=True)), "numbers above 0, low below high")
        return Rotary(turned, theta, SCALINGS[kind][0], factors)

    def agreed(self, given: dict[str, Any], name: str, old: Collection[str], default: float) -> float:
        """A number of the rotary embedding, from its own record or from the top of the config.

        Raises: ConfigRefused if the two places differ, because it is unknown which one the weights were trained with.
        """
        said = {"rope_parameters": given.pop(name, None)} | {field: self.data.get(field) for field in old}
        found = {where: self.as_number(f"{name} ({where})", x) for where, x in said.items() if x is not None}
        if len(set(found.values())) > 1:
            came = ", ".join(f"{x:g} in {where}" for where, x in found.items())
            raise ConfigRefused(f"{self.family}: {name} is {came}; these must be equal")
        return next(iter(found.values()), default)

    def sections(self, section: Any, pairs: int) -> None:
        """Checks the pairs of channels rotated by time, height and width. Raises: ConfigRefused unless they add up to all
        pairs."""
        if section is None:
            return
        if not isinstance(section, list | tuple) or any(isinstance(x, bool) or not isinstance(x, int) for x in section):
            raise self.refuse("mrope_section", section, "a list of three whole numbers")
        if len(section) != 3 or min(section) < 0 or sum(section) != pairs:
            raise self.refuse("mrope_section", section, f"three numbers of 0 or more that sum to the {pairs} pairs that turn")

    def model(
        self,
        width: int,
        blocks: tuple[BlockConfig, ...],
        norm: NormConfig,
        *,
        tied: bool = False,
        length: int | None = None,
        multiple: int = 1,
        **more: Any,
    ) -> ModelConfig:
        """The model of these blocks, with the fields that all families share; `tied` and `length` are defaults, and the
        vocabulary is rounded up to a `multiple`.

        Raises: ConfigRefused, also for fields that were not read.
        """
        vocabulary = -(-self.count("vocab_size") // multiple) * multiple
        config = ModelConfig(
            self.family,
            vocabulary,
            width,
            blocks,
            norm,
            tied=self.flag("tie_word_embeddings", tied),
            length=None if length is None else self.count("max_position_embeddings", length, most=LONGEST),
            eos=self.eos(vocabulary),
            storage=self.storage(),
            **more,
        )
        self.finish()
        return config

    def finish(self) -> None:
        """Raises: ConfigRefused for fields that were not read."""
        unknown = {name for name in set(self.data) - self.seen if self.data[name] is not None}
        self.passed |= unknown & self.accepted
        unknown -= self.accepted
        if unknown:
            raise ConfigRefused(
                f"{self.family}: config.json has the unknown field{'s' * (len(unknown) > 1)} {', '.join(sorted(unknown))}; "
                "an unknown field may change the result, so the folder is not loaded. If you know that it does not, accept "
                "it by name: --accept-field NAME, or accept=[NAME] in `load`"
            )

    def check_accepted(self) -> None:
        """Raises: ConfigRefused for an accepted name that is of no unknown field, once everything is read."""
        idle = sorted(self.accepted - self.passed)
        if idle:
            why = "is read" if idle[0] in self.data and idle[0] not in INERT else "has no effect, or is not there"
            raise ConfigRefused(
                f"{self.family}: {', '.join(idle)} cannot be accepted: {idle[0]} {why}; accept only fields that are refused "
                "as unknown"
            )


def _same_number(one: Any, other: Any) -> bool:
    """Equality of JSON numbers: 2 equals 2.0, and neither equals true."""
    both = (one, other)
    return all(isinstance(x, int | float) and not isinstance(x, bool) for x in both) and bool(one == other)


HUGE = 1.7976931348623157e308
"""The largest number of a float."""
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
SCALINGS: dict[str, tuple[Literal["default", "linear", "llama3"], tuple[str, ...]]] = {
    "default": ("default", ()),
    "linear": ("linear", ("factor",)),
    "llama3": ("llama3", LLAMA3),
}
"""The scalings of rotary embeddings, and the fields that each needs."""
