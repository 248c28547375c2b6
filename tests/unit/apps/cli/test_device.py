"""Every verb with --device: the words that it takes, the refusal of a device that is not there, and its first line."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.apps.cli import main
from archetype.apps.cli.output import device_name
from archetype.apps.serve import server
from archetype.families.bert import bert
from archetype.families.original_transformer import transformer
from archetype.models.build import build
from archetype.runs import peaks
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.examples import every
from tests.helpers.weights import randomize

OF_HARDWARE = "cost"  # its --device names hardware whose times are predicted


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the command line with its words, those of groups too."""
    if not hasattr(command, "list_commands"):
        yield names, command
        return
    context = typer.Context(command)
    for name in main.VERBS if not names else command.list_commands(context):
        yield from commands(command.get_command(context, name), *names, name)


@cache
def device_options() -> dict[str, Any]:
    """The option --device of every command that has one."""
    return {
        " ".join(names): option
        for names, command in commands(typer.main.get_command(main.app))
        for option in command.params
        if "--device" in option.opts and names != (OF_HARDWARE,)
    }


@cache
def model(kind: str) -> LanguageModel:
    """A tiny model of a kind, with a tokenizer."""
    tokenizer = train_tokenizer("byte_bpe", "the cat sat on the mat", 280) if kind in ("translator", "reader") else None
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 8, "num_heads": 2, "vocab_size": 260, "context_length": 24}
    specs: dict[str, Callable[[], spec.ModelSpec]] = {
        "decoder": lambda: archetype.load_spec("llama-tiny"),
        "talker": lambda: archetype.load_spec("llama-tiny"),
        "encoder": lambda: bert(**sizes),
        "classifier": lambda: bert(**sizes).replace(head=spec.ClassificationHead(num_classes=2)),
        "reader": lambda: bert(**sizes | {"vocab_size": 280}, head=spec.SpanHead()),
        "translator": lambda: transformer(**sizes | {"vocab_size": 280, "d_ff": 12}),
    }
    tiny = specs[kind]()
    template = ChatTemplate("{{ messages }}", {}) if kind == "talker" else None
    lm = LanguageModel(tiny, build(tiny), tokenizer or train_tokenizer("bytes", "a", None), template=template)
    randomize(lm.model)
    return lm


VERBS = {  # the arguments that each is called with, and the model that it loads
    "train": ("--text FILE --tokenizer bytes --spec llama-tiny --steps 1 --to RUN", "decoder"),
    "generate": ("MODEL the --max-new-tokens 2", "decoder"),
    "chat": ("MODEL", "talker"),
    "evaluate": ("MODEL --text FILE", "decoder"),
    "translate": ("MODEL cat --num-beams 1 --max-extra-tokens 1", "translator"),
    "fill": ("MODEL a[MASK]", "encoder"),
    "embed": ("MODEL a", "encoder"),
    "classify": ("MODEL a", "classifier"),
    "answer": ("MODEL the? cat", "reader"),
    "inspect": ("MODEL abc", "decoder"),
    "serve": ("FOLDER --port 0", "decoder"),
    "check": ("full", "decoder"),
    "bench": ("prefill llama-tiny --prompt 4 --repeat 1", "decoder"),
}


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The status of a command, and what it prints on standard output and on standard error."""
    monkeypatch.setattr(sys, "argv", ["archetype", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert isinstance(end.value.code, int)
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize("verb", device_options())
def test_every_verb_takes_the_same_words(verb: str) -> None:
    assert (device_options()[verb].default, device_options()[verb].help) == (
        "auto", "auto (a GPU if there is one), cpu, cuda, cuda:N or mps.",
    )  # fmt: skip


@pytest.mark.parametrize("verb", device_options())
def test_a_device_that_is_not_there_is_refused_before_a_verb_begins(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name, cause in (
        ("cuda:1", "this machine has no cuda:1"), ("mps", "this machine has no mps"),
        ("gpu", "there is no device 'gpu'"), ("meta", "meta tensors have no data to compute with"),
    ):  # fmt: skip
        refused = call(monkeypatch, capsys, *verb.split(), "--device", name)
        assert refused == (2, "", f"archetype: device: {cause}; use cpu or cuda:0\n")


@pytest.fixture
def devices_asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of the models that verbs load, which are tiny ones; a server only says that it has started."""
    devices: list[str] = []

    def load(folder: Path, dtype: str | None = None, device: str = "?", **options: Any) -> LanguageModel:
        devices.append(device)
        return model(str(folder))

    monkeypatch.setattr("archetype.api.functions.load", load)
    monkeypatch.setattr(server, "serve", lambda app, listening, grace, tell: (listening.close(), tell()))
    monkeypatch.setattr(peaks, "SIDE", 64)
    monkeypatch.setattr(peaks, "READ_BYTES", 2**16)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # what `check` compiles for seconds is none of this
    return devices


@pytest.mark.parametrize("verb", every(4, device_options()))
def test_the_first_line_names_the_device(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], devices_asked: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Where there is no GPU, auto is the processor; a program that asks for JSON gets nothing else."""
    assert verb in VERBS, "say here how this verb is called"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))  # nothing is typed
    arguments, kind = VERBS[verb]
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 40)
    places = {"MODEL": kind, "FILE": str(tmp_path / "text.txt"), "FOLDER": str(tmp_path)}
    for options in ([], ["--device", "cpu"], *([["--json"]] if verb not in ("chat", "serve", "train") else [])):
        places["RUN"] = str(tmp_path / "_".join(["run", *options]))
        words = [places.get(word, word) for word in arguments.split()]
        status, out, error = call(monkeypatch, capsys, verb, *words, *options)
        assert status == 0
        if options == ["--json"]:
            assert json.loads(out) and error == ""
        else:
            assert device_name(torch.device("cpu")) in error.splitlines()[0], error
            assert "device" not in out
    assert set(devices_asked) <= {"auto", "cpu"} and "?" not in devices_asked


def test_a_loaded_model_goes_where_auto_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def resolve(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("archetype.api.loading.resolve_device", resolve)
    archetype.export(model("decoder"), tmp_path / "hf")
    assert archetype.load(tmp_path / "hf").model.device == torch.device("cpu")
    assert archetype.load(tmp_path / "hf", device="cpu").model.device == torch.device("cpu")
    assert asked[-2:] == ["auto", "cpu"]


def test_peers_are_timed_on_the_processor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    refused = call(monkeypatch, capsys, "bench", "decode", "llama-tiny", "--peer")
    assert refused == (2, "", "archetype: --peer: the comparison runs on the CPU only; add --device cpu\n")
