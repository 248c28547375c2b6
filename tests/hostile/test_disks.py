"""Writers on a disk that has no more room, and writers that are killed: one line or nothing, and nothing remains."""

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.errors import ArchetypeError
from archetype.families.llama import llama
from archetype.io import atomic
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers import forked
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize

WORDS = "the cat sat on the mat, and the other cat sat there. " * 40
# of which the system writes no more bytes into a file than it is told
LIMITED = """
import resource, signal, sys
from archetype.apps.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # or importlib keeps the cut copy of a module, for every later process
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.argv = ["archetype", *sys.argv[2:]]
main()
"""
TRAIN = ("train", "text.txt", "--spec", "spec.yaml", "--tokenizer", "bytes", "--steps", "2", "--batch-size", "2",
    "--sequence-length", "8", "--to", "new")  # fmt: skip
# verbs that write, and the sizes at which their files are cut
WRITERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "export": (("export", "run", "--to", "new"), (10, 2_000, 30_000)),
    "train": (TRAIN, (10, 1_000, 30_000)),
    "import": (("import", "hf", "--to", "new"), (10, 2_000, 30_000)),
    "quantized": (("import", "hf", "--weights", "int8", "--to", "new"), (10, 2_000, 10_000)),
    "gguf": (("export", "run", "--format", "gguf", "--to", "new"), (10, 2_000, 30_000)),
    "tokenizer": (("tokenizer", "train", "--kind", "byte_bpe", "--vocab-size", "270", "--text", "text.txt", "--to",
        "new"), (10, 2_000)),
    "draw": (("draw", "spec.yaml", "--to", "new.svg"), (100,)),
    "picture": (("draw", "spec.yaml", "--to", "new.png"), (100,)),
    "set": (("set", "spec.yaml", "final_norm=layer", "--to", "new.yaml"), (10,)),
    "generate": (("generate", "run", "--input", "prompts.jsonl", "--max-new-tokens", "2", "--output",
        "new.jsonl"), (10,)),
    "inspect": (("inspect", "run", "the cat", "--to", "new.json"), (10, 300)),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its export, a specification and texts."""
    place = tmp_path_factory.mktemp("place")
    spec = llama(num_layers=2, d_model=32, num_heads=4, d_ff=48, vocab_size=300, context_length=32)
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", WORDS, 280))
    lm.save(place / "run")
    export(lm, place / "hf")
    (place / "spec.yaml").write_text(archetype.spec.to_yaml(spec))
    (place / "text.txt").write_text(WORDS)
    (place / "prompts.jsonl").write_text('{"prompt": "the cat"}\n{"prompt": "the mat"}\n')
    return place


def limited(limit: int, command: tuple[str, ...], cwd: Path) -> tuple[int, list[str]]:
    """The status of a verb whose files may not grow, and the lines that it prints, through a pipe."""
    source, target = os.pipe()
    with Path(os.devnull).open() as none, os.fdopen(source) as read:
        arguments = ["python", "-c", LIMITED, str(limit), *command]
        socket = str(forked.server() / "socket")
        process = forked.Process(socket, arguments, str(cwd), dict(os.environ), (none.fileno(), target, target))
        os.close(target)
        return process.wait(), read.read().splitlines()


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize("name", every(4, WRITERS))
def test_a_file_that_may_not_grow_is_named_in_one_line(name: str, place: Path) -> None:
    command, limits = WRITERS[name]
    target = command[-1]
    for limit in limits:
        with case(name, limit):
            status, lines = limited(limit, command, place)
            assert status == 2, lines
            places = (target, tempfile.gettempdir())  # where the tokenizer is written to be told from others
            assert lines[-1].startswith(tuple(f"archetype: {one}" for one in places)), lines
            assert not any("Traceback" in line for line in lines)
            assert any(f": cannot be written: {reason}" in lines[-1] for reason in REASONS)
            assert ".partial" not in lines[-1] and not hidden(place)
            if name not in ("train", "generate"):  # which keep what they have, to go on with it
                assert not (place / target).exists()
        remove(place / target)


# of Python and safetensors; and of numpy, which hears of nothing else
REASONS = (
    "File too large; raise the file size limit (ulimit -f)", "only a part of it was written; free some",
    "File too large; set TMPDIR to a folder with more space",
)  # fmt: skip
KILLED = {
    "export": ("export", "run", "--to", "new"),
    "gguf": ("export", "run", "--format", "gguf", "--to", "new"),
    "import": ("import", "hf", "--to", "new"),
}


def partial(place: Path) -> bool:
    return any(path.name.startswith(".new.") for path in place.iterdir())


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KILLED)
def test_a_writer_that_is_killed_leaves_nothing_or_all_and_the_next_one_cleans_up(
    name: str, kills: int, place: Path
) -> None:
    draw, interrupted = random.Random(name), 0
    environment = dict(os.environ)
    for number in range(kills):
        while True:
            with tempfile.TemporaryFile() as output:
                process = forked.start(["archetype", *KILLED[name]], place, environment, output)
                while not partial(place) and not (place / "new").exists():
                    time.sleep(0.0005)
                time.sleep(draw.random() * 0.02)
                process.kill(signal.SIGKILL)
                process.wait()
            if (place / "new").exists():  # it was done sooner
                archetype.load(place / "new" / ("model.gguf" if name == "gguf" else ""))
                remove(place / "new")
                continue
            break
        interrupted += partial(place)
        answer = forked.run(["archetype", *KILLED[name]], cwd=place)
        assert answer.returncode == 0, (number, answer.stderr)
        archetype.load(place / "new" / ("model.gguf" if name == "gguf" else ""))
        assert not partial(place)
        remove(place / "new")
    assert interrupted == kills


def test_a_folder_for_temporary_files_that_is_gone_or_full_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with (
        pytest.raises(ArchetypeError, match="gone: cannot be written: No such file or directory"),
        atomic.scratch_folder(),
    ):
        pass
    (tmp_path / "gone").mkdir()
    with pytest.raises(ArchetypeError) as caught, atomic.scratch_folder() as folder:
        raise atomic.refused(folder / "tokenizer.json", OSError(28, "No space left on device"))
    cause = "cannot be written: No space left on device; set TMPDIR to a folder with more space"
    assert str(caught.value) == f"{tmp_path / 'gone'}: {cause}"
    assert not list((tmp_path / "gone").iterdir())
