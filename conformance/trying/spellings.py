"""The names that projects give to the inputs and options of a recurrence: mamba-ssm, causal-conv1d, flash-linear-attention,
transformers, mambapy, mamba.py, ONNX.

Axes are the letters of the reference (`ssmspec_ref/shapes.py`): b rows, t tokens, h heads, g their groups, p and v channels
of a head, n states, k keys, d and c channels, w columns of a convolution, q those without the oldest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Role:
    """An input: where the reference's arguments have it, its axes over a window, its names, and what is tested without it.

    `absent` gives the values of options that are left for a function that lacks it; a role without `absent` is needed. Where
    the option of the same name has the value "off", a function that has to get the input is not tested with it.
    """

    at: str
    axes: str
    names: tuple[str, ...]
    absent: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Flag:
    """A value that is no tensor: the expression that gives it, its names, and the values of its option to try, one by one,
    for a function that lacks it."""

    value: str
    names: tuple[str, ...]
    option: str = ""
    absent: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Family:
    """A recurrence: its inputs (the first is the state), its flags, its output, and sizes that differ on every axis.

    `forms` are the shapes that implementations choose from, one of each tuple: axes of inputs that differ from the
    reference's; those after `=` have their tokens where they are, wherever other inputs have them.
    `ways` are the forms of an input's numbers, the likeliest first; `also` are the axes that an input of the
    reference has where the layout has one more.
    """

    roles: Mapping[str, Role]
    flags: Mapping[str, Flag]
    output: str
    sizes: tuple[Mapping[str, int], ...]
    forms: tuple[tuple[Mapping[str, str], ...], ...]
    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return next(iter(self.roles))


STATE = (
    "state", "ssm_state", "S", "h", "h0", "initial_state", "initial_states", "ssm_states", "recurrent_state", "last_state",
    "prev_state", "previous_state", "past_state", "init_state", "hidden", "h_prev", "S0", "cache", "hx",
)  # fmt: skip
X = ("x", "u", "hidden_states", "X", "input", "inputs", "xs")
Z = ("z", "gate", "z_gate")
TAPS = ("weight", "w", "conv_weight", "kernel", "filter", "weights", "conv1d_weight", "taps")
OFF: tuple[str, ...] = ("off",)
ON: tuple[str, ...] = ("on",)

STEPS = {
    "softplus": Flag("params.dt_softplus", ("dt_softplus", "delta_softplus", "softplus"), "softplus", (ON, OFF)),
    "dt_limit": Flag("params.dt_limit", ("dt_limit", "time_step_limit", "dt_limits"), "dt_limit", (OFF,)),
}
KEPT = {
    "returned": Flag("True", ("output_final_state", "return_final_states", "return_last_state", "return_final_state",
                              "return_state", "output_state")),
    "chunk": Flag("16", ("chunk_size", "chunk", "block_len", "block_size", "BT")),
}  # fmt: skip
"""Whether the state is returned; tokens of a chunk, where the function has no default."""
CHUNKS = KEPT["chunk"].names


def _steps(S: str, x: str, dt: str, A: str, BC: str, D: str) -> dict[str, Role]:
    return {
        "S": Role("S", S, STATE),
        "x": Role("window.x", x, X),
        "dt": Role("window.dt", dt, ("dt", "delta", "discrete_time_step", "time_step", "dts", "Delta")),
        "A": Role("params.A", A, ("A", "A_log", "a_log", "log_A", "a_log_neg", "As")),
        "B": Role("window.B", BC, ("B", "B_proj", "Bs", "Bmat")),
        "C": Role("window.C", BC, ("C", "C_proj", "Cs", "Cmat")),
        "D": Role("params.D", D, ("D", "D_skip", "skip", "Ds"), {"D": OFF}),
        "z": Role("window.z", x, Z, {"z": OFF}),
        "dt_bias": Role("params.dt_bias", D, ("dt_bias", "delta_bias", "bias", "dt_b"), {"dt_bias": OFF}),
    }


A_WAYS = {"A": ("negative", "log", "positive")}
FAMILIES: dict[str, Family] = {
    "ssd": Family(
        _steps("b h p n", "b t h p", "b t h", "h", "b t g n", "h"),
        {**STEPS, **KEPT},
        "b t h p",
        ({"b": 3, "t": 5, "g": 2, "h": 4, "p": 7, "n": 6}, {"b": 5, "t": 8, "g": 2, "h": 6, "p": 3, "n": 9}),
        (
            ({"D": "h p"}, {"D": "h"}, {"dt": "b t h p", "A": "h p n", "D": "h p", "dt_bias": "h p"}),
            ({"S": "b h p n"}, {"S": "b h n p"}),
        ),
        A_WAYS,
        {"D": "h | h p"},
    ),
    "selective": Family(
        _steps("b d n", "b t d", "b t d", "d n", "b t n", "d"),
        {k: v for k, v in STEPS.items() if k == "softplus"} | KEPT,
        "b t d",
        ({"b": 3, "t": 5, "d": 7, "n": 4}, {"b": 2, "t": 8, "d": 3, "n": 6}),
        (
            ({}, {"B": "=b t n", "C": "=b t n"}, {"B": "=b n t", "C": "=b n t"}),
            ({"A": "d n"}, {"A": "n d"}),
            ({"S": "b d n"}, {"S": "b n d"}),
        ),
        A_WAYS,
    ),
    "delta": Family(
        {
            "S": Role("S", "b h k v", STATE),
            "q": Role("window.q", "b t g k", ("q", "query", "queries", "Q")),
            "k": Role("window.k", "b t g k", ("k", "key", "keys", "K")),
            "v": Role("window.v", "b t h v", ("v", "value", "values", "V")),
            "g": Role("window.g", "b t h", ("g", "gate", "gk", "decay", "alpha", "log_decay", "gates", "a", "log_alpha")),
            "beta": Role("window.beta", "b t h", ("beta", "b", "betas", "write_strength")),
        },
        {
            "l2_norm": Flag(
                "params.l2_norm",
                ("use_qk_l2norm_in_kernel", "use_qk_l2norm", "qk_l2norm", "l2_norm", "l2norm", "use_l2norm", "normalize"),
                "l2_norm",
                (ON, OFF),
            ),
            "scale": Flag("scale", ("scale", "sm_scale", "softmax_scale", "scaling")),
            **KEPT,
        },
        "b t h v",
        ({"b": 3, "t": 5, "g": 2, "h": 4, "k": 6, "v": 7}, {"b": 5, "t": 8, "g": 2, "h": 6, "k": 3, "v": 4}),
        (({"g": "b t h"}, {"g": "b t h k"}), ({"S": "b h k v"}, {"S": "b h v k"})),
        {"g": ("log", "factor")},
        {"g": "b t h k"},
    ),
    "conv": Family(
        {
            "M": Role("M", "b c w", ("conv_state", "conv_states", "M", "window", *STATE)),
            "u": Role("u", "b t c", (*X, "xBC", "qkv")),
            "weight": Role("params.weight", "c w", TAPS),
            "bias": Role("params.bias", "c", ("bias", "b", "conv_bias", "conv1d_bias"), {"bias": OFF}),
        },
        {
            "act": Flag(
                '"silu" if params.activation else None', ("activation", "act", "silu_activation", "silu"), "act", (ON, OFF)
            ),
            **KEPT,
        },
        "b t c",
        ({"b": 2, "t": 7, "c": 6, "w": 4}, {"b": 5, "t": 8, "c": 7, "w": 3}),
        (
            ({"M": "b c w"}, {"M": "b c q"}, {"M": "b w c"}, {"M": "b q c"}),
            ({"weight": "c w"}, {"weight": "c 1 w"}, {"weight": "w c"}),
        ),
    ),
    "shortconv": Family(
        {
            "S": Role("S", "b d q", ("conv_state", "conv_states", *STATE)),
            "B": Role("window.B", "b t d", ("B", "b", "gate_in", "B_gate")),
            "C": Role("window.C", "b t d", ("C", "c", "gate_out", "C_gate")),
            "x": Role("window.x", "b t d", X),
            "weight": Role("params.weight", "d w", TAPS),
            "bias": Role("params.bias", "d", ("bias", "conv_bias"), {"bias": OFF}),
        },
        KEPT,
        "b t d",
        ({"b": 2, "t": 7, "d": 5, "q": 3}, {"b": 5, "t": 8, "d": 7, "q": 2}),
        (({"S": "b d q"}, {"S": "b q d"}), ({"weight": "d w"}, {"weight": "d 1 w"}, {"weight": "w d"})),
    ),
}
"""Every recurrence that is tried, in the order in which they are."""
