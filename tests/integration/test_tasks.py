"""Training on pairs, hidden tokens and images, and the verbs of those models, as a user calls them."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.integration.conftest import Command
from tests.integration.test_bad_input import refused

SHORT = ("--steps", "12", "--batch-size", "8", "--warmup-steps", "2", "--set", "evaluate_every=6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of lines, and pictures."""
    path, drawn = tmp_path_factory.mktemp("data"), random.Random(0)
    lines = [" ".join(drawn.choices(["one", "two", "three", "four"], k=drawn.randint(1, 5))) for _ in range(60)]
    (path / "a.txt").write_text("\n".join(lines) + "\n")
    (path / "b.txt").write_text("\n".join(line.upper() for line in lines) + "\n")
    numbers = np.random.default_rng(0)
    np.savez(path / "images.npz", images=numbers.random((40, 8, 8)), labels=numbers.integers(10, size=40))
    return path


def trained(archetype: Command, *arguments: str | Path) -> dict[str, object]:
    done = archetype("train", *SHORT, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["step"] == 12
    return summary["last"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def translator(archetype: Command, folder: Path) -> Path:
    """A tiny Transformer of pairs."""
    files = ("--source", folder / "a.txt", "--target", folder / "b.txt", "--vocab-size", "290")
    spec = folder / "transformer.yaml"
    assert archetype("set", "transformer-tiny", "vocab_size=290", "--to", spec).returncode == 0
    last = trained(archetype, "--spec", spec, *files, "--to", folder / "translator")
    assert last["validation_bits_per_byte"] is None and last["validation_count"] > 0  # type: ignore[operator]
    return folder / "translator"


@pytest.fixture(scope="module")
def encoder(archetype: Command, folder: Path) -> Path:
    """A tiny BERT of bytes."""
    spec = folder / "bert.yaml"
    assert archetype("set", "bert-tiny", "vocab_size=257", "--to", spec).returncode == 0
    flags = ("--tokenizer", "bytes", "--sequence-length", "16")
    trained(archetype, "--spec", spec, "--text", folder / "a.txt", *flags, "--to", folder / "encoder")
    return folder / "encoder"


def test_translate_answers_every_line(archetype: Command, translator: Path) -> None:
    texts = ["one two", "", "three"]
    translations = json.loads(archetype("translate", translator, *texts, "--max-extra-tokens", "5", "--json").stdout)[
        "targets"
    ]
    assert [row["source"] for row in translations] == texts
    assert translations[1]["target"] == ""
    piped = archetype("translate", translator, "--max-extra-tokens", "5", input="one two\n\nthree\n")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.split("\n") == [*(" ".join(row["target"].splitlines()) for row in translations), ""]


def test_translate_refuses_in_one_line(archetype: Command, translator: Path, encoder: Path) -> None:
    assert (
        refused(archetype, "translate", translator, "one", "--num-beams", "0")
        == "num_beams: 0 is too small; use at least 1"
    )
    message = refused(archetype, "translate", translator, "one", "two " * 200)
    assert message.startswith("text 2: has ") and message.endswith("; split it into sentences")
    assert refused(archetype, "translate", encoder, "one") == (
        "model: a model of kind encoder with head masked_language_model cannot do this; "
        "it can fill, unmask or embed texts"
    )
    done = archetype("translate", translator, input=b"one\n\xff", text=False)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("archetype: standard input: is not UTF-8 at byte 4 (line 2); ")
    assert done.stderr.count(b"\n") == 1


def test_fill_and_embed(archetype: Command, encoder: Path) -> None:
    masks = json.loads(archetype("fill", encoder, "o[MASK]e [MASK]", "--top", "3", "--json").stdout)["masks"]
    assert [len(guesses) for guesses in masks] == [3, 3]
    assert all(0 < guess["probability"] < 1 for guesses in masks for guess in guesses)
    told = archetype("fill", encoder, "o[MASK]e").stdout
    assert told.startswith("1: ") and told.count("%") == 5
    texts = ["one", "[/b] two"]
    rows = json.loads(archetype("embed", encoder, *texts, "--json").stdout)["vectors"]
    assert [row["text"] for row in rows] == texts
    first, second = (np.array(row["vector"]) for row in rows)
    assert first @ first == pytest.approx(1.0, abs=1e-5)
    table = archetype("embed", encoder, *texts)
    assert table.returncode == 0, table.stderr
    assert "[/b] two" in table.stdout and f"{first @ second:.3f}" in table.stdout


def test_fill_and_embed_refuse_in_one_line(archetype: Command, encoder: Path) -> None:
    expected = "text: has no [MASK]; write [MASK] in place of each token to predict"
    assert refused(archetype, "fill", encoder, "nothing hidden") == expected
    message = refused(archetype, "embed", encoder, "one", "")
    assert message.startswith("text 2: has 0 tokens, but the model accepts 1 to ")
    message = refused(archetype, "generate", encoder, "a")  # by unmasking
    assert message.startswith("prompt: has 1 tokens, which with 256 new tokens exceed the model's 128")


def test_images_are_learned_and_a_run_of_them_goes_on(archetype: Command, folder: Path) -> None:
    flags = ("--spec", "vit-tiny", "--images", folder / "images.npz", "--to", folder / "vision")
    last = trained(archetype, *flags)
    assert last["validation_count"] == 4
    assert json.loads(archetype("train", "--resume", folder / "vision", "--json").stdout)["step"] == 12
    assert not (folder / "vision" / "tokenizer").exists()
    rows = json.loads(archetype("classify", folder / "vision", folder / "images.npz", "--json").stdout)["images"]
    assert [sum(row["probabilities"]) for row in rows] == pytest.approx([1.0] * 40)
    assert all(row["class"] == int(np.argmax(row["probabilities"])) for row in rows)
    told = archetype("classify", folder / "vision", folder / "images.npz").stdout.splitlines()
    assert [line.split()[0] for line in told] == [str(row["class"]) for row in rows]
    np.savez(folder / "large.npz", images=np.zeros((2, 9, 9)))
    assert refused(archetype, "classify", folder / "vision", folder / "large.npz") == (
        f"{folder / 'large.npz'}: the images are 1 x 9 x 9, but the model takes 1 x 8 x 8; change one of them"
    )
    assert refused(archetype, "embed", folder / "vision", "a") == (
        "model: a model of kind vision_encoder with head classification cannot do this; it can classify images"
    )


def test_data_that_do_not_fit_are_one_line_and_leave_nothing(archetype: Command, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("one\n")
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    to = ("--to", tmp_path / "run")
    pairs = ("--source", folder / "a.txt", "--target")
    assert refused(archetype, "train", "--spec", "transformer-tiny", *pairs, tmp_path / "short.txt", *to) == (
        "data.source, data.target: the source has 60 lines, but the target has 1; "
        "line i of the target must translate line i of the source"
    )
    assert refused(archetype, "train", "--spec", "vit-tiny", "--images", tmp_path / "bad.npz", *to) == (
        f"{tmp_path / 'bad.npz'}: is not an .npz file of plain numbers; write it with numpy.savez"
    )
    assert refused(archetype, "train", "--spec", "llama-tiny", "--images", folder / "images.npz", *to) == (
        "objective: no objective suits a model of kind decoder with head language_model and data of kind images; "
        "use a model that reads data of kind images, such as --spec vit-tiny, or other data"
    )
    message = refused(archetype, "train", *pairs, folder / "b.txt", "--text", folder / "a.txt", *to)
    assert message == "--source: cannot be combined with --text; use exactly one of them"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.npz", "short.txt"]
