"""From nothing to a judged adapter: what `init` writes passes, a fault in it is found, `check` says what is wrong."""

from importlib.resources import files
from pathlib import Path

import pytest

from conformance.checked import signature
from conformance.errors import AdapterUnavailable, UnknownAdapter, UnknownLimit
from conformance.refusal import FAILED, REFUSED
from conformance.run.load import load
from conformance.run.plan import Selection, plan
from ssmspec_ref.contract import OPERATIONS, Adapter, Capability, Limits, NumericContract, Subject
from tests.commands import ends, reported

SSD = files("conformance.starters").joinpath("ssd_operations.py").read_text()
FAULTS = {
    ("operations",): ("np.exp(dt * A)", "np.exp2(np.float32(1.44) * dt * A)", "ssd.step, in the output"),
    ("operations", "delta"): ("(v - np", "(v - np.exp(-g)[..., None] * np", "delta.step, in the output"),
    ("decoder",): (
        "kept[advanced, np.arange(len(advanced))]",
        "kept[np.maximum(advanced, 1), np.arange(len(advanced))]",
        "ssd.verify_snapshots, in the recurrent state after window 0",
    ),
    ("decoder", "delta"): (
        "kept[advanced, np.arange(len(advanced))]",
        "kept[-1]",
        "delta.verify_snapshots, in the recurrent state after window 1",
    ),
    ("pool",): ("states[pool.write[live]] = S[live]", "states[: len(S)] = S", "ssd.step, in the recurrent state: slot"),
    ("tree",): ("after[above[-1]] if len(above)", "after[max(after)] if len(above)", "ssd.verify_tree, in the output"),
    ("layer",): ("np.where(live[:, None, None], M, self.M)", "M", "layer."),
    ("generator",): ("tokens.append(right)", "tokens.append(draft)", "generate.greedy, in the emitted tokens: row 0, token"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("starter", FAULTS, ids="_".join)
def test_what_init_writes_passes_and_a_fault_in_it_is_found_and_placed(starter: tuple[str, ...], folder: Path) -> None:
    name, (level, *recurrence) = "_".join(starter), starter
    words = (f"--level={level}", *(f"--recurrence={which}" for which in recurrence))
    ends(0, "init", f"my_{name}.py", *words, said=f"check --adapter my_{name}:adapter")
    ends(0, "run", "--adapter", f"my_{name}:adapter", "--tier", "smoke")
    old, new, place = FAULTS[starter]
    source = (folder / f"my_{name}.py").read_text()
    assert source.count(old) == 1
    assert "MODULE" not in source
    (folder / f"my_faulty_{name}.py").write_text(source.replace(old, new))
    words = ("--adapter", f"my_faulty_{name}:adapter", "--tier", "smoke", "--explain", "quick")
    read = reported(FAILED, *words, report=folder / "faulty")
    assert read.diagnoses[0].diverges.startswith(place)
    ends(REFUSED, "init", f"my_{name}.py", said="exists; name another file")
    assert (folder / f"my_{name}.py").read_text() == source


def test_check_says_that_an_adapter_is_right(folder: Path) -> None:
    said = "ok    ssd: ssd.step: called; the outputs fit fp32/ulp=3/sequential; the values are within their bounds"
    (folder / "mine_right.py").write_text(SSD)
    ends(0, "check", "--adapter", "mine_right", said=said)
    ends(REFUSED, "check", "--adapter", "mine_right.py:adapter", said="give its module, mine_right:adapter")


def test_check_leaves_wrong_values_to_the_run(folder: Path) -> None:
    (folder / "mine_off.py").write_text(SSD.replace("np.exp(dt * A)", "np.exp(2 * dt * A)"))
    ends(0, "check", "--adapter", "mine_off:adapter", said="the values are not within their bounds: y is wrong by")


@pytest.mark.parametrize(
    ("number", "old", "new", "said"),
    [
        (1, "def step(S, token, params)", "def step(S, token)", "it raised: TypeError: step() takes 2 positional"),
        (2, "return y, S\n", "return y\n", "wrong number of outputs: it returned 1 output; it must return a tuple of 2"),
        (3, "return y, S\n", "return y[0], S\n", "an output has another shape: y has shape (6, 5)"),
        (4, "return y, S\n", "return y.tolist(), S\n", "an output has another type: y is list; it must be a NumPy array"),
        (5, "    return y, S\n", "    import os; os._exit(9)\n", "its process ended: the process ended with exit code 9"),
        (6, "return y, S\n", "return [y, S]\n", "it returned a list; it must return a tuple of 2: y, S"),
    ],
)  # fmt: skip
def test_check_says_what_is_wrong_in_words_and_what_is_needed(
    number: int, old: str, new: str, said: str, folder: Path
) -> None:
    assert SSD.count(old) == 1
    (folder / f"mine_wrong{number}.py").write_text(SSD.replace(old, new))
    needed = "needed: ssd.step(S, token, params) -> y, S"
    ends(FAILED, "check", "--adapter", f"mine_wrong{number}:adapter", said=(said, needed))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"ssd.step": step_capability}', '{"ssd.stop": step_capability}', "my kernels, ssd, declares ssd.stop"),
        ('"D": ("off",)', '"d": ("off",)', "limits d, which no case has (did you mean 'D'?); ssd.step has D=head"),
        ('"D": ("off",)', '"D": ("none",)', "limits D=none, which no case has"),
        ('"D": ("off",)', '"D": "off"', "the limit on D is the str 'off'; it must be a tuple of values, such as ('off',)"),
        ('state="fp32"', 'state="float32"', "ParameterError: state is 'float32'"),
        ("Capability(step, CONTRACT, LIMITS)", "step", "MalformedAdapter: my kernels: ssd, ssd.step is function; it must be"),
        ("(step, CONTRACT, ", '(step, "fp32", ', "MalformedAdapter: my kernels: ssd, ssd.step, contract is str; it must be"),
        ("CONTRACT, LIMITS)", "CONTRACT, {})", "MalformedAdapter: my kernels: ssd, ssd.step, limits is dict; it must be"),
        ("(step, CONTRACT", "(None, CONTRACT", "MalformedAdapter: my kernels: ssd, ssd.step, run is NoneType; it must be"),
        ("(subject,)", "subject", "MalformedAdapter: my kernels: subjects is Subject; it must be a tuple"),
        ("(subject,)", "()", "MalformedAdapter: my kernels declares nothing"),
        ("import numpy as np", 'raise OSError("no licence")', '.py:7 raise OSError("no licence")'),
        ("import numpy as np", "import numpy as", "cannot be loaded: SyntaxError: invalid syntax (mine_"),
    ],
)  # fmt: skip
def test_what_is_declared_wrongly_is_refused(old: str, new: str, said: str, folder: Path) -> None:
    name = "mine_declares" + str(abs(hash(new)))
    (folder / f"{name}.py").write_text(SSD.replace(old, new, 1))
    ends(REFUSED, "check", "--adapter", f"{name}:adapter", said=said)


def test_the_old_name_of_check_is_refused_with_the_new_form() -> None:
    said = "`conform smoke` is now `conform check`, since smoke is a tier; give: "
    said = ends(REFUSED, "smoke", "--adapter", "my kernels:adapter", "--device", "cuda", said=said)
    assert "check --adapter 'my kernels:adapter' --device cuda" in said
    assert "smoke " not in ends(0, "--help").replace("tier smoke", "")


def test_check_of_an_adapter_without_operations_fails(folder: Path) -> None:
    text = SSD.replace('{"ssd.step": step_capability}', "{}")
    assert text != SSD
    (folder / "mine_empty.py").write_text(text)
    ends(FAILED, "check", "--adapter", "mine_empty", said="no subject declares an operation; give each a Capability")


def test_a_limit_on_an_axis_that_does_not_exist_is_refused() -> None:
    capability = Capability(print, NumericContract(), Limits(sizes={"z": (1, 2)}))
    with pytest.raises(UnknownLimit, match="limits the axis z, which no case has"):
        plan({"a": Adapter("a", "1", (Subject("s", {"ssd.step": capability}),))}, Selection())


def test_every_operation_has_a_signature_in_words() -> None:
    assert all("->" in signature(operation) for operation in OPERATIONS)
    assert signature("speculate.tree").startswith("run(mixer, state) -> an object with verify")


def test_an_adapter_named_almost_right_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_kernels.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownAdapter, match=r"nor an adapter that ships \(did you mean 'my_kernels'\?\)"):
        load("my_kernal")


def test_an_adapter_that_raises_on_import_is_shown_by_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_on_import.py").write_text('raise RuntimeError("no driver")\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AdapterUnavailable) as found:
        load("raises_on_import")
    assert str(found.value) == (
        'raises_on_import cannot be loaded: RuntimeError: no driver | raises_on_import.py:1 raise RuntimeError("no driver")'
    )
