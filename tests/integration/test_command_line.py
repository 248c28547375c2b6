"""Each verb, once, as a user would call it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from archetype.gallery.entries import entries
from tests.helpers.cases import case
from tests.integration.conftest import Command


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


VERBS = """
import io, json, sys
from contextlib import redirect_stdout
from archetype.apps.cli.main import main

for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command.split()
    printed = io.StringIO()
    with redirect_stdout(printed):
        try:
            main()
        except SystemExit as end:
            assert not end.code, (command, end.code)
    assert printed.getvalue(), command
    assert not {"torch", "numpy"} & sys.modules.keys(), command
"""


def test_verbs_on_specifications_load_no_torch() -> None:
    """In one new process, which fails at the first verb that loads it."""
    commands = [
        "--help", "list", "cost llama-2-7b", "cost llama-3.1-405b --json", "show gpt2", "diff gpt2 gpt2-xl",
        "set gpt2 num_layers=2", "schema", "train --help", "tokenizer --help", "generate --help", "demo --help",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", VERBS, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_installed_program_trains_without_a_warning(text_file: Path, tmp_path: Path) -> None:
    """The one training command of the tests that is a new process from its start."""
    program = Path(sys.executable).with_name("archetype")
    flags = ["--tokenizer", "bytes", "--sequence-length", "8", "--batch-size", "1", "--steps", "2", "--json"]
    command = [program, "train", "--spec", "llama-tiny", "--text", text_file, *flags, "--to", tmp_path / "run"]
    environment = os.environ | {"PYTHONWARNINGS": "error"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 2
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_list_tells_every_preset_with_its_size_and_source(archetype: Command) -> None:
    presets = json.loads(archetype("list", "--json").stdout)["presets"]
    assert {"name": "gpt2", "family": "gpt2", "kind": "decoder", "parameters": 124_439_808} in [
        {key: row[key] for key in ("name", "family", "kind", "parameters")} for row in presets
    ]
    assert all(row["source"] for row in presets)
    assert "124,439,808" in archetype("list").stdout


def test_list_tells_every_published_model_with_its_date_and_source(archetype: Command) -> None:
    models = {row["name"]: row for row in json.loads(archetype("list", "--json").stdout)["published"]}
    assert models.keys() == entries().keys()
    for name, row in models.items():
        with case(name):
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]) and row["source"]
            assert row["specification"] is (entries()[name].specification() is not None)
    line = r"^glm-5.2 +glm_moe_dsa +2026-06-17 +zai-org/GLM-5.2 +744B +40B +yes$"
    assert re.search(line, archetype("list").stdout, re.MULTILINE)


def test_cost_has_the_promised_keys(archetype: Command) -> None:
    report = json.loads(archetype("cost", "llama-2-7b", "--batch", "2", "--length", "100", "--json").stdout)
    assert report["parameters"]["total"] == report["parameters"]["active"] == 6_738_415_616
    assert report["flops"]["train"] == 3 * report["flops"]["forward"] > report["flops"]["decode"] > 0
    assert report["state"]["bytes_per_token"] == 2 * 32 * 4096 * 2
    assert report["memory"]["weights"] == 2 * 6_738_415_616
    assert report["memory"]["training_state"] == 16 * 6_738_415_616
    assert sum(row["parameters"] for row in report["modules"]) == 6_738_415_616


def test_show_set_and_diff_speak_the_file_format(archetype: Command, tmp_path: Path) -> None:
    lines(archetype("set", "llama-tiny", "num_layers=4", "layers[*].mixer.num_kv_heads=1", "--to", tmp_path / "a.yaml"))
    assert lines(archetype("diff", "llama-tiny", tmp_path / "a.yaml")) == [
        "num_layers: 2 -> 4",
        "layers[*].mixer.num_kv_heads: 2 -> 1",
    ]
    written = (tmp_path / "a.yaml").read_text().splitlines()
    assert lines(archetype("show", tmp_path / "a.yaml")) == written
    assert "eps: 1e-05" in archetype("show", "llama-tiny", "--full").stdout
    (tmp_path / "a.json").write_text(archetype("show", tmp_path / "a.yaml", "--json").stdout)
    assert lines(archetype("diff", tmp_path / "a.yaml", tmp_path / "a.json")) == ["no difference"]


def test_a_run_directory_is_a_model(archetype: Command, run_directory: Path, tmp_path: Path) -> None:
    assert {path.name for path in run_directory.iterdir()} == {
        "spec.yaml", "recipe.yaml", "tokenizer", "model.safetensors", "metrics.jsonl", "loss.png", "checkpoints",
        "provenance.json", "best", "report.html",
    }  # fmt: skip
    assert archetype("show", run_directory).stdout == archetype("show", run_directory / "spec.yaml").stdout
    assert json.loads(archetype("cost", run_directory, "--json").stdout)["parameters"]["total"] == 123_712
    generated = json.loads(archetype("generate", run_directory, "The ", "--max-new-tokens", "9", "--json").stdout)
    assert generated["prompts"] == ["The "] and len(generated["texts"]) == 1
    done = archetype("export", run_directory, "--to", tmp_path / "hf")
    assert lines(done) == [f"wrote {tmp_path / 'hf'} as LlamaForCausalLM, reloaded and compared"]
    lines(archetype("import", tmp_path / "hf", "--to", tmp_path / "back"))
    again = json.loads(archetype("generate", tmp_path / "back", "The ", "--max-new-tokens", "9", "--temperature", "0",
                                 "--json").stdout)  # fmt: skip
    first = json.loads(archetype("generate", run_directory, "The ", "--max-new-tokens", "9", "--temperature", "0",
                                 "--json").stdout)  # fmt: skip
    assert again["texts"] == first["texts"]


def test_guesses_change_no_text(archetype: Command, run_directory: Path) -> None:
    command = ["generate", run_directory, "The the ", "--max-new-tokens", "20", "--temperature", "0.8", "--seed", "3"]
    plain = archetype(*command).stdout
    for guess in (["--lookup"], ["--draft", run_directory], ["--lookup", "--deterministic"]):
        done = archetype(*command, *guess)
        assert (done.returncode, done.stdout) == (0, plain), done.stderr
    both = archetype(*command, "--lookup", "--draft", run_directory)
    assert both.returncode == 2 and "lookup: cannot be combined with a draft model" in both.stderr


def test_generate_streams_one_prompt_and_batches_several(archetype: Command, run_directory: Path) -> None:
    flags = ("--max-new-tokens", "12", "--temperature", "0")
    alone = [archetype("generate", run_directory, prompt, *flags) for prompt in ("The ", "If a")]
    together = archetype("generate", run_directory, "The ", "If a", *flags)
    for done, tokens in ((alone[0], 12), (together, 24)):
        assert re.fullmatch(rf"device: cpu \(.+\)\n\({tokens} tokens, [\d,.]+ tokens/s\)\n", done.stderr)
    assert archetype("generate", run_directory, "The ", *flags, "--json").stderr == ""
    one, both = [done.stdout for done in alone], together.stdout
    assert both.split("\n\n") == [text.removesuffix("\n") for text in one] + [""] or both == "\n".join(one) + "\n"
    piped = archetype("generate", run_directory, "-", *flags, input="The ")
    assert piped.stdout == one[0]


def test_resume_goes_on_where_the_run_stood(archetype: Command, run_directory: Path) -> None:
    done = archetype("train", "--resume", run_directory, "--json")
    assert json.loads(done.stdout)["step"] == 20


def test_commands_on_a_run_print_one_object_with_their_keys(
    archetype: Command, run_directory: Path, text_file: Path, tmp_path: Path
) -> None:
    """Of commands that need a model; tests/unit/apps/cli/test_json.py has the others."""
    hf, back, grouped = (tmp_path / name for name in ("hf", "back", "grouped"))
    scored = {"file", "loss", "num_tokens", "num_bytes", "accuracy", "perplexity", "bits_per_byte"}
    keys: dict[tuple[str | Path, ...], set[str]] = {
        ("plot", run_directory): {"x", "loss", "runs"},
        ("runs", run_directory): {"runs"},
        ("export", run_directory, "--to", hf): {"folder", "format", "family", "seed"},
        ("import", hf, "--to", back): {"folder", "kind", "family"},
        ("transplant", back, "layers[*].mixer.num_kv_heads=1", "--to", grouped): {
            "changes", "tensors", "promise", "promises", "proof", "costs",
        },
        ("tokenizer", "encode", run_directory, "ab"): {"ids", "pieces"},
        ("generate", run_directory, "ab", "--max-new-tokens", "3"): {"prompts", "texts", "settings"},
        ("generate", run_directory, "ab", "--minutes", "1"): {"prompts", "texts", "settings", "ended_by"},
        ("evaluate", run_directory, text_file, "--length", "32"): {"texts"},
        ("evaluate", run_directory, text_file, "--minutes", "0.001"): {"texts", "ended_by"},
    }  # fmt: skip
    printed = {}
    for command, expected in keys.items():
        done = archetype(*command, "--json")
        assert done.returncode == 0, done.stderr
        printed[command] = json.loads(done.stdout)
        assert expected == printed[command].keys() or (
            command[0] == "transplant" and expected <= printed[command].keys()
        )
    whole, part = (printed[command]["texts"][0] for command in list(keys)[-2:])
    assert whole.keys() == part.keys() == scored and part["num_tokens"] < whole["num_tokens"]
    assert list(printed.values())[-1]["ended_by"] == "minutes" and list(printed.values())[-3]["ended_by"] is None
    assert "archetype: --minutes 0.001 ended this; the result is of what was done\n" in done.stderr
    refused = archetype("plot", run_directory, "--json", "--to", tmp_path / "a.png")
    assert refused.returncode == 2 and "cannot be combined with --json" in refused.stderr
