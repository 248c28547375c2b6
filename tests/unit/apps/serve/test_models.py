"""Chat templates of models that are served and not yet loaded."""

from pathlib import Path

import pytest

from archetype.apps.serve.models import ModelOptions, Models, Source
from archetype.errors import DataError


def chats(place: Path, template: Path | None = None) -> bool | None:
    source = Source("model", str(place))
    options = ModelOptions(lambda _: pytest.fail("a model was loaded"), chat_template=template)
    return Models([source], options).has_chat_template(source)


def test_whether_a_model_chats_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", tmp_path / "folder"
    (run / "tokenizer").mkdir(parents=True)
    folder.mkdir()
    assert chats(run) is False and chats(folder) is False and chats(Path("owner/name")) is None
    for place in (run / "tokenizer", folder):
        (place / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert chats(run) is True and chats(folder) is True
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    assert chats(folder) is True
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        chats(folder)


def test_a_template_of_the_command_line_lets_every_model_chat(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    assert chats(tmp_path, template) is True and chats(Path("owner/name"), template) is True
