"""`--json` of every verb: who has it, which keys it has, and the one schema of verbs, kinds and fields."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archetype.apps.cli import main
from archetype.spec import describe
from archetype.spec.catalogue import record
from tests.helpers.cases import case
from tests.helpers.options import verbs

WITHOUT = {"schema": "prints JSON anyway", "compare schema": "prints JSON anyway"}
# Verbs that can run for longer than a minute, and the options that end them
LONG = {
    **dict.fromkeys(("demo", "train", "evaluate", "generate", "translate", "bench"), "--minutes"),
    "chat": "--max-new-tokens", "serve": "--timeout",
    **{f"compare {verb}": "--minutes" for verb in ("models", "run", "extend", "calibrate", "claim", "all", "search")},
}  # fmt: skip
KEYS = {  # of quick commands: no key is renamed
    "list": {"presets", "published"},
    "diff llama-tiny gpt2-tiny": {"differences"},
    "diff llama-tiny gpt2-tiny --set": {"assignments"},
    "cost llama-tiny": {"batch", "length", "parameters", "flops", "state", "memory", "modules"},
    "cost llama-tiny gpt2-tiny --compare": {"specifications"},
    "explain": {"roles"},
    "explain pattern": {"roles"},
    "explain rotary": {"kind", "kinds"},
    "explain --all": {"version", "verbs", "exit_statuses", "roles", "kinds"},
    "gallery write --only llama-3-8b": {"page", "models"},
    "gallery add llama-tiny --only llama-3-8b": {"page", "id", "needs"},
}  # fmt: skip


def printed(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main.app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return printed("explain", "--all")


def test_every_verb_prints_json() -> None:
    have = {name: any("--json" in option.opts for option in command.params) for name, command in verbs()}
    assert {name for name, has_it in have.items() if not has_it} == WITHOUT.keys()


@pytest.mark.parametrize("command", KEYS)
def test_the_keys_of_quick_commands_stay(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = printed(*command.split()).keys()
    assert KEYS[command] <= keys if command.startswith("cost") else KEYS[command] == keys


def test_the_schema_has_every_verb_with_its_options(everything: dict[str, Any]) -> None:
    by_name = {verb["verb"]: verb for verb in everything["verbs"]}
    assert [*by_name] == [name for name, _ in verbs()]
    for name, command in verbs():
        with case(name):
            options = {option["name"]: option for option in by_name[name]["options"]}
            assert options.keys() == {each.opts[0] for each in command.params if each.param_type_name == "option"}
            assert all(option["help"] for option in options.values()) and by_name[name]["help"]
    train = {option["name"]: option for option in by_name["train"]["options"]}
    assert (train["--minutes"]["type"], train["--text"]["repeats"], train["--steps"]["default"]) == (
        "number", True, "chosen to fit the text",
    )  # fmt: skip
    assert [argument["name"] for argument in by_name["transplant"]["arguments"]] == ["MODEL", "PATH=VALUE"]
    assert by_name["plot"]["options"][0]["choices"] == ["steps", "tokens", "flops", "seconds"]


def test_long_verbs_have_a_budget(everything: dict[str, Any]) -> None:
    budgets = {verb["verb"]: verb["budgets"] for verb in everything["verbs"]}
    assert {verb for verb, option in LONG.items() if option not in budgets[verb]} == set()


def test_the_schema_has_every_kind_with_its_fields(everything: dict[str, Any]) -> None:
    records = {(one["role"], one["kind"]): one for one in everything["kinds"] if one["kind"]}
    for role, cls in describe.kinds():
        with case(role, cls.__name__):
            one = records[role, cls.model_fields["kind"].default]
            assert [field["name"] for field in one["fields"]] == [name for name in cls.model_fields if name != "kind"]
            assert all(field["meaning"] and field["type"] for field in one["fields"]), one
            assert one["meaning"] and one["kind"] in everything["roles"][role]
    attention = records["mixer", "attention"]
    assert {"module", "cost", "diagram", "parallel", "transplant"} <= set(attention["capabilities"])
    assert "parallel" not in records["mixer", "mamba2"]["capabilities"]
    fields = {field["name"]: field for field in attention["fields"]}
    assert fields["position"]["type"] == "kind of mixer position" and fields["num_heads"]["required"]
    assert fields["num_kv_heads"]["type"] == "integer or null" and fields["num_kv_heads"]["default"] is None


def test_one_kind_is_explained_as_in_the_whole(everything: dict[str, Any]) -> None:
    one = printed("explain", "gqa")
    assert one["kind"] == "attention" and all(kind in everything["kinds"] for kind in one["kinds"])
    assert printed("explain", "mixer")["roles"].keys() == {"mixer"}
    (role, cls), *_ = describe.classes_of("mamba2")[0]
    assert "Dao 2024" in record(role, cls)["sources"]
