"""Which keys the classes of transformers read, by release: the nearest release that is known counts, and is named."""

import warnings
from typing import Any

import pytest

from archetype.errors import ReadOtherwise
from archetype.families import class_keys
from archetype.families.class_keys import keys_read, nearest, releases, tables, warn_of_releases

CODEGEN = {"model_type": "codegen", "architectures": ["CodeGenForCausalLM"], "n_ctx": 2048}
FALCON = {"model_type": "falcon", "architectures": ["FalconForCausalLM"], "surprise": 1, "initializer_range": 0.1}


def said(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], installed: str | None = None, is_registered: bool = False
) -> list[str]:
    monkeypatch.setattr(class_keys, "_installed", lambda: installed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_releases(values, "config.json", is_registered)
    assert all(one.category is ReadOtherwise for one in told)
    return [str(one.message) for one in told]


def test_a_release_between_two_has_the_rows_of_the_one_before() -> None:
    rows = {"llama": [["Llama"], {"a": 1}], "added": [["Added"], {}]}
    older = {"5.3": {"added": None}, "5.10": {"gone": [["Gone"], {}]}}
    known = tables({"version": "5.9", "types": rows, "older": older})
    assert {release: sorted(one) for release, one in known.items()} == {
        (5, 3): ["llama"], (5, 9): ["added", "llama"], (5, 10): ["added", "gone", "llama"],
    }  # fmt: skip
    chosen = [nearest(known, one) for one in ((5, 2), (5, 3), (5, 8), (5, 9), (5, 11), (6, 0))]
    assert chosen == [(5, 3), (5, 3), (5, 3), (5, 9), (5, 10), (5, 10)]


def test_both_ends_are_kept() -> None:
    older, newer = (class_keys.class_keys(one) for one in ((5, 23), (5, 24)))
    assert {(5, 23), (5, 24)} <= set(releases())
    assert newer.keys() - older.keys() == {
        "apertus1p5_text", "dory", "exaone", "inkling2_loop_text", "lara_mini", "sarvam_mla", "sarvam_moe",
    }  # fmt: skip
    assert "n_ctx" in older["codegen"].defaults and "n_ctx" not in newer["codegen"].defaults
    assert older["falcon"] == newer["falcon"]


def test_a_file_of_a_later_release_is_read_as_the_newest_known_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once was read as if nothing were known of its type, and keys counted that its class does not read."""
    assert keys_read(FALCON | {"transformers_version": "9.1.0"}) == keys_read(FALCON)
    newest = ".".join(map(str, releases()[-1]))
    assert said(monkeypatch, FALCON | {"transformers_version": "9.1.0"}) == [
        f"config.json: was written by transformers 9.1.0 and is read as by {newest}, the newest known release, which "
        "ignores surprise"
    ]
    later = {"transformers_version": "9.1.0"}
    for quiet in ({"transformers_version": "5.24.0"}, later | {"architectures": ["Other"]}, {}):
        assert said(monkeypatch, FALCON | quiet) == []
    assert said(monkeypatch, FALCON | later, is_registered=True) == []  # it refuses the key
    assert len(said(monkeypatch, {"model_type": "x", "transformers_version": "9.1", "text_config": FALCON})) == 1


@pytest.mark.parametrize("installed", ["5.23.0", "5.23.4"])
def test_a_key_that_the_installed_release_reads_otherwise_is_named(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(monkeypatch, CODEGEN, installed) == [
        f"config.json: the installed transformers {installed} and 5.24 read n_ctx differently; it is read as by the "
        "codegen classes of 5.24"
    ]
    assert said(monkeypatch, {key: value for key, value in CODEGEN.items() if key != "n_ctx"}, installed) == []
    for other in ("5.24.0", "5.0.0", "6.0", None):
        assert said(monkeypatch, CODEGEN, other) == []
