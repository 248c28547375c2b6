"""Fields of records hold what they should in every format, or the file and the line are named."""

import json
from pathlib import Path

import pytest

from archetype.data.records import TEXT_AND_LABEL, Form, read_records
from archetype.errors import DataError
from archetype.training.datasets import Data
from archetype.training.examples import RecordData

NOT_A_TEXT = (None, "", ["a", "b"], {"a": 1}, True, 5)
VALUES = {"str": "a", "int": 1, "float": 0.5, "list": ["a"], "dict": {"a": "b"}, "bool": True, "NoneType": None}
FORMS = {
    (kind, field): form
    for kind, data in Data.kinds.items()
    if issubclass(data, RecordData)
    for field, form in data.record_fields.items()
}


def refusal(file: Path) -> str:
    with pytest.raises(DataError) as error:
        read_records(file, TEXT_AND_LABEL)
    return str(error.value).removeprefix(f"{file}: ")


@pytest.mark.parametrize(("kind", "field"), FORMS)
def test_a_field_holds_its_form_and_nothing_else(kind: str, field: str) -> None:
    form = FORMS[kind, field]
    for name, value in VALUES.items():
        right = name in {cls.__name__ for cls in form.types} and (name != "list" or str in (form.items or (str,)))
        assert form.holds(value) == right, name


@pytest.mark.parametrize("value", NOT_A_TEXT, ids=str)
def test_what_is_not_a_text_is_refused_with_its_line_in_json_lines(value: object, tmp_path: Path) -> None:
    right = {"text": "a", "label": 0.5}
    for field in ("text", "label"):
        if field == "label" and value == 5 and value is not True:
            continue
        file = tmp_path / f"{field}.jsonl"
        file.write_text(f"{json.dumps(right)}\n\n{json.dumps(right | {field: value})}\n")
        assert refusal(file).startswith(f"line 3: {'has no ' if value in (None, '') else ''}{field}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a, b,x", "line 3: has 3 fields, but the header has 2; put fields that contain commas in quotes"),
        ("a", "line 3: has 1 field, but the header has 2; add the others"),
        (",x", "line 3: has no text; add a text"),
        ('"a\nb",x,y', "line 4: has 3 fields, but the header has 2"),
        ('"a\nb",x\n,x', "line 5: has no text; add a text"),
    ],
)
def test_a_row_of_another_number_of_fields_is_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'text,label\n"right, and quoted",x\n{line}\n')
    assert refusal(tmp_path / "a.csv").startswith(message)


def test_lists_are_looked_into() -> None:
    assert Form("words", (list,), (str,)).holds(["a"]) and not Form("words", (list,), (str,)).holds(["a", None])
