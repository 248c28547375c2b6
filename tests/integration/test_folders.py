"""Folders that go to other programs and come from them, on the command line."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from archetype import spec
from archetype.convert.source import open_spec
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
    assert "blocks.1.feedforward.down" in shown.stdout and "same most likely token at 100.0%" in shown.stdout
    assert shown.stderr == ""


def test_a_run_directory_has_no_other_reading(archetype: Command, run_directory: Path) -> None:
    message = refused(archetype, "parity", run_directory)
    assert message == f"{run_directory}: is not a Hugging Face folder; export it first"


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
        "chat template: the model has no chat template (a base model, not trained to chat); generate without chat"
    )
    assert refused(archetype, "generate", exported, "Hello", "--system", "x") == (
        "--system: has no effect without --chat; add --chat, or remove --system"
    )


def test_a_pickle_is_imported_only_where_that_is_asked_for(archetype: Command, exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    shutil.copytree(exported, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    said = refused(archetype, "import", folder, "--to", tmp_path / "run")
    assert "pytorch_model.bin is a pickle: `archetype import --allow-pickle` reads it" in said
    done = archetype("import", folder, "--to", tmp_path / "run", "--allow-pickle")
    assert done.returncode == 0, done.stderr


def test_a_file_for_llama_cpp(archetype: Command, run_directory: Path, tmp_path: Path) -> None:
    done = archetype("export", run_directory, "--to", tmp_path / "out", "--format", "gguf")
    assert done.stdout == f"wrote {tmp_path / 'out'} as GGUF of llama, reloaded and compared\n", done.stderr
    assert (tmp_path / "out" / "model.gguf").read_bytes()[:4] == b"GGUF"
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.fixture
def unknown(exported: Path, tmp_path: Path) -> Path:
    """The same folder under the name of a family that nobody knows."""
    folder = tmp_path / "unknown"
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "mystery", "depth_of_thought": 7}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_family_that_is_not_known_is_read_and_said_so(archetype: Command, exported: Path, unknown: Path) -> None:
    done, known = archetype("show", unknown), archetype("show", exported)
    assert done.returncode == 0 and done.stdout == known.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"archetype: {unknown}: mystery is not a registered family; inferred from ")
    assert "keys not understood: depth_of_thought=7" in line
    reading = json.loads(archetype("show", unknown, "--explain", "--json").stdout)["reading"]
    assert reading["unknown"] == ["depth_of_thought=7"] and "rope_parameters" in reading["recognized"]
    table = archetype("show", unknown, "--explain").stdout
    assert "\n  not understood  depth_of_thought=7\n" in table
    assert (
        "\n  assumed         interleaved=false (or true; no file states which features are rotated together)\n" in table
    )
    # proved where another test has loaded a folder of these keys, whose outcome is kept
    assert re.search(r"\n  (not proved      sizes and costs depend on nothing|proved          agrees with )", table)
    known_here = "llama is a registered family: each key is used, or known to have no effect\n"
    assert archetype("show", exported, "--explain").stdout == known_here


def test_what_nothing_proves_is_refused_with_what_is_assumed(archetype: Command, exported: Path, unknown: Path) -> None:
    prompt, file = ("the king", "--max-new-tokens", "12", "--temperature", "0"), unknown / "config.json"
    file.write_text(file.read_text().replace("LlamaForCausalLM", "MysteryForCausalLM"))
    refused = archetype("generate", unknown, *prompt)
    assert refused.returncode == 2 and refused.stdout == ""
    notice, error = refused.stderr.splitlines()
    assert "assumed: parallel=false (or true; " in notice and "interleaved=false (or true; " in notice
    assert "cannot verify how mystery was imported: transformers 5." in error
    assert error.endswith("correct them with --set NAME=VALUE, and import with --accept-unproved")
    accepted = archetype("generate", unknown, *prompt, "--accept-unproved")
    assert accepted.stdout == archetype("generate", exported, *prompt).stdout
    assert archetype("cost", unknown).returncode == 0


def test_what_the_files_do_not_say_is_set(archetype: Command, exported: Path, unknown: Path, tmp_path: Path) -> None:
    prompt = ("the king", "--max-new-tokens", "12", "--temperature", "0")
    expected = archetype("generate", exported, *prompt).stdout
    done = archetype("generate", unknown, *prompt)  # proved by the class that config.json names
    assert done.stdout == expected and "agrees with transformers" in done.stderr
    run = tmp_path / "run"
    done = archetype("import", unknown, "--to", run, "--set", "layers[*].mixer.position.interleaved=true")
    assert done.returncode == 0, done.stderr
    changed = [("layers[*].mixer.position.interleaved", False, True)]
    assert spec.differences(open_spec(exported), open_spec(run)) == changed
    verdict = archetype("parity", exported, "--dtype", "float32", "--set", "layers[*].mixer.position.theta=100.0")
    assert verdict.returncode == 1 and "first above 1e-05: blocks.0.mixer.o" in verdict.stdout


def test_a_part_that_is_missing_is_named(archetype: Command, unknown: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(unknown / "model.safetensors")
    name = "model.layers.0.self_attn.gate_bias"
    save_file(tensors | {name: tensors["model.norm.weight"].clone()}, unknown / "model.safetensors")
    assert refused(archetype, "generate", unknown, "a") == (
        f"{unknown}/config.json: model.layers.0: needs a gate bias without a gate, which is not supported; "
        "mystery models cannot be read"
    )
