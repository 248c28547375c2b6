"""What `generate --input` writes for a line is what the model says to it alone."""

import json
from pathlib import Path

import archetype
from archetype.apps.cli.prompt_file import generate_file, read_prompts
from archetype.generate import Engine
from archetype.tokenizers.chat_template import ChatTemplate


def test_settings_of_a_line_come_before_those_of_all_and_answers_begin_anew(shared: Path, tmp_path: Path) -> None:
    """The model's tokens begin with spaces: a text goes on with one, an answer begins without."""
    lm = archetype.load(shared / "stories260K")
    lm.template = ChatTemplate("{% for message in messages %}{{ message.content }}{% endfor %}", {})
    told, settings = "Tom had a big red car. He", {"temperature": 0.0, "max_new_tokens": 9}
    lines = [
        {"id": "text", "prompt": told},
        {"id": "answer", "messages": [{"role": "user", "content": told}]},
        {"id": "short", "prompt": told, "max_new_tokens": 3},
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "texts.jsonl"
    summary = generate_file(lm, Engine(lm), read_prompts(tmp_path / "prompts.jsonl"), output, settings)
    texts = {record["id"]: record for record in map(json.loads, output.read_text().splitlines())}
    text = lm.generate(told, **settings)
    assert text.startswith(" ") and texts["text"]["text"] == text
    answer = lm.chat([{"role": "user", "content": told}], **settings)
    assert answer.strip() == answer and texts["answer"]["text"] == answer
    assert texts["short"]["text"] == lm.generate(told, temperature=0.0, max_new_tokens=3)
    assert [texts[name]["completion_tokens"] for name in ("text", "answer", "short")] == [9, 9, 3]
    assert summary["tokens"] == 21 and summary["finished"] == 3
