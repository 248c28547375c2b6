"""Chat templates: the same text as transformers', and no harm from a hostile one."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from archetype.confined.process import Confined
from archetype.errors import DataError
from archetype.tokenizers import chat_template, train_tokenizer
from archetype.tokenizers.chat_template import FILE, ChatTemplate, Message, read_template
from tests.helpers.cases import case

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
    assert message == "chat template: roles must alternate; fix the template or the messages"


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
    "few long slices": "{{ messages | slice(1000000000) | list | length }}",
    "many slices": "{{ messages | slice(99999, 'x') | list | length }}",
    "a long batch": "{{ messages | batch(1000000000, 'x') | list }}",
    "batches of a number that is not whole": "{{ messages | batch(1000000000.0, 'x') | list }}",
    "a break outside a loop": "{% break %}",
    "too many blocks": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "replacing in half a limit": "{% set s = 'a' * 65536 %}{{ s.replace('a', s) }}",
    "joining in half a limit": "{% set s = 'a' * 65536 %}{{ s.join(s) }}{{ s | join(s) }}",
    "a long error": "{{ raise_exception('a' * 99999) }}",
    "a long name": "{{ missing" + "g" * 60_000 + "() }}",
    "words": "{% set s = 'ab ' * 99999 %}{{ (s * 40).split() | length }}",
    "joined by name": "{% set s = 'a' * 65536 %}{{ s | replace(old='a', new=s) }}",
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
    "loops in a macro": "{% macro f() %}{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    "{% endmacro %}{{ f() | length }}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop(range(99999)) }}{{ loop([1, 1]) }}{% endfor %}",
    "macros that call two": "{% macro f(n) %}{% if n %}"
    "{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "nested lists": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
    "{{ ns.s }}",
    "nested mappings": "{% set ns = namespace(s=1) %}{% for i in range(60) %}{% set ns.s = dict(a=ns.s, b=ns.s) %}"
    "{% endfor %}{{ ns.s == ns.s | tojson }}",
    "nested namespaces": "{% set ns = namespace(s=1) %}"
    "{% for i in range(60) %}{% set ns.s = namespace(a=ns.s, b=ns.s) %}"
    "{% endfor %}{{ ns.s.a | tojson }}",
    "doubling by +": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling of lists": "{% set ns = namespace(s=[1]) %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by join": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] | join %}"
    "{% endfor %}",
    "doubling by a block": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set t %}{{ ns.s }}{{ ns.s }}"
    "{% endset %}{% set ns.s = t %}{% endfor %}",
    "replacing": "{% set s = 'a' * 99999 %}{{ s.replace('a', s) }}",
    "a filter that replaces": "{% set s = 'a' * 99999 %}{{ s | replace('a', s) }}",
    "joining": "{% set s = 'a' * 99999 %}{{ s.join(range(99999) | map('string')) }}",
    "a filter that joins": "{% set s = 'a' * 99999 %}{{ range(99999) | map('string') | join(s) }}",
    "indenting": "{% set s = 'a\n' * 99999 %}{{ s | indent(99999) }}",
    "tabs": "{% set s = '\t' * 99999 %}{{ s.expandtabs(99999) }}",
    "translating": "{% set s = 'a' * 99999 %}{{ s.translate({97: s}) }}",
    "centred texts": "{{ range(99999) | map('center', 99999) | list | length }}",
    "a search from the end": "{% set s = 'a' * 999999 %}{{ s.rfind('b' ~ s[1:500000]) }}",
    "stripping": "{% set s = 'a' * 999999 %}{{ s.strip('b' * 99999 ~ 'a') }}",
    "a slow codec": "{% set s = 'ä€' * 99999 %}{{ s.encode('punycode') }}",
    "characters": "{% set s = '€' * 99999 %}{{ (s ~ s ~ s) | list | length }}",
    "slices": "{% set s = 'a' * 99999 %}{% macro f(t, n) %}{% if n %}{{ f(t[1:], n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(s, 300) }}",
    "literal text": "{% for i in range(99999) %}" + "a" * 5000 + "{% endfor %}",
    "a wide date": "{{ strftime_now('%999999999Y') }}",
    "placeholder text": "{{ lipsum(n=99999, max=99999) }}",
    "a large number": "{% set ns = namespace(n=99999) %}"
    "{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "lists that are added up": "{% set xs = [[1] * 999] * 999 %}{{ xs | sum(start=[]) | length }}",
    "constants": "{{ 'a' | center(99999) | replace('a', 'a' | center(99999)) | indent(99999) }}",
    "a long source": "{{ 1 }}" * 20_000,
    "deep parentheses": "{{ " + "(" * 9_000 + "1" + ")" * 9_000 + " }}",
}

HARMLESS = {  # which end by themselves, some of them on a fast machine alone
    "a power", "a search from the end", "a slow codec", "a wide date", "characters", "constants", "many slices",
    "stripping", "words",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_template_is_one_line(name: str) -> None:
    assert refusal(WRONG[name]).startswith("chat template: ")


def test_a_hostile_template_ends_and_makes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some would run for hours, or fill any memory; what few ones are harmless after all may be rendered."""
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.1)
    monkeypatch.setattr(chat_template, "_render", Confined("archetype.confined.templates", 2**27))
    rendered = set()
    for name, source in HOSTILE.items():
        with case(name):
            started = time.process_time()
            try:
                assert len(ChatTemplate(source, TOKENS).render(TALK)) < 2**21
                rendered.add(name)
            except DataError as error:
                assert str(error).startswith("chat template: ") and len(str(error)) <= 300 and "\n" not in str(error)
            assert time.process_time() - started < 0.5  # of this process, which a server's requests share
    assert rendered <= HARMLESS


@pytest.mark.parametrize("name", ["loops", "macros that call two"])
def test_a_template_that_never_ends_ends_soon_in_any_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.2)
    with ThreadPoolExecutor() as pool:
        assert (
            list(pool.map(refusal, [HOSTILE[name]] * 2))
            == ["chat template: takes longer than 0.2 s; fix the template or the messages"] * 2
        )


def test_a_long_conversation_is_within_the_limits() -> None:
    talk: list[Message] = [{"role": role, "content": "word 世界 " * 500} for role in ("user", "assistant") * 150]
    source = (
        "{% for m in messages %}{% set c = m.content.strip().split('</think>')[-1].rsplit('<x>', 1)[0] %}"
        "{{ '<|' + m.role + '|>' + c | trim + '\n' }}{% endfor %}{{ '-' * 3 }}"
    )
    expected = "".join(f"<|{m['role']}|>{m['content'].strip()}\n" for m in talk) + "---"
    assert ChatTemplate(source, TOKENS).render(talk) == expected


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert read_template(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}1"}))
    template = read_template(tmp_path)
    assert template is not None and template.render(TALK) == "<s>1"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "2"}]
    config.write_text(json.dumps({"chat_template": several}))
    template = read_template(tmp_path)
    assert template is not None and template.render(TALK) == "2"
    (tmp_path / FILE).write_text("3")  # the newer place goes before
    template = read_template(tmp_path)
    assert template is not None and template.render(TALK) == "3"


@pytest.mark.parametrize("template", [7, {"a": 1}])
def test_what_is_no_template_is_named(tmp_path: Path, template: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(DataError, match=r"chat_template: .*is not text"):
        read_template(tmp_path)


def test_special_tokens_that_a_template_spells_out_are_ids() -> None:
    tokenizer = train_tokenizer("byte_bpe", "hello hello world", 300)
    (name, id), *_ = tokenizer.special_tokens.items()
    expected = [id, *tokenizer.encode("hello"), id, id, *tokenizer.encode(" world")]
    assert tokenizer.encode_with_special_tokens(f"{name}hello{name}{name} world") == expected
    tokenizer.encodes_special_tokens = False  # as SentencePiece and tiktoken
    assert tokenizer.encode_with_special_tokens(f"{name}hello{name}{name} world") == expected
