"""Chat templates by name: transformers' choice and text, in its two layouts, and in all files that are written."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import archetype
from archetype.errors import DataError
from archetype.tokenizers.chat_template import FILE, FOLDER, ChatTemplate, read_template
from archetype.tokenizers.tool_rendering import tool_form
from tests.helpers.cases import case
from tests.helpers.tool_templates import SOURCES
from tests.unit.convert.test_special_ids import TALK, published

TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
TEMPLATES = {
    "default": "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}",
    "tool_use": "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "rag": "{{ bos_token }}{{ messages[0].content }}",
}


def written(folder: Path, templates: dict[str, str], layout: str) -> Path:
    """A model with these templates in tokenizer_config.json, or in files as transformers 5 saves them."""
    published(folder, {"bos_token_id": 256, "eos_token_id": 257}, None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    if layout == "list":
        config["chat_template"] = [{"name": name, "template": source} for name, source in templates.items()]
    else:
        (folder / FOLDER).mkdir()
        for name, source in templates.items():
            (folder / FILE if name == "default" else folder / FOLDER / f"{name}.jinja").write_text(source)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def texts(folder: Path) -> list[str | None]:
    """What transformers makes of a conversation without and with tools; None where it refuses."""
    theirs = AutoTokenizer.from_pretrained(folder)
    rendered: list[str | None] = []
    for tools in (None, [], [TOOL]):
        try:
            rendered.append(theirs.apply_chat_template(TALK, tools=tools, tokenize=False))
        except ValueError:
            rendered.append(None)
    return rendered


def own_texts(template: ChatTemplate) -> list[str | None]:
    rendered: list[str | None] = []
    for tools in (None, [], [TOOL]):
        try:
            rendered.append(template.render(TALK, False, tools))
        except DataError as error:
            assert error.place in ("chat template", "tools")
            # tools that a template does not read are refused here, and left out without a word there
            rendered.append(None if error.place == "chat template" else template.render(TALK, False))
    return rendered


def test_each_is_chosen_kept_and_written(tmp_path: Path) -> None:
    names = (["default", "tool_use"], ["tool_use", "rag", "default"], ["default", "rag"], ["rag"], ["default"])
    for number, (chosen, layout) in enumerate(product(names, ("list", "files"))):
        folder = tmp_path / str(number)
        source = written(folder / "source", {name: TEMPLATES[name] for name in chosen}, layout)
        expected = texts(source)
        lm = archetype.load(source)
        assert lm.template is not None
        lm.save(folder / "run")
        archetype.export(archetype.load(folder / "run"), folder / "out")
        archetype.export(lm, folder / "gguf", format="gguf", allow_different_tokens=True)
        with case(chosen, layout):
            assert own_texts(lm.template) == expected == texts(folder / "out")
            for place in ("run", "out", "gguf/model.gguf"):
                again = archetype.load(folder / place).template
                assert again is not None and (again.source, again.named) == (lm.template.source, lm.template.named)


def test_calls_are_read_in_the_form_of_the_template_for_tools() -> None:
    name, source = next(iter(SOURCES.items()))
    plain = ChatTemplate(TEMPLATES["default"], {"eos_token": "</s>"}, {"tool_use": source})
    assert tool_form(plain) == tool_form(ChatTemplate(source, {"eos_token": "</s>"})), name


@pytest.mark.parametrize("name", ["../x", "a b", "", None, 7])
def test_a_name_that_is_no_name_of_a_file_is_refused(name: Any, tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "1"}, {"name": name, "template": "2"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"chat_template: .*names of letters") as caught:
        read_template(tmp_path)
    assert "\n" not in str(caught.value)
