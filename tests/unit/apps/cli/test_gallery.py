"""`archetype gallery`: a card from a configuration alone, for what can be said and for what cannot."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype.apps.cli import gallery
from archetype.errors import ArchetypeError
from archetype.families.registry import family_of, preset
from archetype.gallery.site import ADDED, added_to, all_cards
from archetype.spec.base import fingerprint

ONE = ("--only", "llama-3-8b")


def run(*arguments: object) -> str:
    """Output of the command."""
    result = CliRunner().invoke(gallery.app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with the configuration of a small Llama, and no weights."""
    family = family_of({"model_type": "llama"})
    assert family is not None
    folder = tmp_path / "Small-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(family.format.config_for(preset("llama-tiny"))))
    return folder


def test_a_configuration_alone_makes_a_card(llama: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    output = run("add", llama, *ONE, "--to", site, "--ancestor", "llama-3-8b", "--date", "2026-11-30")
    assert output.strip() == str(site / "small-llama.html")
    page = (site / "small-llama.html").read_text()
    assert "123,712" in page and "2026-11-30" in page and 'href="llama-3-8b.html"' in page
    assert "archetype set llama-3-8b" in page and (site / "small-llama-changes.svg").is_file()
    assert 'data-id="small-llama"' in (site / "index.html").read_text()
    # it stays when the gallery is written again, and is replaced when it is added again
    run(*ONE, "--to", site)
    assert 'data-id="small-llama"' in (site / "index.html").read_text()
    run("add", llama, *ONE, "--to", site, "--why", "It is small.")
    (entry,) = added_to(site)
    assert entry.why == "It is small." and entry.type == "llama"
    assert fingerprint(all_cards([entry])[-1].spec) == fingerprint(preset("llama-tiny"))


def test_a_place_that_cannot_be_written_is_named(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, and no folder")
    site = tmp_path / "file" / "site"
    for arguments in ((), ("add", llama)):
        with pytest.raises(ArchetypeError, match=f"^{site}: cannot be written: "):
            run(*arguments, *ONE, "--to", site)


def test_a_version_in_the_name_of_a_folder_stays(llama: Path, tmp_path: Path) -> None:
    for source in (llama.rename(tmp_path / "Small-5.3"), tmp_path / "Small-5.3" / "config.json"):
        assert run("add", source, *ONE, "--to", tmp_path / "site").strip().endswith("small-5.3.html")


def test_what_cannot_be_said_is_a_grey_card(llama: Path, tmp_path: Path) -> None:
    values = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(values | {"architectures": ["BitNet"]}))
    output = run("add", llama, *ONE, "--to", tmp_path / "site")
    assert "BitNet" in output
    page = (tmp_path / "site" / "small-llama.html").read_text()
    assert "Not supported yet" in page and "BitNet" in page and "<svg" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-tiny", "--date", "2023"), "--date: '2023' is not a date"),
        (("llama-tiny", "--ancestor", "nope"), "--ancestor: 'nope' is neither in the gallery nor a preset"),
        (("nowhere.json",), "there is no such file or folder"),
        (("llama-tiny", "--only", "kimi-k"), "--only: the gallery has no model 'kimi-k'; did you mean kimi-k"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArchetypeError) as caught:
        run("add", *arguments, "--to", tmp_path / "site")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "site").exists()


def test_a_damaged_list_of_added_models_is_named(llama: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / ADDED).write_text('[{"id": 3}]')
    with pytest.raises(ArchetypeError, match=r"added.json: is not a list of gallery models; delete it"):
        run(*ONE, "--to", site)


def test_a_type_that_is_not_registered_is_a_grey_card_without_its_tensors(llama: Path, tmp_path: Path) -> None:
    values = json.loads((llama / "config.json").read_text())
    shutil.rmtree(llama)
    llama.mkdir()
    (llama / "config.json").write_text(json.dumps(values | {"model_type": "unheard_of", "architectures": ["Unheard"]}))
    needs = "the names and shapes of its tensors, because the type unheard_of is not registered"
    assert f"needs {needs}" in run("add", llama, *ONE, "--to", tmp_path / "site")
    page = (tmp_path / "site" / "small-llama.html").read_text()
    assert "Not supported yet" in page and needs in page and "<svg" not in page


def test_a_value_that_is_not_read_is_named_on_a_grey_card(llama: Path, tmp_path: Path) -> None:
    values = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps(values | {"architectures": ["BitNet"]}))
    needs = "needs support for its architectures ('BitNet' is not supported in the llama format)"
    assert needs in run("add", llama, *ONE, "--to", tmp_path / "site")
