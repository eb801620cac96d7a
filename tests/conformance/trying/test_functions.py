"""Functions of many signatures: a right one passes with few flags, the same with a fault fails, and not in silence."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from ssmspec_ref.contract import Verdict

from .trials import Trying

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """A function of this folder, the operation that it computes, and a fault: a text and what replaces it."""

    module: str
    name: str
    operation: str
    fault: tuple[str, str]
    flags: tuple[str, ...] = ()


SAMPLES = (
    Sample("torch", "selective_state_update", "ssd.step", ("torch.exp(dt[..., None] * A)", "torch.exp2(dt[..., None] * A)")),
    Sample("torch", "selective_scan_fn", "selective.scan", ("state * C[:, None, :, i]", "state * B[:, None, :, i]")),
    Sample("torch", "fused_recurrent_gated_delta_rule", "delta.scan", ("beta[:, i, :, None]", "beta[:, i, :, None] ** 2")),
    Sample("torch", "naive_delta_rule_heads_first", "delta.scan", ("(S * keys[", "(S * queries[")),
    Sample("torch", "kda_step", "delta.step", ("beta[..., None] * (v -", "beta[..., None] * (v +")),
    Sample(
        "torch", "causal_conv1d_fn", "conv.scan", ("seen[:, :, -(weight.shape[1] - 1) :]", "seen[:, :, 1 : weight.shape[1]]")
    ),
    Sample("torch", "causal_conv1d_plain", "conv.scan", ("out = out[..., :", "out = out[..., 1 : 1 +")),
    Sample("torch", "causal_conv1d_update", "conv.step", ("(conv_state * weight)", "(conv_state.flip(2) * weight)")),
    Sample("numpy", "ssd_step", "ssd.step", ("np.exp(-dt * np.exp(A_log))", "(1 - dt * np.exp(A_log))")),
    Sample("numpy", "mamba2_scan", "ssd.scan", ("* (dt[:, None] * x)[:, None]", "* x[:, None]")),
    Sample("numpy", "mamba_scan", "selective.scan", ("D * x[:, i])", "D)")),
    Sample("numpy", "shortconv_step", "shortconv.step", ("(B * x)", "x")),
    Sample("numpy", "conv_with_state", "conv.scan", ("+ bias[:, None]", "+ 2 * bias[:, None]")),
    Sample("numpy", "oddly_named", "selective.step", ("(dt * signal)", "signal")),
    Sample("numpy", "either_gate", "delta.step", ("beta[..., None] *", "beta[..., None] ** 2 *"), ("--layout", "g=b,h,k")),
)


def written(sample: Sample) -> str:
    if sample.module == "torch":
        pytest.importorskip("torch")
    return (FOLDER / f"{sample.module}_functions.py").read_text()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_right_function_gets_an_adapter_that_passes(sample: Sample, trying: Trying) -> None:
    trial = trying(f"{trying.module(written(sample))}:{sample.name}", *sample.flags)
    assert trial.code == 0, trial.said
    assert "fits in 3 of 3 drawn cases" in trial.said
    assert trial.capability[0] == sample.operation
    verdicts = trial.verdicts()
    assert len(verdicts) >= 3
    assert set(verdicts) == {Verdict.PASS}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_fault_is_said_and_shows_in_the_run(sample: Sample, trying: Trying) -> None:
    text = written(sample)
    assert text.count(sample.fault[0]) >= 1
    target = f"{trying.module(text.replace(*sample.fault))}:{sample.name}"
    refused = trying(target, *sample.flags)
    assert refused.code == 2
    assert "fits. This guess is the nearest" in refused.said
    assert "give --yes" in refused.said
    assert not refused.adapter.exists()
    trial = trying(target, *sample.flags, "--yes")
    assert trial.code == 0, trial.said
    assert trial.capability[0] == sample.operation
    assert Verdict.FAIL in trial.verdicts()


def test_two_readings_that_fit_are_asked_for(trying: Trying) -> None:
    target = f"{trying.module((FOLDER / 'numpy_functions.py').read_text())}:either_gate"
    trial = trying(target)
    assert trial.code == 2
    assert "2 ways to call it fit" in trial.said
    assert "give --layout g=b,h for 1; --layout g=b,h,k for 2; or --yes" in trial.said
    first = trying(target, "--yes")
    assert first.code == 0
    assert first.capability[1].limits.options["gate"] == ("head",)


@pytest.mark.parametrize(("typed", "code"), [("2\n", 0), ("3\n", 2)])
def test_a_terminal_is_asked_which_reading_is_meant(
    typed: str, code: int, trying: Trying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.trying.command.terminal", lambda: True)
    target = f"{trying.module((FOLDER / 'numpy_functions.py').read_text())}:either_gate"
    trial = trying(target, typed=typed)
    assert "Which one is meant?" in trial.said
    assert trial.code == code
    if code == 0:
        assert trial.capability[1].limits.options["gate"] == ("channel",)
    else:
        assert "3 is not one of 1 to 2" in trial.said


@pytest.mark.parametrize(("typed", "written_too"), [("y\n", True), ("n\n", False)])
def test_a_terminal_is_asked_whether_the_nearest_is_written(
    typed: str, written_too: bool, trying: Trying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conformance.trying.command.terminal", lambda: True)
    text = (FOLDER / "numpy_functions.py").read_text().replace("(B * x)", "x")
    trial = trying(f"{trying.module(text)}:shortconv_step", typed=typed)
    assert trial.code == (0 if written_too else 2)
    assert trial.adapter.exists() == written_too


def test_groups_that_are_read_wrongly_are_doubted_and_shown_by_a_flag(trying: Trying) -> None:
    """Tiled groups are right where each head has its own; the general reading is called too, and is wrong."""
    text = (FOLDER / "numpy_functions.py").read_text()
    old = "np.repeat(a, heads // a.shape[0], axis=0)"
    assert old in text
    target = f"{trying.module(text.replace(old, 'np.tile(a, (heads // a.shape[0], 1))'))}:mamba2_scan"
    trial = trying(target)
    assert trial.code == 0, trial.said
    assert "Doubt: it can also be called with B=t,g,n, C=t,g,n" in trial.said
    assert "--layout B=t,g,n --layout C=t,g,n" in trial.said
    flags = ("--layout", "B=t,g,n", "--layout", "C=t,g,n")
    assert trying(target, *flags).code == 2
    shown = trying(target, *flags, "--yes")
    assert Verdict.FAIL in shown.verdicts()


def test_a_sign_that_fits_turned_is_doubted(trying: Trying) -> None:
    text = (FOLDER / "numpy_functions.py").read_text().replace("np.exp(dt[..., None] * A)", "np.exp(-dt[..., None] * A)")
    trial = trying(f"{trying.module(text)}:oddly_named")
    assert trial.code == 0, trial.said
    assert "Doubt: A fits only as -A. If it is meant to be A, negative, the function is wrong." in trial.said


def test_the_function_is_run_and_its_verdict_is_the_exit_code(trying: Trying) -> None:
    text = (FOLDER / "numpy_functions.py").read_text()
    right = trying(f"{trying.module(text)}:shortconv_step", run=True)
    assert right.code == 0, right.said
    wrong = trying(f"{trying.module(text.replace('(B * x)', 'x'))}:shortconv_step", "--yes", run=True)
    assert wrong.code == 1
    assert "fail" in wrong.said


def test_functions_of_transformers_are_read(trying: Trying) -> None:
    pytest.importorskip("transformers")
    home = "transformers.models.qwen3_next.modeling_qwen3_next"
    for name in ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"):
        trial = trying(f"{home}:{name}")
        assert trial.code == 0, trial.said
        assert "query q (b t g k)" in trial.said
        assert set(trial.verdicts()[:3]) == {Verdict.PASS}
    assert trial.capability[1].contract.order == "chunked"
    narrow = trying(f"{home}:torch_recurrent_gated_delta_rule", "--dtype", "bf16")
    assert narrow.code == 0, narrow.said
    assert narrow.capability[1].contract.state == "bf16"
