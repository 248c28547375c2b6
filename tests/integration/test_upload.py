"""`archetype upload`: what is written and said without a network, and what a hub on this machine receives."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard, constants
from safetensors.torch import load_file

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import VERBS
from archetype.apps.cli.serve import sources_of
from archetype.io.weight_files import INDEX, SINGLE
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from archetype.training.evaluate import Evaluation
from archetype.training.metrics import Evaluated, Sampled, append
from tests.helpers.cases import case
from tests.helpers.hub import TOKEN, Hub, serving
from tests.helpers.options import Observed, call, verbs
from tests.helpers.weights import randomize

Call = Callable[..., Observed]
FILES = {"README.md", "architecture.svg", "config.json", "generation_config.json", SINGLE}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the program in an empty folder, as one without an account."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    return lambda *words: call([str(word) for word in words], tmp_path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Call) -> Iterator[Hub]:
    """A hub that the account of HF_TOKEN may write to."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with serving({}, tmp_path / "cache", monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved model of an architecture that no published family has."""
    spec = archetype.load_spec("llama-tiny").replace(name="hybrid: a [tiny] one")
    spec = archetype.spec.edit.assign(spec, ["layers[1].mixer=mamba"])
    folder = tmp_path_factory.mktemp("hybrid") / "run"
    LanguageModel(spec, randomize(build(spec)), train_tokenizer("bytes", "", None)).save(folder)
    return folder


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of llama-tiny that was evaluated twice."""
    spec = archetype.load_spec("llama-tiny")
    folder = tmp_path_factory.mktemp("tiny") / "run"
    LanguageModel(spec, randomize(build(spec)), train_tokenizer("bytes", "", None)).save(folder)
    for step, loss in ((10, 2.5), (20, 1.25)):
        append(folder / "metrics.jsonl", Evaluated(step, Evaluation(loss, 0.5, 99, 1.75)))
    append(folder / "metrics.jsonl", Sampled(20, "a sample"))
    return folder


def test_a_dry_run_writes_the_folder_and_says_what_would_be_sent(
    run_directory: Path, here: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an account and offline."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    done = here("upload", run_directory, "me/tiny@v1", "--dry-run", "--private", "--message", "first")
    assert done.status == 0 and "to upload to me/tiny@v1, private as 'first'" in done.output
    files = {file.name: file for file in (tmp_path / "tiny").iterdir()}
    assert files.keys() > FILES and all(name in done.output for name in files)
    again = here("upload", run_directory, "me/tiny", "--dry-run", "--to", "other", "--json")
    said = json.loads(again.output)
    assert said["files"] == {file.name: file.stat().st_size for file in (tmp_path / "other").iterdir()}
    assert not [path for path, *_ in archetype.diff(tmp_path / "tiny", run_directory) if path != "name"]
    assert "tiny: already exists" in here("upload", run_directory, "me/tiny", "--dry-run").error  # and nothing is lost


def test_the_card_says_what_the_model_is_and_export_writes_the_same(
    run_directory: Path, here: Call, tmp_path: Path
) -> None:
    assert here("upload", run_directory, "me/tiny", "--dry-run", "--revision", "v1").status == 0
    assert here("export", run_directory, "--to", "exported").status == 0
    text, exported = ((tmp_path / name / "README.md").read_text() for name in ("tiny", "exported"))
    assert "Validation loss after 20 training steps: 1.2500 nats, 50.0% accuracy, 1.7500 bits per byte." in text
    assert 'from_pretrained("me/tiny", revision="v1")' in text and 'archetype.load("me/tiny@v1")' in text
    assert exported == text.replace(', revision="v1"', "").replace("me/tiny@v1", "PATH").replace("me/tiny", "PATH")
    assert "![The architecture" in text and (tmp_path / "tiny" / "architecture.svg").read_text().startswith("<svg")
    assert (
        f"parameters                              {archetype.cost_report('llama-tiny').parameters['total']:,}" in text
    )
    written = re.search(r"```yaml\n(.*)```", text, re.DOTALL)
    assert written is not None and archetype.load_spec(_yaml(written[1])) == archetype.load(run_directory).spec


def _yaml(text: str) -> dict[str, object]:
    import yaml

    return dict(yaml.safe_load(text))


def test_the_cards_front_matter_is_what_the_hub_reads(hybrid: Path, here: Call, tmp_path: Path) -> None:
    """Also of a model whose name would be YAML, and that goes out in Archetype's own format."""
    assert here("upload", hybrid, "me/hybrid", "--dry-run").status == 0
    card = ModelCard.load(tmp_path / "hybrid" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["archetype"],
    }  # fmt: skip
    assert "from archetype.hf import ArchetypeForCausalLM" in card.text and "# hybrid: a [tiny] one" in card.text


def test_what_is_sent_is_read_back(hybrid: Path, hub: Hub, here: Call) -> None:
    """A repository is made, then a branch of it; each can be loaded by its name."""
    done = here("upload", hybrid, "someone/hybrid", "--private", "-m", "first")
    assert done.status == 0, done.error
    assert done.output.startswith("uploaded 8 files, ") and hub.private == {"someone/hybrid"}
    _, lines = hub.asked[-1]
    assert lines[0]["value"]["summary"] == "first"
    sent = load_file(hub.models["someone/hybrid"]["main"] / SINGLE)
    assert (
        archetype.load("someone/hybrid").model.state_dict().keys() == archetype.load(hybrid).model.state_dict().keys()
    )
    hub.models["someone/hybrid"]["main"].joinpath(INDEX).write_text("{}")  # of an earlier upload in several files
    done = here("upload", hybrid, "someone/hybrid@v2", "--dtype", "bfloat16")
    assert done.status == 0, done.error
    assert {one.dtype.itemsize for one in archetype.load("someone/hybrid@v2").model.parameters()} == {2}
    assert load_file(hub.models["someone/hybrid"]["main"] / SINGLE).keys() == sent.keys()
    assert here("upload", hybrid, "someone/hybrid").status == 0
    assert not (hub.models["someone/hybrid"]["main"] / INDEX).exists()


def test_what_the_hub_refuses_is_one_line(
    hybrid: Path, hub: Hub, here: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*words: str) -> str:
        done = here("upload", hybrid, *words)
        assert done.status == 2 and done.error.count("\n") == 1 and not done.output
        return done.error

    assert here("upload", hybrid, "someone/hybrid").status == 0
    assert "someone/hybrid: exists and is public; change it on its page, or remove --private" in refused(
        "someone/hybrid", "--private"
    )
    assert "forbidden/a: the token may not write there (You are not of it.); use a token" in refused("forbidden/a")
    for name in ("hybrid", "a/b/c", "../b", "a/b@"):
        assert f"{name}: is not a name on the hub; use owner/name" in refused(name)
    assert "--revision: v2 contradicts the v1 of a/b@v1; use one of them" in refused("a/b@v1", "--revision", "v2")
    assert "is not a branch name" in refused("a/b", "--revision", "a b")
    monkeypatch.setenv("HF_TOKEN", "another")
    assert "upload: the token was refused; create a new one" in refused("someone/hybrid")
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def unreachable(api: HfApi) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(HfApi, "whoami", unreachable)
    assert f"upload: {hub.url} cannot be reached: Name or service not known; check the network" in refused("a/b")
    monkeypatch.delenv("HF_TOKEN")
    assert "no token is set; set HF_TOKEN to a token with write access, or run `hf auth login`" in refused("a/b")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "upload: HF_HUB_OFFLINE forbids network access; unset it, or add --dry-run" in refused("a/b")


def test_the_librarys_functions_take_what_they_are_given() -> None:
    asked = {
        HfApi.create_repo: {"repo_id", "private", "exist_ok"}, HfApi.model_info: {"repo_id"},
        HfApi.create_branch: {"repo_id", "branch", "exist_ok"},
        HfApi.upload_folder: {"repo_id", "folder_path", "commit_message", "revision", "delete_patterns"},
    }  # fmt: skip
    for function, names in asked.items():
        assert names <= inspect.signature(function).parameters.keys(), function


NAME = "someone/small@v1"
TAKES = {  # a verb's words, with the name of a model where it takes a model, a specification or a tokenizer
    "show": "{}", "diff": "{} llama-tiny", "set": "{} name=a", "cost": "{}", "draw": "{} --json",
    "tokenizer show": "{}", "tokenizer encode": "{} a", "tokenizer decode": "{} 97", "generate": "{} a --draft {}",
    "evaluate": "{} --text text.txt", "translate": "{} a", "fill": "{} [MASK]", "embed": "{} a b", "classify": "{} a",
    "answer": "{} a b", "chat": "{}", "inspect": "{} a", "bench": "decode {} --prompt 2 --new 2 --repeat 1",
    "import": "{} --to out", "transplant": "{} name=other --to changed",
    "export": "{} --to exported", "parity": "{}", "upload": "{} a/b --dry-run --to up",
    "train": "text.txt --spec {} --tokenizer {} --steps 1 --batch-size 2 --to run",
}  # fmt: skip
TAKES_NONE = {
    "demo": "trains its own", "list": "lists the presets", "check": "takes a part", "explain": "takes a kind",
    "schema": "takes nothing", "tokenizer train": "takes texts", "runs": "takes a folder of runs", "plot": "takes runs",
    "report": "takes a run", "serve": "never ends; its models are asked for below",
    "gallery write": "takes nothing", "gallery add": "reads no weights",
}  # fmt: skip
LONG = ("bench", "parity")  # of which only the control is run here
CANNOT = (
    "cannot do this",
    "does not predict classes",
    "does not mark answer spans",
    "was not trained to chat",
    "not a chat model",
)  # of another kind of model


@pytest.mark.filterwarnings("ignore::archetype.errors.Notice")
def test_a_name_with_its_revision_is_taken_everywhere(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Call
) -> None:
    """With a cache as huggingface_hub lays it out, and no network; `main` is not there, so that no verb asks for it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    store = tmp_path / "hub" / "models--someone--small"
    (store / "refs").mkdir(parents=True)
    (store / "refs" / "v1").write_text("a" * 40)
    spec = archetype.load_spec("llama-tiny").replace(name="of v1")
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("bytes", "", None))
    archetype.export(lm, store / "snapshots" / ("a" * 40))
    (tmp_path / "text.txt").write_text("the model reads a token\n" * 40)
    known = {name for name, _ in verbs() if not name.startswith("compare")}
    assert known == TAKES.keys() | TAKES_NONE.keys() | {"convert"} & known and "compare" in VERBS
    for verb, words in TAKES.items():
        with case(verb):
            if verb not in LONG:
                done = here(*verb.split(), *words.format(*[NAME] * 3).split())
                assert done.status == 0 or any(text in done.error for text in CANNOT), done.error
            missing = words.replace("--to changed", "--to other")
            control = here(*verb.split(), *missing.format(*[NAME.replace("v1", "v0")] * 3).split())
            assert control.status == 2 and "someone/small@v0" in control.error, control.error
    assert here("train", "text.txt", "--from", NAME, "--steps", "1", "--batch-size", "2", "--to", "on").status == 0
    assert [one.place for one in sources_of([NAME, f"a={NAME}"], [])] == [NAME, NAME]
    assert archetype.tokenizer(NAME).kind == "bytes"
    assert archetype.load(NAME).spec == archetype.load_spec(NAME)
