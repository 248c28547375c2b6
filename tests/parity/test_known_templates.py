"""Chat templates by a family's name: the texts of the published templates, as transformers renders them."""

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from archetype.errors import DataError
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.known_templates import TEMPLATES, template_source

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PUBLISHED = {  # by name: folders whose templates write the same
    "chatml": ("Qwen__Qwen2-Audio-7B-Instruct", "cognitivecomputations__Dolphin3.0-R1-Mistral-24B"),
    "gemma": ("google__gemma-2b-it",),
    "llama-3": ("meta-llama__Llama-3.2-3B-Instruct_mediatek",),
    "mistral": ("mistralai__Mistral-7B-Instruct-v0.3",),
    "phi-3": ("microsoft__Phi-3-mini-128k-instruct",),
    "zephyr": ("HuggingFaceH4__zephyr-7b-beta", "TinyLlama__TinyLlama-1.1B-Chat-v1.0"),
}
TALK = [("user", "Hi"), ("assistant", " Well,\nhello. "), ("user", "  What is 2 + 2?\n\n"), ("assistant", "4")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_template_writes_what_the_published_one_does(name: str, shared: Path) -> None:
    has_system = not TEMPLATES[name].count("<start_of_turn>") and name != "mistral"
    ours = ChatTemplate(TEMPLATES[name], TOKENS)
    for place in PUBLISHED[name]:
        folder = shared / "published" / "configs"
        file = folder / f"{place}.chat_template.jinja"
        source = file.read_text() if file.is_file() else None
        source = source or json.loads((folder / f"{place}.tokenizer_config.json").read_text())["chat_template"]
        for length in range(1, len(TALK) + 1):
            talk = ([("system", " Be short. ")] if has_system else []) + TALK[:length]
            messages = [{"role": role, "content": content} for role, content in talk]
            prompts = (True,) if talk[-1][0] == "user" else (False,)
            for add in prompts:
                [theirs], _ = render_jinja_template(
                    conversations=[messages], chat_template=source, add_generation_prompt=add, **TOKENS
                )
                if name == "llama-3":  # which tells the date since 3.2
                    before, _, after = theirs.partition("Cutting")
                    theirs = before + after.partition("\n\n")[2]
                if name == "phi-3" and not add:
                    theirs = theirs.removesuffix("</s>")  # of an example to train on
                assert ours.render(messages, add) == theirs, (place, length)
    with pytest.raises(DataError, match="this chat template has no role tool"):
        ours.render([{"role": "tool", "content": "x"}])


def test_a_file_comes_before_a_name_and_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert template_source(Path("chatml")) == TEMPLATES["chatml"]
    Path("chatml").write_text("{{ messages }}")
    assert template_source(Path("chatml")) == "{{ messages }}"
    with pytest.raises(DataError, match=r"^chatlm: is neither a file nor a known chat template; did you mean chatml\?"):
        template_source(Path("chatlm"))
