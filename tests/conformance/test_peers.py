"""Kernels of others are reached through their sources alone, or refused with what is missing; tox judges them."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.adapters.peer_kernels import sources as peers
from conformance.errors import AdapterUnavailable
from conformance.run.known import read_known
from conformance.run.load import WHEELS, load
from conformance.run.process import Process
from ssmspec_ref.errors import Unsupported

INTERPRETED = {"fla": "pip install flash-linear-attention", "mamba_ssm": "pip install mamba-ssm"} | {
    name: f"python -m conformance.adapters.unpack {WHEELS[name]} --into FOLDER" for name in ("vllm", "sglang")
}


@pytest.mark.parametrize("name", INTERPRETED)
def test_a_peer_that_is_not_installed_says_how_to_have_it(name: str) -> None:
    with pytest.raises(AdapterUnavailable, match=f"to test it: {INTERPRETED[name]}"):
        Process(name, device="interpreter")


@pytest.mark.parametrize(
    ("name", "said"), [("mlx_lm", r"pip install 'mlx\[cpu\]' mlx-lm"), ("causal_conv1d", "pip install causal-conv1d")]
)
def test_a_peer_on_a_cpu_that_is_not_installed_says_how_to_have_it(name: str, said: str) -> None:
    with pytest.raises(AdapterUnavailable, match=f"to test it: {said}"):
        Process(name)


def test_references_that_are_not_there_say_so_on_a_cpu_and_kernels_on_a_gpu() -> None:
    with pytest.raises(AdapterUnavailable, match=f"unpack {WHEELS['flashinfer']} --into FOLDER"):
        Process("flashinfer")
    with pytest.raises(AdapterUnavailable, match=r"CUDA kernels cannot be imported here .* omit --device"):
        load("flashinfer", device="cuda")


def test_a_peer_on_a_cpu_without_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(Unsupported, match="--device interpreter"):
        peers.placed("cpu")


def test_a_package_is_imported_without_its_own_initialisation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would ask for an extension is left out; what lies in it is found."""
    (tmp_path / "peer_with_extension").mkdir()
    (tmp_path / "peer_with_extension" / "__init__.py").write_text("import an_extension_in_cuda")
    (tmp_path / "peer_with_extension" / "kernels.py").write_text("ANSWER = 42")
    monkeypatch.syspath_prepend(str(tmp_path))
    peers.bare("peer_with_extension")
    try:
        assert peers.module("peer_with_extension.kernels").ANSWER == 42
    finally:
        for name in [name for name in sys.modules if name.startswith("peer_with_extension")]:
            del sys.modules[name]


def test_an_autotuned_kernel_is_given_its_smallest_tiles_alone() -> None:
    """Flags beside the tiles do not count; of equal tiles the first stands."""
    given: dict[str, Any] = {}

    def begin(self: Any, fn: Any, names: Any, configs: Any, key: str) -> None:
        given.update(fn=fn, configs=configs, key=key)

    tiles = [{"M": 128, "N": 64}, {"M": 16, "N": 32, "even": False}, {"N": 16, "M": 32}]
    configs = [SimpleNamespace(kwargs=each) for each in tiles]
    peers._with_the_smallest(begin)(None, "kernel", [], configs, key="rows")
    assert given == {"fn": "kernel", "configs": configs[1:2], "key": "rows"}
    peers._with_the_smallest(begin)(None, "kernel", [], None, key="")
    assert given["configs"] == []


def test_versions_are_those_of_what_is_installed() -> None:
    assert peers.version_of("no-such-peer", "numpy").count(".") == 2
    assert peers.version_of("no-such-peer") == "sources"


PINS = (Path(__file__).parents[2] / "tox.ini").read_text()


@pytest.mark.parametrize("wheel", WHEELS.values())
def test_the_wheel_that_is_named_is_the_one_that_tox_judges(wheel: str) -> None:
    assert f"conformance.adapters.unpack {wheel} --into" in PINS


def a_case(identity: str, subject: str) -> tuple[str, str, str]:
    return subject, "fp32/sequential", identity


KNOWN = {
    "mamba_ssm": (
        [
            a_case("ssd.step/b1,g1,h1,p1,n1/D=off/gentle/s0", "x"),
            a_case("ssd.step/b2,g2,h6/z=on,dt_bias=off/normal/s3", "x"),
            a_case("mamba3.scan/b1,t1,g1,h1,p16,n16,r1,f4/plain/gentle/s11", "mamba3_siso_combined"),
            a_case("layer.prefill/b1,t1,g1,h1,p16,n16,r1,f4/kind=mamba3/gentle/s0", "Mamba3"),
            a_case("layer.prefill/b3,t17,g2,h4,p16,n16,r1,f4/kind=mamba3/gentle/s0", "Mamba3"),
        ],
        [
            a_case("ssd.step/b2,g2,h6,p5,n4/plain/gentle/s0", "x"),
            a_case("ssd.scan/b2,t7,g2,h6,p5,n4/D=off/gentle/s0", "x"),
            a_case("mamba3.scan/b1,t1,g1,h1,p16,n16,r1,f4/plain/gentle/s11", "mamba3_siso_combined, angles in fp32"),
            a_case("layer.prefill/b1,t1,g1,h1,p16,n16,r1,f4/kind=mamba3/gentle/s0", "Mamba3, angles in fp32"),
            a_case("layer.prefill/b3,t17,g2,h4,p16,n16,r1,f4/kind=mamba3/normal/s2", "Mamba3"),
        ],
    ),
    "sglang": (
        [
            a_case("ssd.verify_tree/b1,t1,g1,h1,p1,n1/dt_bias=off/gentle/s2", "selective_state_update"),
            a_case("ssd.step/b1,g1,h1,p1,n1/D=off/gentle/s0", "selective_state_update"),
            a_case("speculate.tree/b1,t1,j1/D=off,kind=mamba2/gentle/s0", "a layer's speculative decoding"),
        ],
        [
            a_case("ssd.scan/b1,t1,g1,h1,p1,n1/D=off/gentle/s0", "mamba_chunk_scan_combined"),
            a_case("speculate.tree/b1,t1,j1/kind=mamba2/gentle/s0", "a layer's speculative decoding"),
            a_case("ssd.step/b1,g1,h1,p1,n1/plain/gentle/s0", "selective_state_update"),
        ],
    ),
    "vllm": (
        [a_case("delta.step/b1,g1,h1,k2,v1/gate=channel/gentle/s0", "fused_recurrent_kda, one value to two keys")],
        [a_case("delta.step/b2,g3,h3,k16,v16/gate=channel/gentle/s0", "fused_recurrent_kda")],
    ),
    "mlx_lm": (
        [
            a_case("layer.prefill/b1,t1,g2,h2,p1,n1,w2/kind=mamba2/gentle/s11", "mamba2, a norm of each group"),
            a_case("layer.right_pad/b1,t2,j1,g1,h1,p2,n1,w2/kind=mamba2/gentle/s0", "nemotron_h"),
            a_case("layer.left_pad/b1,t2,j1,g1,h1,k1,v1,w2/conv_bias=off,kind=delta/gentle/s0", "olmo_hybrid"),
            a_case("layer.right_pad/b1,t2,j1,d2,n1,r1,w2/kind=mamba1/gentle/s0", "mamba"),
            a_case("layer.left_pad/b1,t2,j1,d2,n1,r1,w2/kind=mamba1/gentle/s0", "jamba"),
            a_case("ssd.scan_masked/b3,t33,g1,h1,p1,n1/live=tail/gentle/s0", "ssm_update, a padded prompt in steps of 3"),
        ],
        [
            a_case("layer.left_pad/b1,t2,j1,g1,h1,p2,n1,w2/kind=mamba2/gentle/s0", "nemotron_h"),
            a_case("layer.prefill/b1,t1,g2,h2,p1,n1,w2/norm_groups=one,kind=mamba2/gentle/s11", "mamba2"),
            a_case("layer.prefill/b1,t2,d2,n1,r1,w2/kind=mamba1/gentle/s0", "mamba"),
            a_case("ssd.scan_masked/b3,t33,g1,h1,p1,n1/live=tail/gentle/s0", "ssm_update"),
        ],
    ),
    "flashinfer": (
        [
            a_case("ssd.step/b2,g1,h2,p1,n1/plain/gentle/s0", "x"),
            a_case("ssd.step/b17,g2,h6,p5,n4/plain/gentle/s0", "x"),
            a_case("ssd.step/b1,g2,h6,p5,n4/plain/gentle/s0", "x"),
        ],
        [a_case("ssd.step/b1,g1,h2,p64,n128/plain/gentle/s0", "x"), a_case("selective.step/b2,d6,n4/plain/gentle/s0", "x")],
    ),
}


@pytest.mark.parametrize("adapter", KNOWN)
def test_the_known_failures_cover_what_is_described_and_no_right_case(adapter: str) -> None:
    known, (wrong, right) = read_known(adapter), KNOWN[adapter]
    assert all(known.entry(*case) for case in wrong)
    assert not any(known.entry(*case) for case in right)
    assert {known.entry(*case) for case in wrong} == set(known.entries)
    found = (Path(__file__).parents[2] / "docs" / "found.md").read_text()
    assert all(f'id="{entry.link.partition("#")[2]}"' in found for entry in known.entries)
