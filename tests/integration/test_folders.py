"""Folders that go to other programs and come from them, on the command line."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Command
from tests.integration.test_bad_input import refused


@pytest.fixture(scope="module")
def exported(archetype: Command, run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared run as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    done = archetype("export", run_directory, "--to", folder)
    assert done.stdout == f"wrote {folder} as LlamaForCausalLM, reloaded and compared\n", done.stderr
    return folder


def test_both_libraries_agree(archetype: Command, exported: Path) -> None:
    done = archetype("parity", exported, "--json")
    assert done.returncode == 0, done.stderr
    exact, half = json.loads(done.stdout)["dtypes"]
    assert exact["agrees"] and exact["first"] is None and exact["top1"] == 1.0
    assert half["agrees"] and half["dtype"] == "bfloat16"
    shown = archetype("parity", exported, "--dtype", "float32")
    assert "blocks.1.feedforward.down" in shown.stdout and "the same likeliest at 100.0%" in shown.stdout
    assert shown.stderr == ""


def test_a_run_directory_has_no_other_reading(archetype: Command, run_directory: Path) -> None:
    message = refused(archetype, "parity", run_directory)
    assert message == f"{run_directory}: is no Hugging Face folder; export it first"


def test_a_model_that_was_made_to_answer_does(archetype: Command, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chat"
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    plain = archetype("generate", folder, "system: Brief.\nuser: Hello\nassistant:", "--max-new-tokens", "12", "--json")
    expected = json.loads(plain.stdout)["texts"][0]
    talk = ("generate", folder, "Hello", "--chat", "--system", "Brief.", "--max-new-tokens", "12")
    assert archetype(*talk).stdout == expected + "\n"
    (chat,) = json.loads(archetype(*talk, "--json").stdout)["chats"]
    assert chat == {
        "messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hello"}],
        "text": expected,
    }


def test_a_base_model_is_told_to_be_one(archetype: Command, exported: Path) -> None:
    assert refused(archetype, "generate", exported, "Hello", "--chat") == (
        "chat template: the folder has none: this model continues texts and was not made to answer; "
        "generate without chat"
    )
    assert refused(archetype, "generate", exported, "Hello", "--system", "x") == (
        "--system: belongs to a conversation; add --chat"
    )


def test_a_file_for_llama_cpp(archetype: Command, run_directory: Path, tmp_path: Path) -> None:
    done = archetype("export", run_directory, "--to", tmp_path / "out", "--format", "gguf")
    assert done.stdout == f"wrote {tmp_path / 'out'} as GGUF of llama, reloaded and compared\n", done.stderr
    assert (tmp_path / "out" / "model.gguf").read_bytes()[:4] == b"GGUF"
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
