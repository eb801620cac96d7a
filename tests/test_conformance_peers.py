"""Kernels of others are reached through their sources alone, or refused with what is missing; tox judges them."""

import sys
from pathlib import Path

import pytest

from conformance.adapters import peers
from conformance.errors import AdapterUnavailable
from conformance.known import read_known
from conformance.process import Process
from ssmspec_ref.errors import Unsupported


@pytest.mark.parametrize(("name", "how"), [("fla", "flash-linear-attention"), ("mamba_ssm", "mamba-ssm")])
def test_a_peer_that_is_not_installed_says_how_to_install_it(name: str, how: str) -> None:
    with pytest.raises(AdapterUnavailable, match=f"to judge it: pip install {how}"):
        Process(name, device="interpreter")


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


def test_versions_are_those_of_what_is_installed() -> None:
    assert peers.version_of("no-such-peer", "numpy").count(".") == 2
    assert peers.version_of("no-such-peer") == "sources"


def test_the_known_failures_cover_what_is_described_and_no_right_case() -> None:
    entry = read_known("mamba_ssm").entry
    assert entry("x", "c", "ssd.step/b1,g1,h1,p1,n1/D=off/gentle/s0")
    assert entry("x", "c", "ssd.step/b2,g2,h6,p5,n4/z=on,dt_bias=off/normal/s3")
    assert not entry("x", "c", "ssd.step/b2,g2,h6,p5,n4/plain/gentle/s0")
    assert not entry("x", "c", "ssd.scan/b2,t7,g2,h6,p5,n4/D=off/gentle/s0")
    found = (Path(__file__).parent.parent / "docs" / "found.md").read_text()
    assert all(f'id="{e.link.partition("#")[2]}"' in found for e in read_known("mamba_ssm").entries)
