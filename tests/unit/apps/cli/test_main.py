"""The command line's frame: help from a table, misspelt words, versions, completion, and what start-up imports."""

import codecs
import inspect
import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli import main
from archetype.apps.cli.output import replace_drawing
from archetype.apps.cli.progress import loss_bars
from archetype.errors import Notice
from archetype.families.registry import preset
from archetype.native.library import SLOWER
from archetype.spec.serialize import to_yaml
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.cases import case


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
    place, line = main.VERBS[verb]
    module, _, name = place.partition(".")
    function = getattr(import_module(f"archetype.apps.cli.{module}"), name)
    text = function.info.help if isinstance(function, typer.Typer) else function.__doc__
    assert text.strip().splitlines()[0] == line
    assert f"Usage: archetype {verb} " in run(verb, "--help")[0]


def test_the_help_lists_every_verb_once() -> None:
    lines = run("--help")[0].split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line[2] != " "] == [*main.VERBS, "convert"]


def test_versions_are_one_line() -> None:
    out, _ = run("--version")
    python = ".".join(map(str, sys.version_info[:3]))
    assert out.startswith(f"archetype {archetype.__version__}, torch ") and out.endswith(f", Python {python}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("show", "folder", "--explian"),
            "No such option: --explian (Possible options: --explain). See `archetype show --help`.",
        ),
        (("cots", "gpt2"), "No such command 'cots'. Did you mean 'cost'? See `archetype --help`."),
    ],
)
def test_misspelt_words_are_refused_with_the_nearest(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(monkeypatch, capsys, *arguments) == message


def test_without_a_verb_there_is_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("tokenizer",)):
        monkeypatch.setattr(sys, "argv", ["archetype", *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
        out, error = capsys.readouterr()
        assert (end.value.code, error) == (0, "") and out.startswith("Usage: ")


def test_the_options_of_train_stand_in_sections_once_each() -> None:
    headings = [line for line in run("train", "--help")[0].splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == ["Arguments:", "Run:", "Model and data:", "Optimization:", "Machine:", "Options:"]
    from archetype.apps.cli.train import SECTIONS, train

    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names))
    assert set(inspect.signature(train).parameters) - set(names) == {"texts", "as_json"}


STREAMS = """
import sys
from archetype.apps.cli.main import main
sys.argv[1:] = ["list"]
main()
"""


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        (">/dev/full", 2, "standard output: cannot be written: No space left on device"),
        (">&-", 2, "standard output: is closed; redirect it to a file or to /dev/null"),
        ("2>&-", 0, ""), (">/dev/null 2>/dev/full", 0, ""),
    ],
)  # fmt: skip
def test_streams_that_cannot_be_written_end_in_one_line(redirection: str, status: int, message: str) -> None:
    command = f'"{sys.executable}" -c "$0" {redirection}'
    done = subprocess.run(["sh", "-c", command, STREAMS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, f"archetype: {message}\n" if message else "")


def test_what_an_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "name: naïve ▁\n" + run("show", "gpt2-tiny")[0].replace("name:", "# name:"), "utf-8"
    )
    command = [sys.executable, "-m", "archetype", "show", str(tmp_path / "a.yaml")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "name: na\\xefve \\u2581\n" in done.stdout


def test_a_curve_is_drawn_in_ascii_where_an_encoding_lacks_blocks() -> None:
    codecs.register_error("drawn_plainly", replace_drawing)
    assert "│▝▚é│ ▁".encode("cp1252", "drawn_plainly") == b"|**\xe9| \\u2581"
    assert "└─┘".encode("cp437", "drawn_plainly").decode("cp437") == "└─┘"
    assert loss_bars(([1, 2, 3], [3.0, 1.0, 2.0]), encoding="cp1252") == "loss 3.00 #_= 2.00 nats"


LONG = "x" * 100_000
LONG_VALUES = (
    ("cost", LONG), ("cost", f"{LONG}/{LONG}"), ("cost", f"{LONG}.yaml"), ("cost", "gpt2", "--dtype", LONG),
    ("cost", "gpt2", "--device", LONG), ("cost", "gpt2", "--fit", LONG), ("cost", "gpt2", "--attention", LONG),
    ("cost", "gpt2", "--batch", LONG), ("cost", "gpt2", f"--{LONG}"), ("show", LONG), ("show", LONG, "--explain"),
    ("diff", "gpt2", LONG), ("set", "gpt2", LONG), ("set", "gpt2", f"{LONG}=1"), ("set", "gpt2", f"d_model={LONG}"),
    ("set", "gpt2", f"layers[*].mixer={{kind: {LONG}}}"), ("set", "gpt2", f"layers[*].{LONG}=1"),
    ("set", "gpt2", f"d_model={'9' * 4000}"), ("set", "gpt2", "num_layers=2", "--to", LONG),
    ("set", "gpt2", f"d_model=[{LONG}"), ("import", "FOLDER", "--to", LONG),
    ("cost", "FILE"), (LONG,), ("train", "--spec", LONG, "--to", "run"), ("train", "--recipe", LONG),
    ("train", "--text", LONG, "--to", "run"), ("train", "--resume", LONG),
    ("train", "--set", f"{LONG}=1", "--to", "run"),
    ("train", "--set", f"steps={LONG}", "--to", "run"), ("train", "--device", LONG, "--text", "FILE", "--to", "run"),
    ("tokenizer", "train", "--text", LONG, "--to", "made"), ("tokenizer", "show", LONG), ("tokenizer", LONG),
    ("tokenizer", "train", "--text", "FILE", "--kind", LONG, "--to", "made"), ("generate", LONG),
    ("export", LONG, "--to", "hf"),
    ("generate", "FOLDER", "--dtype", LONG), ("import", LONG, "--to", "run"),
    ("fill", LONG, "a"), ("embed", LONG, "a"), ("classify", LONG, "a"), ("translate", LONG, "a"), ("parity", LONG),
    ("generate", "FOLDER", "--top-k", LONG), ("cost", "gpt2", "--extension", LONG),
    ("bench", LONG, "gpt2"), ("bench", "decode", LONG), ("bench", "decode", "gpt2", "--weights", LONG),
    ("bench", "decode", "llama-tiny", "--dtype", LONG), ("export", "gpt2-tiny", "--to", "out", "--type", LONG),
)  # fmt: skip


def test_a_message_has_at_most_300_characters_whatever_it_quotes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text(f"{LONG}: {LONG}\nkind: {LONG}\n", encoding="utf-8")
    (tmp_path / "FOLDER").mkdir()
    config = {"model_type": "llama", LONG: 1, "transformers_version": "99.0.1"}  # whose classes may read it
    (tmp_path / "FOLDER" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for arguments in LONG_VALUES:
        message = refusal(monkeypatch, capsys, *arguments)
        shown = " ".join(argument[:40] for argument in arguments)
        assert 0 < len(f"archetype: {message}") <= 300, shown
        assert len(message) < 200 or "..." in message, shown


def test_a_notice_has_at_most_300_characters_and_stands_before_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps({"model_type": "llama", LONG: 1}), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["archetype", "import", ".", "--to", "run"])
    with pytest.raises(SystemExit) as end:
        main.main()
    out, error = capsys.readouterr()
    notice, refused = error.splitlines()
    assert (end.value.code, out) == (2, "")
    assert notice.startswith("archetype: config.json: no llama class reads xxx") and "..." in notice
    assert len(notice) <= 300 and "model.safetensors" in refused


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
        assert said == f"wrote {out} {compared}; {source} has no weights, so these are random (seed {seed})\n"
        expected = archetype.build(source, seed=seed).state_dict()
        assert all(
            torch.equal(tensor, expected[name]) for name, tensor in archetype.load(out).model.state_dict().items()
        )


def test_the_log_is_silent_unless_it_is_asked_for(tmp_path: Path) -> None:
    lm = archetype.LanguageModel(archetype.load_spec("llama-tiny"), archetype.build("llama-tiny"))
    archetype.export(lm, tmp_path / "hf")
    for flags, logged in (((), False), (("--verbose",), True)):
        done = forked.run(["archetype", "import", "hf", "-o", f"run-{logged}", *flags], cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"wrote run-{logged}\n".encode()), done.stderr
        assert done.stderr.startswith(b"archetype.api.loading: loaded hf: <DecoderLM ") == logged
        assert bool(done.stderr) == logged


def test_a_missing_compiler_is_said_once(tmp_path: Path) -> None:
    timed = ["bench", "decode", "llama-tiny", "--new", "3", "--prompt", "2", "--repeat", "1", "--json"]
    model = archetype.build("llama-tiny").eval()
    LanguageModel(model.spec, model, train_tokenizer("bytes", [], None)).save(tmp_path / "run")
    written = ["generate", str(tmp_path / "run"), "ab", "--max-new-tokens", "2"]
    without = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CXX": ""}
    flags = "-march=native"  # in place of the kernels that were built
    for arguments, native, lines in ((timed, flags, 1), (written, flags, 1), (written, "", 0), (written, "off", 0)):
        done = forked.run(["archetype", *arguments], without | {"ARCHETYPE_NATIVE": native})
        assert done.returncode == 0, done.stderr
        said = f"archetype: no native kernels, so {SLOWER}: no C++ compiler (c++, g++ or clang++)\n".encode()
        assert done.stderr.count(said) == done.stderr.count(b"no native kernels") == lines


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
        (("--help",), {"pydantic", "rich", "yaml", "logging", *HEAVY}),
        (("--version",), {"pydantic", "rich", "yaml", *HEAVY}),
        (("train", "--help"), {"rich", "yaml", *HEAVY}),
        (("cost", "llama-2-7b", "--json"), {"rich", *HEAVY}),
        (("list",), {"rich", *HEAVY}),
        (("explain", "latent"), {"rich", *HEAVY}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_start_up_imports_only_what_a_verb_needs(arguments: tuple[str, ...], absent: set[str]) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from archetype.apps.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert not absent & set(done.stderr.split())


def test_values_of_options_are_refused_in_our_own_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in {
        ("demo", "--minutes", "-1"): "Invalid value for '--minutes': '-1' is too small; use at least 0.05.",
        ("train", "--steps", "x"): "Invalid value for '--steps': 'x' is not a whole number; use a whole number.",
        ("generate", "a", "b", "--temperature", "warm"):
            "Invalid value for '--temperature': 'warm' is not a finite number; use a number.",
        ("plot", "a", "--x", "c"): "Invalid value for '--x': 'c' is not one of 'steps', 'tokens', 'flops', 'seconds'.",
    }.items():  # fmt: skip
        with case(*arguments):
            assert f"{message} See `archetype {arguments[0]} --help`." in refusal(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("set", "gpt2", "d_model=64", "--solve", "d_model"), "--solve"),
        (("show", "gpt2", "--explain", "--full"), "--full"),
        (("inspect", "run", "a", "--corrupt", "b", "--view", "lens"), "--view"),
        (("inspect", "run", "a", "--corrupt", "b", "--layer", "1"), "--layer"),
        (("inspect", "run", "a", "--view", "attribution", "--head", "1"), "--head"),
        (("cost", "vit-b-16", "--length", "100"), "length"),
        (("cost", "--compare", "gpt2", "vit-b-16", "--length", "100"), "length"),
        (("draw", "gpt2", "vit-b-16", "--length", "100", "--json"), "length"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_in_one_line(
    arguments: tuple[str, ...], place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{place}: " in refusal(monkeypatch, capsys, *arguments)


def test_options_of_a_section_stand_in_its_order() -> None:
    shown = CliRunner().invoke(main.app, ["evaluate", "--help"]).stdout
    names = ("text", "data", "source", "target", "retrieval", "correlation", "tasks", "stride", "num-beams")
    places = [shown.index(f"\n  --{name}") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_cut_module_is_not_an_interruption(
    is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk leaves importlib a part of a compiled module; typer takes that, and the end of input, for a ^C."""
    name = f"cut_module_{is_cut}"
    (source := tmp_path / f"{name}.py").write_text("NUMBERS = " + repr(list(range(1000))))
    compiled = Path(py_compile.compile(str(source), doraise=True) or "")
    if is_cut:
        compiled.write_bytes(compiled.read_bytes()[:2000])
    monkeypatch.syspath_prepend(tmp_path)

    def verb(standalone_mode: bool) -> None:
        try:
            import_module(name)
            raise EOFError("of a verb")
        except EOFError as error:
            raise typer.Abort from error

    monkeypatch.setattr(main, "app", verb)
    if not is_cut:
        with pytest.raises(EOFError, match="of a verb"):
            main.main()
        return
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"archetype: {compiled}: the compiled module is cut off, perhaps by a full disk; remove it\n"
    )
    compiled.unlink()
    assert len(import_module(name).NUMBERS) == 1000


def test_set_keeps_the_comments_of_a_file(tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text(f"# Mine\n{to_yaml(preset('llama-tiny'))}# the end\n")
    lines = file.read_text().splitlines()
    out, _ = run("set", str(file), "context_length=64")
    assert [one for one in out.splitlines() if one not in lines] == ["context_length: 64"]
    run("set", str(file), "context_length=64", "--to", str(file))
    assert file.read_text() == out
    file.write_text(file.read_text().replace("repeat:", "# how many\n  repeat:"))
    with pytest.warns(Notice, match="mine.yaml: comments on replaced values are lost"):
        run("set", str(file), "layers[0].mixer.num_heads=2")


@pytest.mark.parametrize("allocate", [
    lambda: torch.empty(2**58), lambda: bytearray(2**62), lambda: _raise(torch.OutOfMemoryError("CUDA out of memory")),
], ids=["torch", "python", "device"])  # fmt: skip
def test_full_memory_is_one_line(
    allocate: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "app", lambda standalone_mode: allocate())
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    remedy = "use a smaller model or batch, fewer bytes per weight, or end other programs"
    assert ended.value.code == 2 and error.count("\n") == 1 and error.endswith(f"memory is full; {remedy}\n")


def test_another_fault_of_torch_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "app", lambda standalone_mode: torch.empty(2).view(3))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        main.main()


def _raise(error: Exception) -> None:
    raise error
