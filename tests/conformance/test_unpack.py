"""Out of a wheel come the parts that an adapter runs, and nothing else; what is not as expected is refused by name."""

from pathlib import Path
from zipfile import ZipFile

import pytest
from typer import Typer
from typer.testing import CliRunner

from conformance.adapters import unpack
from conformance.adapters.peer_kernels import jitted, stub_modules
from conformance.errors import UnpackError

OPS = "vllm/model_executor/layers/mamba/ops/mamba_ssm.py"
RULE = "vllm/third_party/flash_linear_attention/ops/op.py"
RECORD = "vllm-0.33.0.dist-info/METADATA"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with two parts and an extension, which stands for what pip downloads."""
    path = tmp_path / "vllm-0.33.0-cp38-abi3-linux.whl"
    with ZipFile(path, "w") as archive:
        for name in (OPS, RULE, RECORD, "vllm/__init__.py", "vllm/_C.abi3.so"):
            archive.writestr(name, f"# {name}")
    monkeypatch.setattr(unpack, "download", lambda requirement, folder: path)
    return path


def test_the_parts_of_an_adapter_are_written_and_the_rest_is_left(wheel: Path, tmp_path: Path) -> None:
    into = tmp_path / "peer"
    assert unpack.unpack("vllm==0.33.0", into) == [OPS, RULE, RECORD]
    assert sorted(str(f.relative_to(into)) for f in into.rglob("*") if f.is_file()) == sorted([OPS, RULE, RECORD])
    assert (into / OPS).read_text() == f"# {OPS}"


def test_a_folder_that_has_the_version_is_left_alone_and_one_with_another_is_refused(wheel: Path, tmp_path: Path) -> None:
    into = tmp_path / "peer"
    unpack.unpack("vllm==0.33.0", into)
    wheel.unlink()
    assert unpack.unpack("vllm==0.33.0", into) == []
    with pytest.raises(UnpackError, match=r"holds vllm-0\.33\.0\.dist-info; give another folder"):
        unpack.unpack("vllm==0.32.0", into)


def test_a_folder_takes_several_projects_each_in_one_version(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, other = tmp_path / "peer", tmp_path / "einops-0.8.2-py3-none-any.whl"
    unpack.unpack("vllm==0.33.0", into)
    with ZipFile(other, "w") as archive:
        for name in ("einops/__init__.py", "einops-0.8.2.dist-info/METADATA"):
            archive.writestr(name, "")
    monkeypatch.setattr(unpack, "download", lambda requirement, folder: other)
    assert unpack.unpack("einops==0.8.2", into) == ["einops/__init__.py", "einops-0.8.2.dist-info/METADATA"]
    assert unpack.unpack("vllm==0.33.0", into) == []
    with pytest.raises(UnpackError, match=r"holds einops-0\.8\.2\.dist-info; give another folder"):
        unpack.unpack("einops==0.8.1", into)


def test_a_source_is_not_built_without_what_building_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(UnpackError, match="mamba-ssm has no wheel, and building one needs torch: install that first"):
        unpack.unpack("mamba-ssm==2.3.2.post1", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_a_part_is_refused_and_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel, "w") as archive:
        archive.writestr(OPS, "")
        archive.writestr(RECORD, "")
    with pytest.raises(UnpackError, match=r"has no vllm/third_party/flash_linear_attention/\*; its adapter"):
        unpack.unpack("vllm==0.33.0", tmp_path / "peer")
    assert not (tmp_path / "peer").exists()


def test_a_folder_that_lacks_a_part_is_filled_again(wheel: Path, tmp_path: Path) -> None:
    """As one is that an older suite filled, whose adapter needed less."""
    into = tmp_path / "peer"
    unpack.unpack("vllm==0.33.0", into)
    (into / RULE).unlink()
    assert RULE in unpack.unpack("vllm==0.33.0", into)
    assert (into / RULE).exists()


def test_an_extraction_cut_short_is_done_again(wheel: Path, tmp_path: Path) -> None:
    """The record of the version is written last."""
    into = tmp_path / "peer"
    unpack.extract(wheel, [OPS], into)
    assert unpack.unpack("vllm==0.33.0", into)[-1] == RECORD


@pytest.mark.parametrize("requirement", ["vllm", "numpy==2.0.0", "vllm>=0.33"])
def test_what_is_no_wheel_of_a_peer_is_refused(requirement: str, tmp_path: Path) -> None:
    with pytest.raises(UnpackError, match=" or ".join(f"{name}==VERSION" for name in unpack.PARTS)):
        unpack.unpack(requirement, tmp_path)


def test_what_pip_cannot_have_is_told_in_its_words(tmp_path: Path) -> None:
    app = Typer()
    app.command()(unpack.main)
    done = CliRunner().invoke(app, ["vllm==0.0.0.dev0", "--into", str(tmp_path)])
    assert done.exit_code == 2
    assert "pip cannot download vllm==0.0.0.dev0: ERROR: No matching distribution found" in done.output


def test_a_name_that_a_stand_in_lacks_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    stub_modules.module("a_peer", known=1)
    stub_modules.module("a_peer.rest", answer=42)
    from a_peer.rest import answer  # type: ignore[import-not-found]

    assert answer == 42
    with pytest.raises(ImportError, match="cannot import name 'other'"):
        from a_peer.rest import other  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"a_peer\.kernels"):
        import a_peer.kernels  # type: ignore[import-not-found]  # noqa: F401


def test_a_name_that_kernels_do_not_have_is_not_bound() -> None:
    with pytest.raises(ImportError, match="has no exp2; its kernels cannot be interpreted"):
        jitted.bind("json", "exp2")
