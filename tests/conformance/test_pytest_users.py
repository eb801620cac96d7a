"""The suite in pytest as its users expect it: ids that can be pasted, --lf, --ff, --sw, -k, -m, -n, JUnit, the configuration
file, and nothing beside files that were named."""

import shlex
from xml.etree import ElementTree

import pytest

from conformance.pytest_cases import ids
from conformance.report.stream import read_report

pytest_plugins = ["pytester"]

KERNELS = """
import numpy as np
from ssmspec_ref import conv
from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

def commit(M, u, advanced):
    taken = np.minimum(advanced + WRONG, u.shape[1]) if u.shape[1] > FROM else advanced
    return conv.commit(M, u, taken).astype(np.float32)

WRONG, FROM = {wrong}, {least}

def adapter(device="cpu"):
    subject = Subject("my window (fast)", {{"conv.commit": Capability(commit, NumericContract())}})
    return Adapter("mine", "0.1", (subject,))
"""
INI = """
[pytest]
pythonpath = src
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten
ssmspec_adapter = my_kernels:adapter
ssmspec_tier = smoke
ssmspec_report = out
"""
ONE = "ssmspec::mine::my-window-fast::fp32/sequential::conv.commit/b2,t7,c6,w4/plain/normal/s0"


class Project:
    """Somebody's project, whose kernels lie in src and whose configuration names the adapter."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        pytester.makeini(INI)
        pytester.mkdir("src")
        pytester.mkdir("tests")
        (pytester.path / "tests" / "test_own.py").write_text("def test_own():\n    pass\n")
        self.break_it(0)

    def break_it(self, wrong: int, least: int = 0) -> None:
        (self.pytester.path / "src" / "my_kernels.py").write_text(KERNELS.format(wrong=wrong, least=least))

    def run(self, *words: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("-p", "no:timeout", *words)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "200")
    return Project(pytester)


def failed(done: pytest.RunResult) -> list[str]:
    return [line.split()[1] for line in done.outlines if line.startswith("FAILED ")]


def counts(done: pytest.RunResult) -> dict[str, int]:
    return {word: count for word, count in done.parseoutcomes().items() if word not in ("warnings", "seconds")}


def test_the_configuration_file_names_the_adapter_and_plain_pytest_runs_its_cases(project: Project) -> None:
    done = project.run("-v")
    assert done.ret == 0, done.outlines
    assert f"{ONE} PASSED" in "\n".join(done.outlines)
    assert counts(done)["passed"] > 5
    assert f"collected {counts(done)['passed']} items" in "\n".join(done.outlines), "the cases are counted too"
    assert (project.pytester.path / "out" / "report.html").exists(), "the folder of the configuration file"


def test_an_id_of_the_summary_is_pasted_and_runs_that_case_alone(project: Project) -> None:
    project.break_it(1)
    first = failed(project.run())
    assert len(first) > 2
    for identity in first[:2]:
        assert shlex.split(identity) == [identity], "a shell takes it as it is"
        again = project.run(identity)
        assert failed(again) == [identity]
        assert counts(again) == {"failed": 1}
    assert counts(project.run(ONE)) == {"failed": 1}
    assert counts(project.run("tests/test_own.py", ONE)) == {"failed": 1, "passed": 1}


def test_an_id_that_stops_early_names_all_below_it(project: Project) -> None:
    every = counts(project.run("ssmspec::"))["passed"]
    assert counts(project.run("ssmspec::mine::my-window-fast")) == {"passed": every}


USAGE: list[tuple[tuple[str, ...], str]] = [
    (("ssmspec::yours",), "there is no adapter 'yours'; give one of mine"),
    (
        ("ssmspec::mine::my-window",),
        "ssmspec::mine::my-window: there is no subject 'my-window' (did you mean 'my-window-fast'?)",
    ),
    (("ssmspec::mine::my-window-fast::bf16",), "there is no contract 'bf16'; give one of fp32/sequential"),
    ((ONE.replace("conv.commit", "conv.comit"),), "(did you mean 'conv.commit'?)"),
    ((ONE.replace("w4", "q4"),), "'conv.commit/b2,t7,c6,q4/plain/normal/s0'"),
    ((ONE.replace("conv.commit/b2,t7,c6,w4", "conv.step/b2,c6,w4"),), "my-window-fast has no operation conv.step"),
    ((f"{ONE}::more",), "at most five parts"),
    (("-o", "ssmspec_adapter=", ONE), "needs an adapter: --ssmspec-adapter package.module:factory"),
    (("--ssmspec-device", "gpu"), "'gpu' is not a device; give cpu, cuda, cuda:1 or interpreter"),
    (
        ("--ssmspec-operation", "ssd.scan"),
        "no case was run, because the selected operations have none; mine: no ssd.scan (not declared)",
    ),
    (("--ssmspec-operation", "nothing.*"), "nothing to run"),
    (("--ssmspec-explain", "all"), "must be one of none, quick, full"),
    (
        ("-o", "ssmspec_adapter=my_kernels:adapter copied:adapter"),
        "my_kernels:adapter and copied:adapter are both named 'mine'",
    ),
    (("-o", "ssmspec_adapter=no_such"), "UnknownAdapter: 'no_such' is neither a module in this folder or on PYTHONPATH"),
    (
        ("-o", "ssmspec_adapter=src_broken"),
        "src_broken cannot be imported, because it imports no_such_package: No module named",
    ),
    (
        ("-o", "ssmspec_adapter=my_kernels.adapter"),
        "'my_kernels.adapter' has no factory; give my_kernels:adapter or my_kernels.adapter:adapter",
    ),
    (
        ("--ssmspec-tier", "smok"),
        "--ssmspec-tier is 'smok' (did you mean 'smoke'?); it must be one of smoke, standard",
    ),
    (
        ("-o", "ssmspec_tier=smok"),
        "ssmspec_tier in the configuration file is 'smok' (did you mean 'smoke'?); it must be one of smoke, standard",
    ),
    (("--ssmspec-known", "wrong.toml", "ssmspec::"), "'raeson' is not a key (did you mean 'reason'?)"),
]


@pytest.mark.parametrize(("words", "said"), USAGE)
def test_a_mistake_is_one_of_usage_and_told_in_one_line(project: Project, words: tuple[str, ...], said: str) -> None:
    """An id of nothing names its first wrong part."""
    source = project.pytester.path / "src"
    (source / "copied.py").write_text(KERNELS.format(wrong=1, least=0))
    (source / "src_broken.py").write_text("import no_such_package\n")
    (project.pytester.path / "wrong.toml").write_text('[[known]]\ncase = "*"\nraeson = "r"\n')
    done = project.run(*words)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in done.errlines[0]
    assert "Traceback" not in "\n".join(done.errlines)


def test_the_devices_are_those_of_the_help(project: Project) -> None:
    assert "interpreter (Triton's)" in project.run("--help").stdout.str()


def test_the_rerun_line_of_an_account_works_as_it_is(project: Project) -> None:
    """Also that of the smallest case, which no tier need have."""
    project.break_it(1, least=2)
    done = project.run()
    lines = {line.partition("rerun ")[2].strip() for line in done.outlines if "rerun " in line}
    lines |= {line.strip() for line in done.outlines if line.strip().startswith(("pytest ssmspec::", "python -m pytest ssm"))}
    assert any("t3," in line for line in lines), lines
    for line in list(lines)[:4]:
        words = shlex.split(line)
        assert "pytest" in words[:3]
        assert counts(project.run(*words[words.index("pytest") + 1 :])) == {"failed": 1}


def test_last_failed_failed_first_and_stepwise(project: Project) -> None:
    project.break_it(1, least=3)
    every = failed(project.run())
    total = counts(project.run("--co", "-q")) or {}
    assert "failed" not in total
    last = project.run("--lf")
    assert failed(last) == every
    assert set(counts(last)) <= {"failed", "deselected"}
    first = project.run("--ff", "-v")
    told = [line for line in first.outlines if "ssmspec::" in line and (" FAILED" in line or " PASSED" in line)]
    assert all("FAILED" in line for line in told[: len(every)]), "the failed ones come first"
    step = project.run("--sw")
    assert failed(step) == every[:1]
    project.break_it(0)
    assert counts(project.run("--lf")).get("passed") == len(every)


def test_cases_are_chosen_by_words_and_by_marks(project: Project) -> None:
    every = counts(project.run())["passed"]
    assert counts(project.run("-m", "ssmspec")) == {"passed": every - 1, "deselected": 1}
    assert counts(project.run("-m", "not ssmspec")) == {"passed": 1, "deselected": every - 1}
    assert counts(project.run("-m", "ssmspec(operation='conv.commit', family='wide')"))["passed"] >= 1
    wide = counts(project.run("-k", "conv.commit and wide"))
    assert 0 < wide["passed"] < every
    report = read_report(project.pytester.path / "out" / "part")
    assert report.header.only == f"{wide['passed']} cases that pytest chose", "a report of some cases says so"
    whole = read_report(project.pytester.path / "out")
    assert whole.header.only == "", "it is kept"
    assert len(whole.results) - len(report.results) == every - 1 - wide["passed"]


def test_nothing_is_run_beside_files_that_were_named(project: Project) -> None:
    for words in (("tests/test_own.py",), ("-qq", "."), ("-o", "addopts=tests -q")):
        done = project.run(*words)
        assert done.ret == 0
        assert (
            "ssmspec: no case of my_kernels:adapter was run, because paths were given; add ssmspec:: to run them too"
            in done.outlines
        )
    assert counts(project.run("tests", "ssmspec::"))["passed"] > 5


def test_an_id_that_was_printed_in_a_folder_below_is_taken_there(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.break_it(1)
    monkeypatch.chdir(project.pytester.path / "tests")
    printed = failed(project.run("ssmspec::"))[0]
    assert printed.startswith("../ssmspec::")
    assert counts(project.run(printed)) == {"failed": 1}


def test_workers_take_the_same_ids(project: Project) -> None:
    project.break_it(1, least=2)
    alone = project.run()
    words = ("-n", "2", "-p", "no:timeout")
    spread = project.pytester.runpytest_subprocess(*words)
    assert sorted(failed(spread)) == sorted(failed(alone))
    one = project.pytester.runpytest_subprocess(*words, failed(alone)[0])
    assert failed(one) == failed(alone)[:1]
    assert counts(one) == {"failed": 1}


def test_junit_names_a_case_by_its_id_and_its_class_by_the_subject(project: Project) -> None:
    project.run("--junitxml", "junit.xml")
    tests = ElementTree.parse(project.pytester.path / "junit.xml").getroot().iter("testcase")
    named = {(test.get("classname"), test.get("name")) for test in tests}
    assert ("ssmspec.mine.my-window-fast.fp32/sequential", "conv.commit/b2,t7,c6,w4/plain/normal/s0") in named


def test_two_cases_whose_ids_read_alike_keep_apart() -> None:
    class Job:
        def __init__(self, subject: str) -> None:
            self.group, self.identity = ("a", subject, "fp32/chunked(64)", "o"), "o/b1/plain/f/s0"

    found = [name for name, _ in ids.numbered([Job("x y"), Job("x(y"), Job("é")])]  # type: ignore[list-item]
    assert found == [
        "ssmspec::a::x-y::fp32/chunked-64::o/b1/plain/f/s0",
        "ssmspec::a::x-y::fp32/chunked-64::o/b1/plain/f/s0~2",
        "ssmspec::a::-::fp32/chunked-64::o/b1/plain/f/s0",
    ]


def test_an_operation_whose_limits_admit_no_case_fails(project: Project) -> None:
    source = project.pytester.path / "src" / "my_kernels.py"
    text = source.read_text().replace("NumericContract())", "NumericContract(), Limits({'advanced': ()}))")
    source.write_text(text.replace("import Adapter,", "import Adapter, Limits,"))
    done = project.run("ssmspec::")
    assert counts(done) == {"failed": 1}
    assert failed(done) == ["ssmspec::mine::my-window-fast::fp32/sequential::conv.commit"]
    assert "its limits admit no case, so nothing was run" in done.stdout.str()


def test_an_unused_entry_of_the_known_list_fails_the_whole_suite_only(project: Project) -> None:
    (project.pytester.path / "known.toml").write_text(
        '[[known]]\ncase = "ssd.*"\nreason = "r"\nlink = "l"\nexpires = 2999-01-01\n'
    )
    words = ("--ssmspec-known", "known.toml", "ssmspec::")
    assert project.run(*words).ret == 0, "tier smoke is not all"
    done = project.run(*words, "--ssmspec-tier", "standard")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "it matches no case that was run" in done.stdout.str()


def test_the_summary_of_a_failure_is_one_line_in_ci(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    project.break_it(1, least=3)
    outlines = project.run().outlines
    begin = next(number for number, line in enumerate(outlines) if "short test summary info" in line)
    assert all(line.startswith("FAILED ssmspec::") and " - fail: " in line for line in outlines[begin + 1 : -1])


def test_options_without_an_adapter_are_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own():\n    pass\n")
    pytester.makeini("[pytest]\nssmspec_tier = smoke\n")
    done = pytester.runpytest_inprocess("-p", "no:timeout", "-q")
    assert "ssmspec: ssmspec_tier given, but no adapter, so no case was run; give ssmspec_adapter" in done.outlines
