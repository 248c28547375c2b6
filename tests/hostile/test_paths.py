"""What is no file, wherever a verb takes a path: refused in one line, in time; nothing is waited for or replaced."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.families import preset
from archetype.families.llama import llama
from archetype.families.vit import vit
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.weights import randomize
from tests.hostile.test_generated import PROGRAM
from tests.unit.studies.small import trained

WORDS = "the cat sat on the mat, and the other cat sat there. " * 20
NEW = ("--to", "new")
STEP = ("--steps", "1", "--batch-size", "2", "--sequence-length", "8", *NEW)
TRAIN = ("train", "--spec", "spec.yaml", *STEP)
COMPARE = ("--store", "store")
# every place of a verb for a path, by verb and parameter; {} stands for it
PLACES: dict[str, tuple[str, ...]] = {
    "demo text": ("demo", "--text", "{}", "--minutes", "0.001", *NEW),
    "show source": ("show", "{}"),
    "diff first": ("diff", "{}", "llama-tiny"),
    "set source": ("set", "{}", "final_norm=layer"),
    "set to": ("set", "spec.yaml", "final_norm=layer", "--to", "{}"),
    "check part": ("check", "{}"),
    "any extension": ("list", "--extension", "{}"),
    "cost sources": ("cost", "{}"),
    "cost compare": ("cost", "spec.yaml", "--compare", "{}"),
    "draw source": ("draw", "{}"),
    "draw other": ("draw", "spec.yaml", "{}"),
    "draw to": ("draw", "spec.yaml", "--to", "{}"),
    "tokenizer train text": ("tokenizer", "train", "--kind", "characters", "--text", "{}", *NEW),
    "tokenizer train to": ("tokenizer", "train", "--kind", "characters", "--text", "text.txt", "--to", "{}"),
    "tokenizer show folder": ("tokenizer", "show", "{}"),
    "tokenizer show text": ("tokenizer", "show", "run", "--text", "{}"),
    "tokenizer encode folder": ("tokenizer", "encode", "{}", "hello"),
    "tokenizer decode folder": ("tokenizer", "decode", "{}", "1"),
    "train recipe": ("train", "--recipe", "{}", *STEP),
    "train to": (*TRAIN[:-1], "{}", "--text", "text.txt"),
    "train resume": ("train", "--resume", "{}"),
    "train start_from": ("train", "--from", "{}", "--text", "text.txt", *STEP),
    "train spec": ("train", "--spec", "{}", "--text", "text.txt", *STEP),
    "train texts": (*TRAIN, "{}"),
    "train text": (*TRAIN, "--text", "{}"),
    "train source": ("train", "--spec", "t5-tiny", *STEP, "--source", "{}", "--target", "text.txt"),
    "train target": ("train", "--spec", "t5-tiny", *STEP, "--source", "text.txt", "--target", "{}"),
    "train images": ("train", "--spec", "vit.yaml", *STEP[:4], *NEW, "--images", "{}"),
    "train labelled": (*TRAIN, "--labelled", "{}"),
    "train labelled_tokens": (*TRAIN, "--labelled-tokens", "{}"),
    "train chat": (*TRAIN, "--chat", "{}"),
    "train preferences": ("train", "--from", "run", *STEP, "--preferences", "{}"),
    "train tokenizer": (*TRAIN, "--text", "text.txt", "--tokenizer", "{}"),
    "train add_tokens": ("train", "--from", "run", "--text", "text.txt", *STEP, "--add-tokens", "{}"),
    "runs folder": ("runs", "{}"),
    "plot folders": ("plot", "{}"),
    "report folder": ("report", "{}"),
    "generate model": ("generate", "{}", "hello"),
    "generate json_schema": ("generate", "run", "hello", "--json-schema", "{}", "--max-new-tokens", "1"),
    "generate lark": ("generate", "run", "hello", "--lark", "{}", "--max-new-tokens", "1"),
    "generate draft": ("generate", "run", "hello", "--draft", "{}", "--max-new-tokens", "1"),
    "generate input": ("generate", "run", "--input", "{}", "--output", "new.jsonl", "--max-new-tokens", "1"),
    "generate output": ("generate", "run", "--input", "prompts.jsonl", "--output", "{}", "--max-new-tokens", "1"),
    "evaluate model": ("evaluate", "{}", "--text", "text.txt"),
    "evaluate text": ("evaluate", "run", "--text", "{}"),
    "evaluate data": ("evaluate", "vit", "--data", "{}"),
    "evaluate source": ("evaluate", "pair", "--source", "{}", "--target", "text.txt"),
    "evaluate target": ("evaluate", "pair", "--source", "text.txt", "--target", "{}"),
    "translate model": ("translate", "{}", "hello"),
    "translate input": ("translate", "pair", "--input", "{}", "--output", "new.txt"),
    "translate output": ("translate", "pair", "--input", "lines.txt", "--output", "{}"),
    "fill model": ("fill", "{}", "hello"),
    "embed model": ("embed", "{}", "hello"),
    "classify model": ("classify", "{}", "hello"),
    "classify inputs": ("classify", "vit", "{}"),
    "inspect model": ("inspect", "{}", "hello"),
    "inspect to": ("inspect", "run", "hello", "--to", "{}"),
    "serve models": ("serve", "{}", "--port", "1"),
    "serve chat_template": ("serve", "run", "--port", "1", "--chat-template", "{}"),
    "compare plan file": ("compare", "plan", "{}", *COMPARE),
    "compare status store": ("compare", "status", "experiment.json", "--store", "{}"),
    "compare run file": ("compare", "run", "{}", *COMPARE),
    "compare status file": ("compare", "status", "{}", *COMPARE),
    "compare report file": ("compare", "report", "{}", *COMPARE),
    "compare extend report_file": ("compare", "extend", "{}", *COMPARE),
    "compare calibrate file": ("compare", "calibrate", "--file", "{}", *COMPARE),
    "compare claim folder": ("compare", "claim", "1", "{}", *COMPARE),
    "compare all folder": ("compare", "all", "{}", *COMPARE),
    "compare search file": ("compare", "search", "{}", *COMPARE),
    "bench model": ("bench", "generate", "{}"),
    "import model": ("import", "{}", *NEW),
    "import to": ("import", "hf", "--to", "{}"),
    "export model": ("export", "{}", *NEW),
    "export to": ("export", "run", "--to", "{}"),
    "parity model": ("parity", "{}"),
}  # fmt: skip


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 3 * 2**30)


# what may be where a file is expected
KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "pipe.txt": os.mkfifo,
    "pipe.json": os.mkfifo,
    "pipe.npz": os.mkfifo,
    "pipe.jsonl": os.mkfifo,
    "folder.txt": Path.mkdir,
    "full.yaml": lambda path: [path.mkdir(), os.mkfifo(path / "a.txt"), os.mkfifo(path / "spec.yaml")],
    "config": lambda path: [path.mkdir(), os.mkfifo(path / "config.json")],
    "pictures": lambda path: [path.mkdir(), (path / "a").mkdir(), (path / "b").mkdir(), os.mkfifo(path / "a" / "a.png"),
        os.mkfifo(path / "b" / "b.png")],
    "itself.yaml": lambda path: path.symlink_to(path),
    "itself": lambda path: [path.mkdir(), (path / "inner").symlink_to(path)],
    "nowhere.json": lambda path: path.symlink_to("nowhere"),
    "socket.txt": listen,
    "sparse.txt": sparse,
    "sparse.yaml": sparse,
}  # fmt: skip
# and what is read for ever, or cannot be a name; not where something is written
STRANGE = (
    "/dev/zero",
    "/dev/full",
    "/dev/null",
    "/proc/self/mem",
    "/proc/kmsg",
    "text.txt/inner",
    "x" * 5000,
    "a\nb",
    "",
)
WRITES = (" to", " output", " store")


def setup(place: Path) -> Path:
    """Models of each sort, and sound files."""
    spec = llama(num_layers=1, d_model=8, num_heads=2, d_ff=8, vocab_size=300, context_length=16)
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", WORDS, 280))
    lm.save(place / "run")
    export(lm, place / "hf")
    pair = preset("t5-tiny")
    LanguageModel(pair, randomize(build(pair)), train_tokenizer("bytes", "", None)).save(place / "pair")
    pictures = vit(num_layers=1, d_model=8, num_heads=2, patch_size=2, image_size=4, num_classes=3)
    LanguageModel(pictures, randomize(build(pictures))).save(place / "vit")
    (place / "spec.yaml").write_text(archetype.spec.to_yaml(spec))
    (place / "vit.yaml").write_text(archetype.spec.to_yaml(pictures))
    np.savez(place / "images.npz", images=np.zeros((5, 3, 4, 4), np.float32), labels=np.arange(5))
    (place / "text.txt").write_text(WORDS)
    (place / "lines.txt").write_text("the cat\nthe mat\n")
    (place / "prompts.jsonl").write_text('{"prompt": "the cat"}\n')
    (place / "experiment.json").write_text(json.dumps({"title": "Width", "parts": [trained()]}))
    return place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return setup(tmp_path_factory.mktemp("place"))


def fault(place: Path, name: str, kind: str) -> str | None:
    """What is wrong with a verb's answer; None where the path is refused or used."""
    folder = place / "hostile"
    folder.mkdir()
    path = str(folder / kind) if kind in KINDS else kind
    if kind in KINDS:
        KINDS[kind](Path(path))
    before = None if kind not in KINDS else os.lstat(path)
    command = [part.replace("{}", path) for part in PLACES[name]]
    answer = forked.run(["python", "-c", PROGRAM, *command], {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}, cwd=place)
    after = os.lstat(path) if before is not None else None
    shutil.rmtree(folder)
    for new in ("new", "new.jsonl", "new.txt", "store"):
        shutil.rmtree(place / new, ignore_errors=True)
        if (place / new).is_file():
            (place / new).unlink()
    lines = answer.stderr.decode(errors="replace").splitlines()
    lines = [line for line in lines if not line.startswith(("device:", "tokenizing"))]
    if before is not None and after is not None and not name.endswith(WRITES) and after.st_ino != before.st_ino:
        return f"{name} {kind}: was replaced"
    if answer.returncode in (0, 1) and "Traceback" not in "\n".join(lines):
        return None
    if answer.returncode == 2 and len(lines) == 1 and len(lines[0]) <= 300:
        return None
    return f"{name} {kind}: status {answer.returncode}: {lines[-2:]}"


# a text may have gigabytes, and is read bit by bit
CASES = [
    (name, kind) for name in PLACES for kind in (*KINDS, *STRANGE)
    if (kind in KINDS or not name.endswith(WRITES)) and not (name.startswith("train text") and "sparse" in kind)
]  # fmt: skip


def test_some_of_what_is_no_file_is_refused(place: Path) -> None:
    assert [said for name, kind in CASES[::130] if (said := fault(place, name, kind)) is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_file_is_refused_wherever_a_path_is_taken(name: str, place: Path) -> None:
    kinds = [kind for one, kind in CASES if one == name]
    assert [said for kind in kinds if (said := fault(place, name, kind)) is not None] == []
