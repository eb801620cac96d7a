"""What is written beside trained checkpoints: prompts, the card, the picture of the losses."""

import json
from pathlib import Path

import pytest

from ssmspec_fast.training import card, curves, log, prompts

RUN = {"held_out": 1.25, "corpus": "ab" * 32, "python": "3.11.7", "seconds": 3}


@pytest.fixture
def files() -> dict[str, bytes]:
    one = b"".join(b"def f%d(x):\n    return x + %d\n\n\n" % (i, i) for i in range(40))
    return {"b.py": one, "a.py": one[:300], "c.py": "def f():\n    return 'ä'\n\n\ndef g():\n    pass\n".encode()}


def test_prompts_are_texts_of_their_files_and_end_behind_the_first_line_of_a_function(files: dict[str, bytes]) -> None:
    found = prompts.cut(files, 30)
    assert len({(p.path, p.end) for p in found}) == 30
    for p in found:
        assert files[p.path][: p.end].endswith(p.prompt.encode())
        assert p.prompt.splitlines()[-1].endswith(":")
        assert p.prompt.splitlines()[0].encode() in files[p.path].splitlines()
        assert 0 < len(p.prompt) <= prompts.LENGTH


def test_the_same_files_give_the_same_prompts_and_another_file_moves_no_place(files: dict[str, bytes]) -> None:
    found = prompts.cut(files, 20)
    assert found == prompts.cut(dict(reversed(files.items())), 20)
    more = prompts.cut(files | {"d.py": files["b.py"]}, 20)
    for path in files:
        first = {p.end for p in more if p.path == path}
        assert first <= {p.end for p in found if p.path == path}


def test_short_files_give_what_they_have_before_long_ones_give_more(files: dict[str, bytes]) -> None:
    found = prompts.cut(files, 24)
    of_a = sum(p.path == "a.py" for p in found)
    assert of_a == len(list(prompts.places("a.py", files["a.py"])))


def test_too_few_places_are_an_error(files: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"prompts, but 200 are needed"):
        prompts.cut(files)


def test_prompts_are_read_as_they_were_written(files: dict[str, bytes], tmp_path: Path) -> None:
    file = prompts.write(tmp_path, files, 10)
    assert prompts.read(file) == prompts.cut(files, 10)
    assert all(json.loads(line)["prompt"] for line in file.read_text().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, steps in (("mamba2", 4000), ("mamba2-drafter", 10), ("mamba2-drafter", 400)):
        log.add(tmp_path, RUN | {"name": name, "curve": [[1, 5.5], [steps, 1.5]]})
    (tmp_path / "mamba2").mkdir()
    (tmp_path / "mamba2" / "model.safetensors").write_bytes(bytes(12345))
    return tmp_path


def test_the_card_names_every_checkpoint_its_data_licence_losses_and_limits(folder: Path) -> None:
    text = card.write(folder).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["mamba2", "mamba2-drafter-05", "mamba2-drafter-25", "mamba2-drafter"]
    assert "12,345" in rows[0]
    assert "| 1.5000 | 1.2500 |" in rows[0]
    assert "missing" in rows[1]
    assert "| 20 |" in rows[1]  # 5 % of the run that counts, the last one
    assert "1.2500" not in rows[1]
    for part in ("## Data", "## Licence", "PSF License", "## Recipe", "## Limits", "ab" * 32, "3.11.7", curves.FILE):
        assert part in text


def test_the_picture_shows_every_run_and_is_the_same_again(folder: Path) -> None:
    first = curves.draw(folder).read_text()
    assert "mamba2-drafter, held out 1.250" in first
    assert curves.draw(folder).read_text() == first
    log.add(folder, RUN | {"name": "mamba2", "curve": [[1, 5.5], [4000, 1.2]]})
    assert curves.draw(folder).read_text() != first


def test_a_folder_without_a_log_says_how_to_train(tmp_path: Path) -> None:
    for make in (card.write, curves.draw):
        with pytest.raises(FileNotFoundError, match=r"python -m ssmspec_fast\.training --out"):
            make(tmp_path)
