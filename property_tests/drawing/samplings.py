"""Sampling settings: every processor alone and with others, also at the ends of its domain."""

from hypothesis import strategies as st

from ssmspec_ref.accept.processors import Sampling

LAST = 1 - 2.0**-24
FIELDS: dict[str, tuple[float, ...]] = {
    "temperature": (1.0, 0.0, 2.0**-10, 0.5, 2.0, 1000.0),
    "top_k": (0, 1, 2, 3),
    "top_p": (1.0, 2.0**-24, 0.5, 0.9, LAST),
    "repetition": (1.0, 1.25, 0.5),
    "presence": (0.0, 1.5, -1.5),
    "frequency": (0.0, 0.75, -0.25),
    "min_tokens": (0, 1, 4),
}
"""Values of each setting; the first changes nothing. `top_k` also takes the size of the vocabulary, and one more."""


@st.composite
def sampling_settings(draw: st.DrawFn, vocabulary: int, most: int = 4) -> Sampling:
    """Up to `most` settings that are not the default, and end-of-sequence tokens, never the whole vocabulary."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=most, unique=True))
    given = {name: draw(st.sampled_from(FIELDS[name])) for name in names}
    if "top_k" in given and draw(st.booleans()):
        given["top_k"] = vocabulary + draw(st.integers(0, 1))
    eos = draw(st.frozensets(st.integers(0, vocabulary - 1), max_size=min(2, vocabulary - 1)))
    return Sampling(**given, eos=eos)  # type: ignore[arg-type]
