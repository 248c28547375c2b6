"""Chat templates: the same text as transformers', and no harm from a hostile one."""

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from archetype.errors import DataError
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.chat_template import FILE, ChatTemplate, Message, read_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TALK: list[Message] = [
    {"role": "system", "content": ' Be <brief> & "kind". '},
    {"role": "user", "content": "Grüß Gott, 世界"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "{{ 7 * 7 }}\nAnd you?"},
]
TEMPLATES = {
    "marks": "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "blocks": """{% for message in messages %}
    {%- if loop.first and message.role == 'system' %}
        {{- 'S: ' + message.content.strip() + '\\n' }}
        {%- continue %}
    {%- endif %}
    {% if message.role == 'assistant' %}
{% generation %}{{ message.content + eos_token }}{% endgeneration %}
    {% else %}
[{{ message.content }}]
    {% endif %}
{% endfor %}""",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'system' %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}:{{ m | tojson }};{% endfor %}{{ messages | length * 2 }}",
    "tools": "{% if tools %}tools{% endif %}{{ messages[1:] | map(attribute='content') | join('|') }}",
    "macros": "{% macro one(m, mark='#') %}{{ mark }}{{ m.content | indent(2) }}{% endmacro %}{% set j = joiner('/') %}"
    "{% for m in messages %}{{ j() }}{{ one(m, mark=loop.cycle('a', 'b')) }}{% endfor %}{{ range(3) | list }}",
    "indented": "{{ messages[:1] | tojson(indent=2) }}{{ 'x' if documents is defined and documents else 'none' }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_transformers(name: str) -> None:
    (expected,), _ = render_jinja_template(
        conversations=[TALK], chat_template=TEMPLATES[name], add_generation_prompt=True, **TOKENS
    )
    assert ChatTemplate(TEMPLATES[name], TOKENS).render(TALK) == expected


def refusal(source: str) -> str:
    with pytest.raises(DataError) as caught:
        ChatTemplate(source, TOKENS).render(TALK)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_template_may_refuse() -> None:
    message = refusal("{{ raise_exception('roles must\nalternate') }}")
    assert message == "chat template: roles must alternate; mend the template or the messages"


WRONG = {
    "syntax": "{% for m in messages %}",
    "unknown tag": "{% frobnicate %}",
    "unknown filter": "{{ 1 | frobnicate }}",
    "a division by zero": "{{ 1 / 0 }}",
    "an undefined call": "{{ nothing() }}",
    "a wrong type": "{{ 'a' + 1 }}",
    "endless nesting": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}
HOSTILE = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "the environment": "{{ self._TemplateReference__context.environment }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}{{ os.getcwd() }}",
    "the system": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "a long text": "{{ 'a' * 10000000000 }}",
    "a long list": "{{ [0] * 10000000000 }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a long line": "{{ 'a'.ljust(10000000000) }}",
    "a wide number": "{{ '%10000000000d' % 1 }}",
    "a centred text": "{{ 'a' | center(10000000000) }}",
    "an indented text": "{{ 'a\\nb' | indent(10000000000) }}",
    "an indented mapping": "{{ {'a': 1} | tojson(indent=10000000000) }}",
    "a format": "{{ '{:>10000000000}'.format(1) }}",
    "a filter that formats": "{{ '%10000000000d' | format(1) }}",
    "doubling": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a long range": "{% for i in range(10000000000) %}{% endfor %}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a change": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_template_is_one_line(name: str) -> None:
    assert refusal(WRONG[name]).startswith("chat template: ")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused(name: str) -> None:
    """Some would run for hours."""
    assert refusal(HOSTILE[name]).startswith("chat template: ")


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}1"}))
    found = read_template(tmp_path)
    assert found is not None and found.render(TALK) == "<s>1"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "2"}]
    config.write_text(json.dumps({"chat_template": several}))
    found = read_template(tmp_path)
    assert found is not None and found.render(TALK) == "2"
    (tmp_path / FILE).write_text("3")  # the newer place goes before
    found = read_template(tmp_path)
    assert found is not None and found.render(TALK) == "3"


@pytest.mark.parametrize("template", [7, {"a": 1}])
def test_what_is_no_template_is_named(tmp_path: Path, template: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(DataError, match="chat_template: is no text"):
        read_template(tmp_path)


def test_special_tokens_that_a_template_spells_out_are_ids() -> None:
    made = train_tokenizer("byte_bpe", "hello hello world", 300)
    (name, id), *_ = made.special_tokens.items()
    expected = [id, *made.encode("hello"), id, id, *made.encode(" world")]
    assert made.encode_with_special_tokens(f"{name}hello{name}{name} world") == expected
    made.reads_special = False  # as SentencePiece and tiktoken
    assert made.encode_with_special_tokens(f"{name}hello{name}{name} world") == expected
