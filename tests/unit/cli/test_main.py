"""The command line's frame: help from a table, renamed words, versions, completion, and what start-up imports."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import archetype
from archetype.cli import main


def run(*arguments: str) -> tuple[str, str]:
    """What a command prints on standard output and on standard error."""
    result = CliRunner().invoke(main.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error of a command that ends with status 2."""
    monkeypatch.setattr(sys, "argv", ["archetype", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.removeprefix("archetype: ").rstrip()


@pytest.mark.parametrize("verb", main.VERBS)
def test_the_table_of_verbs_says_what_their_docstrings_say(verb: str) -> None:
    module, name, line = main.VERBS[verb]
    function = getattr(import_module(f"archetype.cli.{module}"), name)
    text = function.info.help if isinstance(function, typer.Typer) else function.__doc__
    assert text.strip().splitlines()[0] == line
    assert f"Usage: archetype {verb} " in run(verb, "--help")[0]


def test_the_help_lists_every_verb_once() -> None:
    lines = run("--help")[0].split("Verbs:\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line[2] != " "] == list(main.VERBS)


def test_versions_are_one_line() -> None:
    out, _ = run("--version")
    python = ".".join(map(str, sys.version_info[:3]))
    assert out.startswith(f"archetype {archetype.__version__}, torch ") and out.endswith(f", Python {python}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("load", "folder", "--to", "run"), "load: this verb is now `import`; see `archetype import -h`"),
        (("import", "folder", "--pickled"), "--pickled is now --allow-pickle. See `archetype --help`."),
        (("show", "folder", "--reading"), "--reading is now --explain. See `archetype --help`."),
        (("translate", "run", "--beams", "2"), "--beams is now --num-beams. See `archetype --help`."),
        (("translate", "run", "--longer", "2"), "--longer is now --max-extra-tokens. See `archetype --help`."),
        (("cots", "gpt2"), "No such command 'cots'. Did you mean 'cost'? See `archetype --help`."),
    ],
)
def test_old_words_are_refused_with_the_new(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(monkeypatch, capsys, *arguments) == message


@pytest.mark.parametrize("arguments", [(), ("tokenizer",)], ids=["no verb", "tokenizer"])
def test_without_a_verb_the_help_goes_to_standard_error(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["archetype", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    out, error = capsys.readouterr()
    assert (end.value.code, out) == (2, "") and error.startswith("Usage: ")


@pytest.mark.parametrize("option", ["--to", "-o", "--output"])
def test_every_output_has_three_spellings(option: str, tmp_path: Path) -> None:
    run("set", "gpt2", "num_layers=2", option, str(tmp_path / "small.yaml"))
    assert archetype.load_spec(tmp_path / "small.yaml").num_layers == 2
    for verb in ("import", "export"):
        assert "-o, --to, --output" in run(verb, "--help")[0]


def test_a_model_that_is_not_trained_yet_is_exported_with_weights_of_a_seed(tmp_path: Path) -> None:
    run("set", "llama-tiny", "num_layers=1", "--to", str(tmp_path / "small.yaml"))
    for source, seed in (("llama-tiny", 3), (str(tmp_path / "small.yaml"), 0)):
        out = tmp_path / f"out-{seed}"
        said = run("export", source, "--to", str(out), "--seed", str(seed))[0]
        compared = "as LlamaForCausalLM, reloaded and compared"
        assert said == f"wrote {out} {compared}; {source} has no weights: these are random, of seed {seed}\n"
        expected = archetype.build(source, seed=seed).state_dict()
        assert all(
            torch.equal(tensor, expected[name]) for name, tensor in archetype.load(out).model.state_dict().items()
        )


def test_the_log_is_silent_unless_it_is_asked_for(tmp_path: Path) -> None:
    lm = archetype.LanguageModel(archetype.load_spec("llama-tiny"), archetype.build("llama-tiny"))
    archetype.export(lm, tmp_path / "hf")
    for flags, logged in (((), False), (("--verbose",), True)):
        command = [sys.executable, "-m", "archetype", "import", "hf", "-o", f"run-{logged}", *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, f"wrote run-{logged}\n"), done.stderr
        assert done.stderr.startswith("archetype.loading: loaded hf: <LanguageModel ") == logged
        assert bool(done.stderr) == logged


@pytest.mark.parametrize(
    ("words", "completions"),
    [("archetype cost llama-2-", {"llama-2-7b", "llama-2-13b", "llama-2-70b"}),
     ("archetype di", {"diff"}), ("archetype export --fo", {"--format"})],
)  # fmt: skip
def test_the_shell_completes_verbs_options_and_presets(words: str, completions: set[str]) -> None:
    count = len(words.split()) - 1
    environment = {"_ARCHETYPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    program = str(Path(sys.executable).with_name("archetype"))
    done = subprocess.run([program], env=os.environ | environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, set(done.stdout.split())) == (0, completions), done.stderr


def test_completion_can_be_shown_and_installed() -> None:
    assert {"--install-completion", "--show-completion"} <= set(run("--help")[0].split())


HEAVY = {"torch", "numpy", "transformers", "matplotlib"}


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (("--help",), {"pydantic", "rich", "ruamel", "logging", *HEAVY}),
        (("--version",), {"pydantic", "rich", "ruamel", *HEAVY}),
        (("train", "--help"), {"rich", "ruamel", *HEAVY}),
        (("cost", "llama-2-7b", "--json"), {"rich", *HEAVY}),
        (("list",), {"rich", *HEAVY}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_start_up_imports_only_what_a_verb_needs(arguments: tuple[str, ...], absent: set[str]) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from archetype.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert not absent & set(done.stderr.split())
