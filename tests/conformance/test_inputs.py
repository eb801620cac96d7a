"""Every wrong value on the command line is one line with what came and what is needed; exit code 2; nothing is written."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import main
from conformance.device import driver
from ssmspec_ref.options.typed import Typed

PLAIN = "generate --checkpoint mamba2 --prompt x"
WRONG = {
    # words that are not there, and values of options that are missing
    "confrom": "Did you mean 'conform'?",
    "conform runn": "Did you mean 'run'?",
    "conform list --operation delta.setp": "(did you mean 'delta.step'?)",
    "conform explain ssd.scann/b1/plain/gentle/s0": "(did you mean 'ssd.scan'?)",
    "conform explain ssd.scan/b1/softplus=of/gentle/s0": "(did you mean 'off'?)",
    "conform explain ssd.scan/b1/softpluss=off/gentle/s0": "(did you mean 'softplus'?)",
    "conform explain ssd.scan/b1/plain/gentel/s0": "(did you mean 'gentle'?)",
    "conform run my_kernels": "'my_kernels' is not expected; give --adapter my_kernels (ssmspec conform run --help)",
    "conform list all": "'all' is not expected; give --adapter all (ssmspec conform list --help)",
    "generate --prompt x y": "'y' is not expected; ssmspec generate takes options only",
    "generate --drafter --prompt x": "--drafter needs a value, but the option --prompt follows it (ssmspec generate --help)",
    "conform run --report --in-process": "--report needs a value, but the option --in-process follows it",
    "conform run --adapter": "Option '--adapter' requires an argument",
    "conform run --teir smoke": "(did you mean '--tier'?)",
    "bench --widnows 3": "--windows",
    "conform run --adapter referense --in-process": "(did you mean 'reference'?)",
    "conform run --adapter reference --in-process --subject 'ssd chunkd'": "(did you mean 'ssd chunked'?)",
    "conform run --adapter reference --in-process --operation ssd.scna": "(did you mean 'ssd.scan'?)",
    "conform list --operation ssd.stop": "UnknownCase: 'ssd.stop' is not an operation",
    "conform explain ssd.scan/b2,t4/plain/calm/s0": "ssd.scan has no family calm",
    # numbers
    "conform run --jobs 0": "--jobs is 0; it must be 1 or more. Parallel processes",
    "conform run --jobs many": "--jobs is 'many'; it must be a whole number, 1 or more. Parallel processes",
    "conform run --timeout soon": "--timeout is 'soon'; it must be a number, 0.1 or more",
    "conform engine": "--engine is missing: vllm, llama.cpp, mlx, transformers, ssmspec, http:URL",
    "conform run --timeout inf": "--timeout is inf; it must be at most 86400",
    "conform run --max-failures 0": "--max-failures is 0; it must be 1 or more",
    "conform run --max-failures -1": "--max-failures is -1; it must be 1 or more",
    "conform run --max-failures two": "--max-failures is 'two'; it must be a whole number, 1 or more",
    "conform engine --engine ssmspec --max-failures 0": "--max-failures is 0; it must be 1 or more",
    "conform check --timeout 1e9": "--timeout is 1e9; it must be at most 86400",
    "conform engine --engine ssmspec --timeout inf": "--timeout is inf; it must be at most 86400",
    "conform run --timeout nan": "--timeout is nan; it must be at most 86400",
    "conform run --memory 0": "--memory is 0; it must be 0.1 or more. Memory limit in GiB",
    "conform compare F F --factor nan": "--factor is nan; it must be 1 or more",
    "fuzz --examples 0": "--examples is 0; it must be 1 or more",
    "fuzz --examples -1": "--examples is -1; it must be 1 or more",
    "fuzz --minutes nan": "--minutes is nan; it must be 0.001 or more",
    "fuzz --parts -1": "--parts is -1; it must be 1 or more",
    "bench --seconds nan": "--seconds is nan; it must be 0 or more",
    "bench --seconds -1": "--seconds is -1; it must be 0 or more",
    "traffic --length 9999999": "--length is 9999999; it must be at most 1000000. Random tokens per prompt",
    "traffic --slots 0": "--slots is 0; it must be 1 or more",
    "traffic --requests 0": "--requests is 0; it must be 1 or more",
    "traffic --rate nan": "--rate is nan; it must be more than 0",
    "traffic --policy clearing --wait nan": "--wait is nan; it must be 0 or more",
    "traffic --tiny --policy clearing --capacity 9": "--capacity is 9, more than --slots, 8",
    "generate --max-tokens -1": "--max-tokens is -1; it must be 0 or more",
    "generate --memory 0": "--memory is 0; it must be 0.0001 or more. Memory limit in GiB",
    "generate --memory 8000000000": "--memory is 8000000000 GiB, more than any machine has; it is in GiB, not",
    "serve --memory 8000000000": "it is in GiB, not in bytes: give 7.45",
    "conform run --adapter reference --memory 8000000000": "it is in GiB, not in bytes: give 7.45",
    "serve --drain -1": "--drain is -1; it must be 0 or more",
    "serve --most-bytes 0": "--most-bytes is 0; it must be 1 or more",
    "serve --port 99999": "--port is 99999; it must be at most 65535",
    "gates traces --traces F --drafts 0": "--drafts is 0; it must be 1 or more",
    # words out of a list
    "conform run --tier smok": "--tier is 'smok' (did you mean 'smoke'?); it must be one of smoke, standard, deep",
    "conform init a.py --level genrator": "--level is 'genrator' (did you mean 'generator'?); it must be one of operations",
    "conform run --shard 5of4": "--shard is '5of4'; it must be IofN with 1 <= I <= N, such as 2of4",
    "conform run --shard 1/4": "such as 2of4 (I/N is no longer read: fuzz counted it from 0, conform run from 1)",
    "conform engine --engine ssmspec --tier long": "--tier is 'long'; it must be one of smoke, standard, deep",
    "conform known F --expires soon": "--expires is 'soon'; it must be a day such as",
    "conform run --output-format xml": "--output-format is 'xml'; it must be one of text, json, github, sarif",
    "conform engine --engine ssmspec --family mamba": "--family is 'mamba' (did you mean 'mamba2'?)",
    "conform engine --engine ssmspec --control lama": "--control is 'lama' (did you mean 'llama'?)",
    "conform engine --engine ssmspec --dtype fp32": "--dtype is 'fp32' (did you mean 'float32'?)",
    "conform engine --engine ssmspec --stored fp33": "--stored is 'fp33'; it must be one of float32, bfloat16",
    "conform engine --engine ssmspec --configuration plan": "--configuration is 'plan' (did you mean 'plain'?)",
    "conform run --adapter reference --case ssd.stp/b1/plain/gentle/s0": "(did you mean 'ssd.step'?)",
    "conform run --adapter reference --case ssd.scan/b1": "is not a case id",
    "conform run --adapter reference --case ssd.scan/q1/plain/gentle/s0": "ssd.scan has no axis q; its axes are b2, t7, g2,",
    "conform run --adapter reference --case conv.step/b1/plain/gentle/s0": "conv.step has no family gentle; its families are",
    "conform run --adapter reference --case ssd.step/g2,h3/plain/gentle/s0": "ssd.step has no case of these sizes together",
    "conform run --adapter reference --case ssd.step/b0,g1,h1,p1,n1/plain/gentle/s0": "ssd.step/b0,",
    "conform run --adapter reference --case ssd.step/b1,b2,g1,h1,p1,n1/plain/gentle/s0": "ssd.step/b1,b2,",
    "conform run --adapter reference --explain some": "--explain is 'some'; it must be one of none, quick, full",
    "conform run --adapter reference --explain ful": "--explain is 'ful' (did you mean 'full'?)",
    "conform run --adapter reference --in-process --device gpu": "give cpu, cuda, cuda:1 or interpreter",
    "conform run --adapter reference --device cuda": "--device cuda needs a GPU, and none is visible",
    "fuzz --profile cii": "--profile is 'cii' (did you mean 'ci'?); it must be one of ci, gpu, campaign",
    "fuzz --shard 0/4": "--shard is '0/4'; it must be IofN with 1 <= I <= N",
    "fuzz --shard 0of4": "--shard is '0of4'; it must be IofN with 1 <= I <= N",
    "bench --method join": "--method is 'join' (did you mean 'joint'?)",
    "bench --model mamba2-2.7": "--model is 'mamba2-2.7' (did you mean 'mamba2-2.7b'?)",
    "bench --batches 0": "--batches is '0'; it must be whole numbers of 1 or more",
    "traffic --tiny --policy clear": "--policy is 'clear' (did you mean 'clearing'?); it must be one of continuous, clearing",
    "serve --checkpoint mamba2 --acceptance greedy": "--acceptance is 'greedy'; it must be one of naive, multi-step",
    "gates check --only count": "--only is 'count' (did you mean 'counted'?)",
    "gates traces --traces F --tokens words": "--tokens is 'words' (did you mean 'word'?)",
    "generate --checkpoint mamba --prompt x": "mamba does not exist (did you mean 'mamba2'?)",
    "generate --checkpoint mamba2 --drafter ngrams --prompt x": "ngrams does not exist (did you mean 'ngram'?)",
    f"{PLAIN} --device mps": "device is 'mps'; give cpu, cuda",
    f"{PLAIN} --device cpu:3": "device is 'cpu:3'; give cpu, cuda",
    # names
    "conform init class.py": "class.py is not the name of a Python module; give one such as my_class.py",
    "conform init numpy.py": "numpy.py would hide the module numpy that is installed; give one such as my_numpy.py",
    "conform init sys.py": "sys.py would hide the module sys that is installed",
    "conform init my-adapter.py": "give one such as my_adapter.py",
    "conform init mine.txt": "mine.txt is not the name of a Python module",
    "conform init [red]/my-kernel.py": "[red]/my-kernel.py is not the name of a Python module",
    "conform init new.py --level generator --recurrence delta": "--recurrence is delta",
    "conform init new.py --level triton --recurrence delta": (
        "--recurrence is delta, but --level triton has a starter for ssd only"
    ),
    "serve --checkpoint mamba2 --name ' '": "--name is empty; give a value",
    "serve --checkpoint mamba2 --api-key ''": "--api-key is empty",
    "gates why ''": "the word after why is empty; give a value",
    "gates why reference ''": "the word after reference is empty",
    "''": "the word after ssmspec is empty",
    "conform init ''": "the word after init is empty",
    "conform report ' '": "the word after report is empty",
    "conform run --adapter reference --report ''": "--report is empty; give a value",
    "conform run --adapter reference --report=": "--report is empty; give a value",
    "conform run --adapter reference --report ' '": "--report is empty; give a value",
    "conform run --adapter reference --subject ''": "--subject is empty",
    "fuzz --folder ''": "--folder is empty",
    "generate --checkpoint mamba2 --prompt ''": "a prompt is missing or empty; give --prompt TEXT",
    # a program that ends at once; engines that do: tests/conformance/engines/test_engine_judge.py
    "conform check --program false": 'false gave no answer to {"do": "declare"}: the program ended with exit code 1',
    # files
    "conform init no/x.py": "no is not a folder; create it first",
    "conform run --adapter reference --dump a.txt": "--dump a.txt cannot be a folder: a.txt is a file",
    "conform run --adapter reference --report a.txt": "--report a.txt cannot be a folder: a.txt is a file",
    "conform run --adapter reference --known a.tx": "--known a.tx does not exist (did you mean 'a.txt'?)",
    "conform run --adapter reference --known a.txt": "KnownListError: a.txt cannot be read",
    "conform run --adapter reference --known /dev/zero": "--known /dev/zero is not a regular file, and may never end",
    "conform engine --engine ssmspec --report /dev/null": "--report /dev/null is not a regular file, and would be replaced",
    "generate --prompts /dev/zero": "--prompts /dev/zero is not a regular file, and may never end",
    "conform report /dev/zero": "/dev/zero cannot be read (it is not a regular file)",
    "conform report no": "no does not exist",
    "conform compare no no": "no does not exist",
    "traffic --tiny --out F": "--out F is a folder; give a file, such as F/out",
    "bench --tiny --out no/x.json": "--out no/x.json cannot be written: no is not a folder; create it first",
    "conform engine --engine ssmspec --report F": "--report F is a folder",
    "conform engine --engine ssmspec --report a.txt/x.json": "--report a.txt cannot be a folder: a.txt is a file",
    "generate --prompts no": "--prompts no does not exist",
    f"{PLAIN} --out no/x": "--out no/x cannot be written: no is not a folder",
    "gates table --write --page no/x.md": "--page no/x.md does not exist",
    "gates page --out a.txt": "--out a.txt cannot be a folder: a.txt is a file",
    "gates keep --history F": "--history F is a folder",
    "gates traces --traces no": "--traces no is not a folder",
    "fuzz --folder a.txt": "--folder a.txt cannot be a folder",
    "fuzz --operation ssd.scna": "--operation is 'ssd.scna' (did you mean 'ssd.scan'?)",
    "fuzz --operation ssd.scan": "--operation needs an adapter that has it; give --adapter",
    "fuzz --adapter nothere": "UnknownAdapter: 'nothere' is neither a module",
    "conform run --adapter no_such": "'no_such' is neither a module in this folder or on PYTHONPATH",
    "conform run --adapter no_such_package.module:adapter": "needs a module 'no_such_package', which is not found",
    "conform run --adapter conformance.cases:adapter --in-process": "has no adapter",
    "conform run --adapter conformance.run.again:command --in-process": "return a ssmspec_ref.contract.Adapter",
    "conform run --adapter reference --in-process --subject nobody": (
        "nothing to run: there is no subject 'nobody'; the subjects are"
    ),
    "conform run --adapter docs.examples.my_kernels:adapter --in-process --operation ssd.stop": (
        "the subjects are ssd; they have ssd.step"
    ),
    "fuzz --database foo://x": "foo://x is not a database",
    # engines that cannot start
    "conform engine --engine vlm": "(did you mean 'vllm'?)",
    "conform engine --engine program:nothere": "program:nothere cannot be started: nothere: No such file or directory",
    "conform engine --engine program:F": "cannot be started: F: Is a directory",
    "conform engine --engine 'program:python nothere.py'": "nothere.py: No such file or directory",
    "conform engine --engine program:": "program: is empty",
    "conform engine --engine http:http://127.0.0.1:9": "127.0.0.1:9 gave no answer to /get_model_info",
    "conform engine --engine http:http://127.0.0.1:abc": "is not an address",
    "conform engine --engine ssmspec --python no/python": "--python no/python cannot be started",
    # options that would be ignored
    "conform run --adapter reference --ray-parts 2": "--ray-parts 2 has no use: no cluster is named",
    "conform run --adapter reference --ray-cpus 2": "--ray-cpus 2.0 has no use: no cluster is named",
    "conform run --adapter reference --ray local --jobs 2": "--jobs 2 has no use: --ray runs each shard as a task",
    "conform run --adapter reference --in-process --memory 1": "--memory 1.0 has no use: --in-process",
    "conform run --adapter reference --in-process --timeout 1": "--timeout 1.0 has no use: --in-process",
    "conform run --adapter reference --resume": "--resume finds no run in conformance-report",
    "conform run --adapter reference --keep-passed": "--keep-passed has no use: no run is continued; omit it",
    "conform run --adapter reference --adapter reference": "--adapter reference is given twice",
    "conform run --adapter reference --case ssd.step/b1/plain/gentle/s0 --shard 2of2": "--shard 2of2 has no use: --case",
    "conform run --adapter reference --before x": "--before x has no use",
    "conform run --adapter reference -x --max-failures 2": "--max-failures 2 has no use: -x stops at the first failure",
    "conform run --adapter reference -x --ray local": "-x has no use: a shard that runs on a cluster is not stopped",
    "conform engine --engine ssmspec -x --max-failures 2": (
        "--max-failures 2 has no use: -x stops at the first failure; omit it, or omit -x"
    ),
    "conform engine --engine ssmspec --model no/such": "--model no/such is not a folder; give the folder of a checkpoint",
    "conform run": "nothing to test: give --adapter MODULE, --program COMMAND, or --adapter reference",
    "conform check": "nothing to test: give --adapter MODULE, --program COMMAND, or --adapter reference",
    "conform engine --engine ssmspec --drafter F": "--drafter F has no use: the small checkpoints have drafters",
    "conform engine --engine ssmspec --plain http:http://x": "--plain http:http://x has no use",
    "conform engine --engine ssmspec --stored bfloat16 --model F": "--stored bfloat16 has no use",
    "conform engine --engine program:a --python x": "--python x has no use: the command of program: starts the engine",
    "conform engine --engine http:http://a --memory 1": "--memory 1.0 has no use: a server",
    "fuzz --ray-gpus 1": "--ray-gpus 1.0 has no use: no cluster is named",
    "fuzz --adapter x --operation ssd.step --coverage": "--coverage has no use: --operation runs in one process",
    f"{PLAIN} --drafts 3": "--drafts 3 has no use: no drafter was given; omit it, or give --drafter",
    f"{PLAIN} --top-k 3 --seed 1": "--top-k 3, --seed 1 have no use: at temperature 0 nothing is sampled; omit them",
    f"{PLAIN} --top-p 0.5": "--top-p 0.5 has no use: at temperature 0",
    f"{PLAIN} --acceptance naive": "--acceptance naive has no use: no drafter was given",
    f"{PLAIN} --drafter mamba2-drafter --tree 2,1 --drafts 3": "--drafts 3 has no use: --tree says what is drafted",
    f"{PLAIN} --min-tokens 5 --max-tokens 2": "--min-tokens is 5, more than --max-tokens, 2",
    f"{PLAIN} --stop ''": "--stop is empty",
    "generate --demo --json": "--json has no use: --demo completes one prompt greedily",
    "generate --demo --out x --temperature 1 --compare": "--temperature 1.0, --out x, --compare have no use: --demo",
    "generate --demo --prompt a --prompt b": "--demo completes one prompt, but 2 were given",
    "traffic --tiny --drafts 3": "--drafts 3 has no use: --tiny decodes plainly",
    "traffic --tiny --capacity 3": "--capacity 3 has no use: --policy is continuous; omit it, or give --policy clearing",
    "bench --tiny --papers": "--papers has no use: --tiny chooses its own steps",
    "serve --checkpoint mamba2 --rows 2": "--rows 2 has no use: no drafter was given",
    "gates table --page x.md": "--page x.md has no use: without --write",
    "gates keep --history h --reason x": "--reason x has no use: it explains --accept",
}


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[Any, list[str]]]:
    """The exit code and the lines of a command, in a folder with the file a.txt and the folder F. Nothing else is written."""
    (tmp_path / "F").mkdir()
    (tmp_path / "a.txt").write_text("x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(driver, "gpus", list)

    def run(line: str) -> tuple[Any, list[str]]:
        monkeypatch.setattr(sys, "argv", ["ssmspec", *shlex.split(line)])
        if "--engine ssmspec" in line:
            monkeypatch.setattr("conformance.engines.cli.judged", lambda *given: pytest.fail("an engine was started"))
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == ["F", "a.txt"]
        assert said.out == ""
        return ended.value.code, [one for one in said.err.splitlines() if not one.startswith("loading ")]

    return run


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_input_is_one_line_and_nothing_is_written(told: Callable[[str], tuple[Any, list[str]]], line: str) -> None:
    code, lines = told(line)
    assert (code, len(lines)) == (2, 1), lines
    assert WRONG[line] in lines[0]


def test_a_cluster_that_is_not_there_is_named(told: Callable[[str], tuple[Any, list[str]]]) -> None:
    pytest.importorskip("ray")
    code, lines = told("conform run --adapter reference --operation ssd.step --ray nothere:1")
    assert code == 2
    assert lines[-1].startswith("ClusterUnavailable: no Ray cluster answers at nothere:1")


def test_a_planted_check_that_ignores_is_seen(
    told: Callable[[str], tuple[Any, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Typed, "unused", lambda *given: None)
    _, lines = told("conform run --ray-parts 2")
    assert "has no use" not in lines[0]


def test_a_planted_folder_that_is_left_is_seen(
    told: Callable[[str], tuple[Any, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("property_tests.campaigns.campaign.remove", lambda files, folders: None)
    with pytest.raises(AssertionError, match="fuzz-report"):
        told("fuzz --database foo://x")
