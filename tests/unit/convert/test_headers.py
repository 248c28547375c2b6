"""Specifications without weights: from a config.json alone, from headers, and from a name of the hub."""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.main import app
from archetype.convert.source import open_spec, read_hf_spec
from archetype.errors import ArchetypeError, CheckpointError, UnknownFamily
from archetype.estimate.report import total_parameters
from archetype.io import hub
from archetype.io.low_bit.header import plain_header
from archetype.io.low_bit.settings import read_settings
from archetype.io.weight_files import INDEX, SINGLE, header
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.hub import Hub, copy_headers, serving, write_headers
from tests.helpers.weights import randomize
from tests.helpers.zoo import TASKS, write_small

KNOWN, UNKNOWN = "llama", "mystery"
pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny Llama in two files, under its own name, under one that nobody knows, and without an index."""
    root = tmp_path_factory.mktemp("models")
    spec = assign(open_spec("llama-tiny"), ["vocab_size=31", "context_length=32"])
    archetype.export(LanguageModel(spec, randomize(build(spec))), root / KNOWN, shard_bytes=100_000)
    folders = {KNOWN: root / KNOWN, UNKNOWN: copy_headers(root / KNOWN, root / UNKNOWN)}
    config = json.loads((folders[UNKNOWN] / "config.json").read_text())
    named = config | {"model_type": UNKNOWN, "architectures": ["MysteryForCausalLM"]}
    (folders[UNKNOWN] / "config.json").write_text(json.dumps(named))
    folders["changed"] = copy_headers(folders[UNKNOWN], root / "changed")
    (folders["changed"] / "config.json").write_text(json.dumps(named | {"rms_norm_eps": 0.5}))
    folders["bare"] = root / "bare"
    folders["bare"].mkdir()
    (folders["bare"] / "config.json").write_text(json.dumps(named))
    return folders


@pytest.fixture
def served(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    models = {
        "someone/known": {"main": folders[KNOWN]},
        "someone/unknown": {"main": folders[UNKNOWN], "v1.5": folders["changed"]},
        "someone/bare": {"main": folders["bare"]},
    }
    with serving(models, tmp_path / "cache", monkeypatch) as server:
        yield server


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_headers_say_what_the_files_say(folders: dict[str, Path]) -> None:
    whole, cut = header(folders[KNOWN]), header(folders[UNKNOWN])
    assert len(list(folders[UNKNOWN].glob("*.safetensors"))) > 1 and whole == cut
    assert whole["lm_head.weight"] == ("F32", (31, 64))
    assert total_parameters(open_spec(folders[UNKNOWN])) == sum(prod(one.shape) for one in cut.values())
    assert open_spec(folders[UNKNOWN]) == open_spec(folders[KNOWN])


def test_a_header_is_no_model(folders: dict[str, Path]) -> None:
    """What costs read is too little to load."""
    with pytest.raises(CheckpointError, match="is not a complete safetensors file"):
        archetype.load(folders[UNKNOWN])


def test_a_config_alone_is_enough_where_the_family_is_registered(folders: dict[str, Path], tmp_path: Path) -> None:
    alone = tmp_path / "config.json"
    alone.write_bytes((folders[KNOWN] / "config.json").read_bytes())
    other = tmp_path / "some-llama.json"
    other.write_bytes(alone.read_bytes())
    for source in (alone, other, tmp_path):
        with case(source):
            assert open_spec(source) == open_spec(folders[KNOWN])


def test_a_config_of_another_family_says_what_it_needs(folders: dict[str, Path], tmp_path: Path) -> None:
    beside = folders[UNKNOWN] / "config.json"
    assert open_spec(beside) == open_spec(folders[UNKNOWN])
    renamed = folders[UNKNOWN] / "other.json"  # may be of another model than the files beside it
    renamed.write_bytes(beside.read_bytes())
    for source in (folders["bare"], folders["bare"] / "config.json", renamed):
        with case(source), pytest.raises(CheckpointError) as caught:
            open_spec(source)
        assert "is inferred from its tensors" in str(caught.value)
        assert "owner/name" in str(caught.value) and "\n" not in str(caught.value)
    renamed.unlink()


def test_a_config_of_a_type_that_transformers_knows_is_enough(tmp_path: Path) -> None:
    """Alone, and of a model that also reads images."""
    for task, kind in (("causal", "qwen3_5_text"), ("image_text", "llava")):
        with case(kind):
            write_small(kind, folder := tmp_path / kind, TASKS[task])
            expected = open_spec(folder)
            (folder / "model.safetensors").unlink()
            assert open_spec(folder) == open_spec(folder / "config.json") == expected


@pytest.mark.parametrize("source", ["known", "unknown", "unknown@v1.5"])
def test_a_name_of_the_hub_is_costed_from_headers(source: str, served: Hub, folders: dict[str, Path]) -> None:
    expected = folders[KNOWN] if source == "known" else folders["changed" if "@" in source else UNKNOWN]
    assert open_spec(f"someone/{source}") == open_spec(expected)
    assert served.sent < 40_000
    assert total_parameters(open_spec(f"someone/{source}")) == sum(prod(one.shape) for one in header(expected).values())


def test_a_header_that_was_fetched_once_needs_no_file_again(served: Hub, folders: dict[str, Path]) -> None:
    whole = hub.header("someone/known")
    assert whole == header(folders[KNOWN])
    before = served.sent
    archetype.load("someone/known")
    after = served.sent
    assert after > before and hub.header("someone/known") == whole and served.sent == after


def test_of_two_sets_on_the_hub_the_whole_file_is_costed_as_it_is_loaded(
    served: Hub, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Beside a stale index, costs are counted from the whole file that loading reads."""
    both = tmp_path / "both"
    both.mkdir()
    (both / "config.json").write_bytes((folders[KNOWN] / "config.json").read_bytes())
    tensors = {name: one for file in folders[KNOWN].glob("*.safetensors") for name, one in load_file(file).items()}
    save_file(tensors, both / SINGLE)
    save_file({"gone.weight": tensors["lm_head.weight"]}, both / "model-00001-of-00001.safetensors")
    stale = {"weight_map": {"gone.weight": "model-00001-of-00001.safetensors"}}
    (both / INDEX).write_text(json.dumps(stale))
    served.models["someone/both"] = {"main": both}
    assert hub.header("someone/both") == header(both) == header(folders[KNOWN])


def test_a_revision_is_loaded(served: Hub, folders: dict[str, Path]) -> None:
    served.models["someone/known"]["old"] = folders[KNOWN].with_name("old")
    folders[KNOWN].with_name("old").mkdir(exist_ok=True)
    for file in folders[KNOWN].iterdir():
        data = file.read_bytes()
        if file.suffix == ".safetensors":
            tensors = {name: -tensor for name, tensor in load_file(file).items()}
            save_file(tensors, folders[KNOWN].with_name("old") / file.name, {"format": "pt"})
        else:
            (folders[KNOWN].with_name("old") / file.name).write_bytes(data)
    main, old = (archetype.load(f"someone/known{revision}").model.state_dict() for revision in ("", "@old"))
    assert all((main[name] == -old[name]).all() for name in main)
    by_commit = archetype.load(f"someone/known@{Path(hub.download('someone/known@old', [])).name}").model.state_dict()
    assert all((by_commit[name] == old[name]).all() for name in old)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("someone/other", "is neither a local folder nor a model on huggingface.co that you may read"),
        ("someone/known@v9", "someone/known has no revision v9; use a branch, a tag or a commit"),
        ("someone/bare", f"someone/bare: there is no {SINGLE} to read the header from"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(source: str, message: str, served: Hub) -> None:
    with pytest.raises(ArchetypeError) as caught:
        open_spec(source)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_without_a_network_a_model_whose_config_was_fetched_says_what_is_missing(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = open_spec("someone/known")
    hub.download("someone/unknown", ["config.json"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_spec("someone/known") == known
    with pytest.raises(CheckpointError) as caught:
        open_spec("someone/unknown")
    assert "HF_HUB_OFFLINE" in str(caught.value) and "\n" not in str(caught.value)


def test_messages_name_the_model_and_not_where_it_is_kept(served: Hub, folders: dict[str, Path]) -> None:
    with pytest.warns(UnknownFamily, match=r"^someone/unknown@v1\.5: mystery is not a registered family"):
        open_spec("someone/unknown@v1.5")
    config = json.loads((folders[KNOWN] / "config.json").read_text())
    wrong = folders[KNOWN].with_name("wrong")
    wrong.mkdir()
    (wrong / "config.json").write_text(json.dumps(config | {"hidden_size": -1}))
    served.models["someone/wrong"] = {"main": wrong}
    with pytest.raises(CheckpointError, match=r"^someone/wrong/config\.json: hidden_size: "):
        open_spec("someone/wrong")


def test_a_server_that_fails_midway_is_one_line(served: Hub) -> None:
    hub.download("someone/unknown", ["config.json", INDEX])
    served.broken = True
    with pytest.raises(CheckpointError, match=r"someone/unknown: the header of model-.* cannot be read: ") as caught:
        open_spec("someone/unknown")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["file", "folder", "hub"])
def test_verbs_take_a_model_without_weights(form: str, served: Hub, folders: dict[str, Path], tmp_path: Path) -> None:
    file = folders[UNKNOWN] / "config.json"
    source = {"file": str(file), "folder": str(folders[UNKNOWN]), "hub": "someone/unknown@main"}[form]
    total = total_parameters(open_spec(folders[KNOWN]))
    assert json.loads(run("cost", source, "--json"))["parameters"]["total"] == total
    assert json.loads(run("show", source, "--json"))["d_model"] == 64
    assert json.loads(run("show", source, "--explain", "--json"))["family"] == UNKNOWN
    assert "vocab_size: 31 -> 256" in run("diff", source, "llama-tiny")
    assert "<svg" in Path(run("draw", source, "-o", str(tmp_path / "it.svg")).strip()).read_text()


def test_the_name_of_a_drawing_keeps_the_number_of_a_version(served: Hub) -> None:
    assert run("draw", "someone/unknown@v1.5").strip() == "unknown@v1.5.svg"


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "a size alone": (100).to_bytes(8, "little"),
    "cut": (100).to_bytes(8, "little") + b'{"a": {"dtype"',
    "too large": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": (4).to_bytes(8, "little") + b"abcd",
    "a list": (2).to_bytes(8, "little") + b"[]",
    **{
        f"tensor {entry}": len(text := json.dumps({"a": entry}).encode()).to_bytes(8, "little") + text
        for entry in (
            None, [], {}, {"dtype": "F32"}, {"dtype": 3, "shape": [1]}, {"dtype": "F32", "shape": "1"},
            {"dtype": "F32", "shape": [-1]}, {"dtype": "F32", "shape": [1.5]}, {"dtype": "F32", "shape": [True]},
        )
    },
}  # fmt: skip


def test_a_damaged_header_is_refused_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folders[UNKNOWN] / "config.json").read_bytes())
    for name, data in DAMAGED.items():
        (tmp_path / SINGLE).write_bytes(data)
        with case(name), pytest.raises(CheckpointError) as caught:
            open_spec(tmp_path)
        assert str(tmp_path / SINGLE) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::archetype.errors.UnreadKeys")
def test_published_headers_are_costed_to_the_unit(shared: Path, tmp_path: Path) -> None:
    """Or refused in one line, whose cause is the reader's affair."""
    root, read = shared / "published", []
    for file in sorted((root / "headers_derived").glob("*.header.json")):
        tensors = json.loads(file.read_text())
        config = root / "configs" / tensors.pop("__metadata__")["config"]
        folder = tmp_path / file.stem
        if not config.is_file():
            continue
        folder.mkdir()
        (folder / "config.json").write_bytes(config.read_bytes())
        write_headers(folder, {SINGLE: tensors})
        with case(file.stem):
            try:
                family, spec = read_hf_spec(folder)
            except CheckpointError as error:
                assert "\n" not in str(error)
                continue
            left_out = family.reading.left_out if family.reading else ()
            settings, stored = read_settings(json.loads(config.read_text())), header(folder)
            plain = stored if settings is None else plain_header(stored, settings)
            numbers = sum(prod(tensor.shape) for name, tensor in plain.items() if name not in left_out)
            assert total_parameters(spec) == numbers
            read.append(file.stem)
    assert len(read) >= 19
