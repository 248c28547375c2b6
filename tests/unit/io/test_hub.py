"""Models of the hub: found where huggingface_hub keeps them, without a network."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file

import archetype
from archetype.convert.source import open_spec
from archetype.errors import ArchetypeError, CheckpointError, DataError
from archetype.io.hub import FURTHER_FOLDERS, PATTERNS, data_set_revision, download, is_name, local
from archetype.io.weight_files import SINGLE


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of the hub's files, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def kept(store: Path, folder: Path) -> Path:
    """A folder as the library keeps a model that it has fetched."""
    model = store / "models--someone--small"
    shutil.copytree(folder, model / "snapshots" / "abc")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    return model / "snapshots" / "abc"


@pytest.mark.parametrize("name", ["llama"])
def test_a_model_that_was_fetched_is_loaded_by_its_name(offline: Path, folder: Path) -> None:
    place = kept(offline, folder)
    assert download("someone/small", PATTERNS) == local(Path("someone/small")) == place
    lm = archetype.load("someone/small")
    expected = load_file(folder / SINGLE)["lm_head.weight"]
    assert (lm.model.state_dict()["lm_head.weight"] == expected).all()
    assert open_spec("someone/small") == lm.spec


@pytest.mark.parametrize("call", [archetype.load, open_spec])
def test_a_model_that_was_not_fetched_is_told(offline: Path, call: object) -> None:
    with pytest.raises(ArchetypeError) as caught:
        call("someone/other")  # type: ignore[operator]
    assert str(caught.value).startswith("someone/other: is not a local folder, and huggingface.co cannot be reached; ")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("someone/small", True), ("Some-one/small_1.5B", True), ("someone/small@main", True), ("a/b@v1.0", True),
        ("a/b@refs/pr/5", True), ("a/b@", False), ("a/b@..", False), ("a/b@-x", False), ("a/b@v 1", False),
        ("a@b/c", False), ("small", False), ("a/b/c", False), ("/a/b", False),
        ("../b", False), ("./b", False), ("a/..", False), ("a /b", False), ("a/b c", False), ("", False),
    ],
)  # fmt: skip
def test_what_may_be_a_name(name: str, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_name(name) == is_one


def test_what_looks_like_a_path_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in the name of a run asks no network."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert not is_name("runs/frist")
    with pytest.raises(CheckpointError, match="there is no such folder"):
        archetype.load("runs/frist")


def test_files_that_are_code_are_never_asked_for(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, object] = {}
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **how: asked.update(how) or str(offline))
    local(Path("someone/small"))
    assert asked == {"revision": None, "allow_patterns": PATTERNS, "ignore_patterns": [FURTHER_FOLDERS]}
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in PATTERNS)
    local(Path("someone/small"), allow_pickle=True)
    assert asked["allow_patterns"] == [*PATTERNS, "pytorch_model*.bin"]


def test_a_data_set_whose_revision_cannot_be_asked_for_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the network library raises: its errors are no OSErrors."""

    class ConnectError(Exception):
        pass

    def refuse(api: object, name: str) -> None:
        raise ConnectError("Name or service\nnot known")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    with pytest.raises(DataError, match=r"^hf:owner/name: .* cannot be looked up: Name or service not known; "):
        data_set_revision("owner/name")
