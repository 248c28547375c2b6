"""Chat templates with tools, each of another form of calls."""

from archetype.tokenizers.chat_template import ChatTemplate

_MESSAGES = (
    "{%% if tools %%}<tools>{{ tools | tojson }}</tools>{%% endif %%}"
    "{%% for m in messages %%}{%% if m.role == 'tool' %%}<result>{{ m.content }}</result>"
    "{%% elif m.role != 'assistant' %%}<{{ m.role }}>{{ m.content }}</s>{%% else %%}<assistant>{{ m.content }}"
    "{%% for c in m.tool_calls %%}%s{%% endfor %%}</s>{%% endif %%}{%% endfor %%}"
    "{%% if add_generation_prompt %%}<assistant>{%% endif %%}"
)
HERMES = _MESSAGES % (
    '{{ "\n" }}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>"
)
TEXTS = (
    _MESSAGES % "<call>{{ c.type }}<sep>{{ c.function.name + '\n```json\n' + c.function.arguments + '\n```' }}</call>"
)
PAIRS = _MESSAGES % (
    "\n<call>{{ c.function.name }}\n{% for key, value in c.function.arguments.items() %}<key>{{ key }}</key>\n<value>"
    "{{ value if value is string else value | tojson }}</value>\n{% endfor %}</call>"
)
_WRITE = (
    "{% macro write(v) %}{% if v is string %}<q>{{ v }}<q>{% elif v is mapping %}{{ '{' }}"
    "{% for key, one in v.items() %}{{ key }}:{{ write(one) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}"
    "{% elif v is sequence %}[{% for one in v %}{{ write(one) }}{% if not loop.last %},{% endif %}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}"
    "{% endmacro %}"
)
QUOTED = _WRITE + _MESSAGES % "<call>{{ c.function.name }}{{ write(c.function.arguments) }}</call>"
UNREADABLE = _MESSAGES % "<call>{{ c.id }}</call>"  # without the name
MISTRAL = (  # calls in a list behind a special token, with ids of nine signs
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls is defined %}[CALLS] ["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('an id has 9 signs') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' }}{% if not loop.last %}, {% endif %}{% endfor %}"
    "]</s>{% elif m.role == 'assistant' %} {{ m.content }}</s>{% else %}[RESULT]{{ m.content }}[/RESULT]{% endif %}"
    "{% endfor %}"
)
LLAMA = _MESSAGES.replace("{%% for c in m.tool_calls %%}", (
    "{%% if m.tool_calls | length > 1 %%}{{ raise_exception('This model only supports single tool-calls at once!') }}"
    "{%% endif %%}{%% for c in m.tool_calls %%}"
)) % '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'  # fmt: skip
SOURCES = {
    "hermes": HERMES, "texts": TEXTS, "pairs": PAIRS, "quoted": QUOTED, "mistral": MISTRAL, "llama": LLAMA,
}  # fmt: skip
TEMPLATES = {name: ChatTemplate(source, {"eos_token": "</s>"}) for name, source in SOURCES.items()}
