"""Every mistake gets exit 2 and one line with place, cause and remedy, and nothing half-written stays."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from tests.helpers import forked
from tests.integration.conftest import Command


def refused(archetype: Command, *arguments: str | Path) -> str:
    """The one line of a command that is refused."""
    done = archetype(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("archetype: ")
    return done.stderr.removeprefix("archetype: ").strip()


@pytest.fixture
def hf_folder(archetype: Command, run_directory: Path, tmp_path: Path) -> Path:
    """A Hugging Face folder to damage."""
    folder = tmp_path / "hf"
    assert archetype("export", run_directory, "--to", folder).returncode == 0
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_tensors(folder: Path, rename: dict[str, str | None], extra: str | None = None) -> None:
    """Rewrite the header of a safetensors file: rename or drop tensors, or add one."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    for old, new in rename.items():
        tensor = tensors.pop(old)
        if new:
            tensors[new] = tensor
    if extra:
        tensors[extra] = next(iter(tensors.values())).clone()
    save_file(tensors, folder / "model.safetensors")


def test_a_misspelt_key(archetype: Command, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(archetype("show", "llama-tiny").stdout.replace("num_kv_heads", "num_kv_head"))
    expected = f"{tmp_path / 'a.yaml'}: layers[0].mixer.num_kv_head: is not a known key; did you mean num_kv_heads?"
    assert refused(archetype, "cost", tmp_path / "a.yaml") == expected


def test_a_head_count_that_does_not_divide(archetype: Command) -> None:
    message = refused(archetype, "set", "gpt2", "layers[*].mixer.num_kv_heads=5")
    expected = "layers[0].mixer.num_kv_heads: 5 does not divide num_heads 12; use 1, 2, 3, 4, 6 or 12"
    assert message == expected


def test_an_unknown_preset(archetype: Command) -> None:
    message = refused(archetype, "cost", "lama-2-7b")
    assert message == "lama-2-7b: there is no preset, file or folder of this name; did you mean llama-2-7b?"


def test_a_hidden_size_of_a_billion(archetype: Command, hf_folder: Path) -> None:
    assert refused(archetype, "set", "gpt2", "d_model=1000000000") == (
        "d_model: 1000000000 is too large; use at most 1048576"
    )
    edit_config(hf_folder, hidden_size=10**9)
    for verb in ("cost", "generate"):
        message = refused(archetype, verb, hf_folder)
        assert message == f"{hf_folder / 'config.json'}: hidden_size: 1000000000 is too large; use at most 1048576"


def test_a_model_larger_than_memory(archetype: Command, text_file: Path, tmp_path: Path) -> None:
    message = refused(archetype, "train", "--spec", "gpt3-175b", "--text", text_file, "--tokenizer", "bytes",
                      "--sequence-length", "32", "--to", tmp_path / "run")  # fmt: skip
    assert message.startswith("batch_size: a step with 16 sequences of 32 tokens needs ")
    remedy = "use a smaller model or shorter sequences, or --force"
    assert message.endswith(f"is free, too little for one sequence; {remedy}")
    assert not (tmp_path / "run").exists()


def test_a_missing_tensor(archetype: Command, hf_folder: Path) -> None:
    edit_tensors(hf_folder, {"model.layers.1.mlp.up_proj.weight": None})
    assert refused(archetype, "generate", hf_folder, "a") == (
        f"{hf_folder}: model.layers.1.mlp.up_proj.weight: this tensor is missing; is the checkpoint complete?"
    )


def test_an_extra_tensor(archetype: Command, hf_folder: Path) -> None:
    edit_tensors(hf_folder, {}, "model.layers.2.mlp.up_proj.weight")
    assert refused(archetype, "generate", hf_folder, "a") == (
        f"{hf_folder}: model.layers.2.mlp.up_proj.weight: the model does not have this tensor; "
        "does config.json describe this checkpoint?"
    )


def test_a_truncated_safetensors_file(archetype: Command, hf_folder: Path) -> None:
    file = hf_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    message = refused(archetype, "generate", hf_folder, "a")
    assert message.startswith(f"{file}: is not a complete safetensors file: ")
    assert message.endswith("; download it again")


def test_a_safetensors_header_of_absurd_length(archetype: Command, hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    assert "is not a complete safetensors file" in refused(archetype, "generate", hf_folder, "a")


def test_a_weight_map_that_leaves_the_folder(archetype: Command, hf_folder: Path) -> None:
    shutil.copy(hf_folder / "model.safetensors", hf_folder.parent / "outside.safetensors")
    (hf_folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "../outside.safetensors"}}
    (hf_folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refused(archetype, "generate", hf_folder, "a") == (
        f"{hf_folder / 'model.safetensors.index.json'}: weight_map: lm_head.weight: '../outside.safetensors' points "
        "outside the model's folder; do not trust this checkpoint"
    )


def test_an_empty_text_file(archetype: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    message = refused(archetype, "train", "--text", tmp_path / "empty.txt", "--to", tmp_path / "run")
    assert message.startswith(f"{tmp_path / 'empty.txt'}: ")
    assert "empty" in message and ";" in message
    assert not (tmp_path / "run").exists()


def test_invalid_utf8(archetype: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\nthen \xff bad")
    for arguments in (("train", "--text", tmp_path / "bad.txt", "--to", tmp_path / "run"),
                      ("tokenizer", "train", "--text", tmp_path / "bad.txt", "--to", tmp_path / "run")):  # fmt: skip
        message = refused(archetype, *arguments)
        assert message.startswith(f"{tmp_path / 'bad.txt'}: ") and "UTF-8" in message and "10" in message
        assert not (tmp_path / "run").exists()


def test_a_prompt_longer_than_the_context(archetype: Command, run_directory: Path) -> None:
    assert refused(archetype, "generate", run_directory, "a" * 129) == (
        "prompt: has 129 tokens, but the model's context is 128; shorten it"
    )


def test_an_empty_prompt_without_a_token_that_starts_a_text(archetype: Command, run_directory: Path) -> None:
    message = refused(archetype, "generate", run_directory)
    assert message == "prompt: is empty, and the tokenizer has no start token; provide some text"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--temperature", "-1", "temperature: -1.0 is too small; use at least 0.0"),
        ("--temperature", "nan", "--temperature: nan is not a finite number; use a number"),
        ("--top-p", "0", "top_p: 0.0 is too small; use more than 0.0"),
        ("--top-k", "0", "top_k: 0 is too small; use at least 1"),
        ("--max-new-tokens", "0", "max_new_tokens: 0 is too small; use at least 1"),
        ("--dtype", "float7", "dtype: unknown dtype 'float7'; use one of float32, bfloat16, float16, float64"),
        (
            "--state-dtype",
            "fp8",
            "state_dtype: keys and values cannot be kept in 'fp8'; use one of float32, bfloat16, float16, int8",
        ),
    ],
)
def test_settings_out_of_range(archetype: Command, run_directory: Path, option: str, value: str, message: str) -> None:
    assert refused(archetype, "generate", run_directory, "a", option, value) == message


@pytest.mark.parametrize("verb", ["train", "export", "import", "tokenizer", "set"])
def test_an_output_folder_that_cannot_be_written(
    archetype: Command, run_directory: Path, text_file: Path, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "file").touch()  # no folder can be made below a file, whoever asks
    to = tmp_path / "file" / "out"
    arguments: dict[str, tuple[str | Path, ...]] = {
        "train": ("train", "--text", text_file, "--tokenizer", "bytes", "--sequence-length", "32", "--to", to),
        "export": ("export", run_directory, "--to", to),
        "import": ("import", run_directory, "--to", to),
        "tokenizer": ("tokenizer", "train", "--text", text_file, "--kind", "bytes", "--to", to),
        "set": ("set", "gpt2", "num_layers=2", "--to", to),
    }
    message = refused(archetype, *arguments[verb])
    assert message.startswith(f"{to}: cannot be written: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_an_output_folder_that_exists(archetype: Command, run_directory: Path) -> None:
    for verb in ("export", "import"):
        message = refused(archetype, verb, run_directory, "--to", run_directory)
        assert message == f"{run_directory}: already exists; choose another folder or remove it"


def test_a_folder_that_is_no_model(archetype: Command, tmp_path: Path) -> None:
    assert "is neither a run directory (spec.yaml) nor" in refused(archetype, "generate", tmp_path, "a")
    assert "there is no such folder" in refused(archetype, "generate", tmp_path / "none", "a")
    for verb in (("generate", "llama-tiny", "a"), ("serve", "llama-tiny")):
        assert refused(archetype, *verb) == (
            "llama-tiny: is a preset, which has no weights; train it: archetype train TEXT --spec llama-tiny --to RUN, "
            "and use RUN"
        )


def test_wrong_usage(archetype: Command) -> None:
    assert refused(archetype, "cots", "gpt2") == (
        "No such command 'cots'. Did you mean 'cost'? See `archetype --help`."
    )
    assert "No such option: --batchh" in refused(archetype, "cost", "gpt2", "--batchh", "2")
    assert "Missing argument" in refused(archetype, "cost")
    assert refused(archetype, "cost", "gpt2", "--dtype", "int3").startswith("dtype: 'int3' is not known; use one of")


def test_a_full_disk_or_a_closed_stream_is_no_trace() -> None:
    """A standard output that is closed: tests/unit/apps/cli/test_main.py."""
    program = "import sys; sys.stdout.flush(); {}; sys.argv = ['archetype', 'show', 'gpt2']; import os; " \
        "from archetype.apps.cli.main import main; main()"  # fmt: skip
    full = program.format("import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1)")
    answer = forked.run(["python", "-c", full])
    assert answer.returncode == 2 and answer.stderr.decode().count("\n") == 1, answer.stderr
    assert b"standard output: cannot be written: No space left on device" in answer.stderr
    answer = forked.run(["python", "-c", program.format("sys.stderr = None")])
    assert answer.returncode == 0 and answer.stderr == b"", answer.stderr
