"""`archetype chat`: what is typed or piped, what is answered, and what a conversation keeps."""

import io
import json
import os
import pty
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from archetype import Engine, LanguageModel
from archetype.apps.cli import main
from archetype.apps.cli.chat import Conversation
from archetype.data.conversations import conversation_rows
from archetype.errors import DataError
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.scripted import byte_tokenizer, scripted

TEMPLATE = ChatTemplate(
    "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no such talk') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    {"eos_token": "</s>"},
)


def prompt(*texts: str, system: str | None = None) -> str:
    """The prompt of a conversation whose texts are the user's and the model's in turn."""
    talk = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    return TEMPLATE.render([*([] if system is None else [{"role": "system", "content": system}]), *talk])


def answering() -> LanguageModel:
    answers = {
        prompt("What is 2 + 2?"): "Four, I say.", prompt("What is 2 + 2?", "Four, I say.", "Really?"): "Yes, really.",
        prompt("Who are you?"): "What do you mean?", prompt("What is 2 + 2?", system="Be brief."): "4",
    }  # fmt: skip
    return scripted(answers, byte_tokenizer(), TEMPLATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "talker"
    answering().save(folder)
    return folder


def test_messages_come_from_a_pipe_and_are_remembered(archetype: Any, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    lines = ["What is 2 + 2?", "", "Really?", f"/save {file}", "/reset", "Who are you?"]
    lines += ["/system Be brief.", "What is 2 + 2?"]
    done = archetype("chat", folder, "--temperature", "0", input="\n".join(lines))
    assert (done.returncode, done.stdout) == (0, "Four, I say.\nYes, really.\nWhat do you mean?\n4\n"), done.stderr
    assert done.stderr.splitlines()[-1] == f"{file}: 4 messages" and "Ctrl-D" not in done.stderr
    (saved,) = map(json.loads, file.read_text().splitlines())
    (row,) = conversation_rows(saved["messages"], TEMPLATE, byte_tokenizer(), "talk")  # what train --chat reads
    assert row.text.startswith("<user>What is 2 + 2?</s><assistant>Four, I say.</s><user>Really?")
    done = archetype("chat", folder, "--temperature", "0", "--system", "Be brief.", input="What is 2 + 2?\n")
    assert done.stdout == "4\n"
    done = archetype("chat", folder, "--temperature", "0", "--json", input="What is 2 + 2?\nReally?\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["message"], one["text"], one["finish_reason"]) for one in answers] == [
        ("What is 2 + 2?", "Four, I say.", "stop"), ("Really?", "Yes, really.", "stop"),
    ]  # fmt: skip


def test_wrong_lines_and_models_are_refused_in_one_line(archetype: Any, folder: Path, tmp_path: Path) -> None:
    for line, message in (
        ("/rest", "/rest: is not a command; did you mean /reset?"), ("/save", "/save: needs a file; name a new file"),
        (f"/save {folder}", f"{folder}: already exists; name a new file"),
        ("bad", "chat template: no such talk; fix the template or the messages"), (b"\xff", "standard input: "),
        ("a" * 9000, "prompt: "),
    ):  # fmt: skip
        done = archetype("chat", folder, input=line)
        assert done.returncode == 2 and f"archetype: {message}" in done.stderr, done.stderr
    assert archetype("chat", folder, "--system", "bad").returncode == 2
    bare = LanguageModel(answering().spec, answering().model, byte_tokenizer())
    bare.save(tmp_path / "bare")
    done = archetype("chat", tmp_path / "bare", input="Hi")
    assert done.returncode == 2 and done.stderr == (
        f"archetype: {tmp_path / 'bare'}: has no chat template, so it is not a chat model; pass "
        "a template with --chat-template, or fine-tune with `archetype train --chat`\n"
    )


def test_a_template_from_a_file_takes_the_place_of_the_models(archetype: Any, folder: Path, tmp_path: Path) -> None:
    bare, file = tmp_path / "bare", tmp_path / "own.jinja"
    LanguageModel(answering().spec, answering().model, byte_tokenizer()).save(bare)
    file.write_text(TEMPLATE.source)
    options = ("--chat-template", file, "--temperature", "0")
    done = archetype("chat", bare, *options, input="What is 2 + 2?\n")
    assert (done.returncode, done.stdout) == (0, "Four, I say.\n"), done.stderr
    assert archetype("generate", bare, "What is 2 + 2?", "--chat", *options).stdout == "Four, I say.\n"
    file.write_text(TEMPLATE.source.replace("</s>", "{{ eos_token }}"))  # which the model's folder names
    assert archetype("chat", folder, *options, input="What is 2 + 2?\n").stdout == "Four, I say.\n"
    done = archetype("generate", bare, "Hi", *options)
    assert done.returncode == 2 and "--chat-template: has no effect without --chat or --input" in done.stderr


def test_an_answer_is_stopped_and_the_conversation_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(lm := answering(), Engine(lm, 1), {"temperature": 0.0}, None)
    shown: list[str] = []

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            shown.append(text)
            if text == "r" and "".join(shown) == "Four":
                signal.raise_signal(signal.SIGINT)
            return len(text)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Screen())
        talk.take("What is 2 + 2?")
    assert "".join(shown).startswith("Four") and not "".join(shown).startswith("Four, I say")
    assert talk.messages[-1]["content"] == "".join(shown).removesuffix("\n")  # what was said stays
    assert signal.getsignal(signal.SIGINT) is before
    talk.take("/reset")
    talk.take("What is 2 + 2?")
    assert talk.messages[-1]["content"] == "Four, I say."
    with pytest.raises(DataError, match="no such talk"):
        talk.take("bad")
    assert len(talk.messages) == 2  # as it was


def test_in_a_terminal_a_mistake_ends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    typed, screen = pty.openpty()
    os.write(typed, b"/rest\n/help\nWhat is 2 + 2?\n\x04")
    with os.fdopen(screen) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "argv", ["archetype", "chat", str(folder), "--temperature", "0"])
        with pytest.raises(SystemExit) as end:
            main.main()
    os.close(typed)
    out, error = capfd.readouterr()
    assert end.value.code == 0 and "Four, I say.\n" in out
    assert "archetype: /rest: is not a command; did you mean /reset?" in error and "Ctrl-D exits" in error
    assert "/save FILE     write the conversation" in error
