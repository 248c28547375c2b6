"""Every verb that reads a folder, on every tiny preset in 8 and 4 bits: done, or refused in one line."""

import shutil
import sys
from pathlib import Path

import pytest
import typer

from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.errors import ArchetypeError
from archetype.families import preset, presets
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize

TINY = [name for name in presets() if name.endswith("-tiny")]
QUICK = ["bert-tiny", *(name for name in TINY if name != "bert-tiny")]
NEW = ("--to", "new")
VERBS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "run", "hello", "--max-new-tokens", "2"),
    "fill": ("fill", "run", "hel[MASK]"),
    "embed": ("embed", "run", "hello"),
    "classify": ("classify", "run", "hello"),
    "inspect": ("inspect", "run", "hello"),
    "evaluate": ("evaluate", "run", "--text", "text.txt"),
    "translate": ("translate", "run", "hello"),
    "cost": ("cost", "run"),
    "show": ("show", "run"),
    "tokenizer": ("tokenizer", "encode", "run", "hello"),
    "import": ("import", "run", *NEW),
    "export": ("export", "run", *NEW),
    "gguf": ("export", "run", "--format", "gguf", *NEW),
    "train": ("train", "--from", "run", "--text", "text.txt", "--steps", "1", "--sequence-length", "8", *NEW),
}


@pytest.mark.filterwarnings("ignore::archetype.errors.Notice")
@pytest.mark.parametrize("name", every(50, QUICK))
def test_a_model_of_few_bits_is_read_by_every_verb(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["archetype"])
    Path("text.txt").write_text("hello there, this is a text. " * 40)
    spec, done = preset(name), set()
    tokenizer = None if spec.reads_images else train_tokenizer("bytes", "", None)
    for weights in ("int8", "int4"):
        lm = LanguageModel(spec, randomize(build(spec)), tokenizer)
        try:
            lm.pack(weights)
        except ArchetypeError:  # rows that no group of numbers divides
            continue
        shutil.rmtree("run", ignore_errors=True)
        lm.save("run")
        for verb, command in VERBS.items():
            shutil.rmtree("new", ignore_errors=True)
            with case(name, weights, verb):
                try:
                    app(list(command), standalone_mode=False)
                    done.add(verb)
                except ArchetypeError as error:
                    assert "\n" not in str(error)
                except (typer.Exit, typer.TyperException, SystemExit):
                    pass
    assert {"cost", "show", "import"} <= done or not done
