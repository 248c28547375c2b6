"""Chat templates of published families by name, for models that have no template."""

from pathlib import Path

from archetype.errors import DataError, nearest
from archetype.io.text import read_text


def _source(turns: dict[str, tuple[str, str]], bos: str = "", trim: str = "", answer: str | None = None) -> str:
    # other roles are refused; without `answer`, the prompt for an answer begins as the assistant's other turns do
    branches = "".join(
        f"{{% {'elif' if index else 'if'} m.role == '{role}' %}}{before}{{{{ m.content{trim} }}}}{after}"
        for index, (role, (before, after)) in enumerate(turns.items())
    )
    refusal = "{% else %}{{ raise_exception('this chat template has no role ' ~ m.role) }}{% endif %}"
    prompt = "{% if add_generation_prompt %}" + (answer or turns["assistant"][0]) + "{% endif %}"
    return f"{bos}{{% for m in messages %}}{branches}{refusal}{{% endfor %}}{prompt}"


def _alike(before: str, after: str) -> dict[str, tuple[str, str]]:
    return {role: (before.replace("ROLE", role), after) for role in ("system", "user", "assistant")}


BOS, EOS, TRIM = "{{ bos_token }}", "{{ eos_token }}", " | trim"
LINE = "{{ '\\n' }}"  # a literal line break after a block would be trimmed
TEMPLATES = {
    "chatml": _source(_alike(f"<|im_start|>ROLE{LINE}", f"<|im_end|>{LINE}")),
    "gemma": _source(
        {
            "user": (f"<start_of_turn>user{LINE}", f"<end_of_turn>{LINE}"),
            "assistant": (f"<start_of_turn>model{LINE}", f"<end_of_turn>{LINE}"),
        },
        BOS,
        TRIM,
    ),
    "llama-3": _source(_alike(f"<|start_header_id|>ROLE<|end_header_id|>{LINE}{LINE}", "<|eot_id|>"), BOS, TRIM),
    "mistral": _source({"user": ("[INST] ", " [/INST]"), "assistant": ("", EOS)}, BOS),
    "phi-3": _source(_alike(f"<|ROLE|>{LINE}", f"<|end|>{LINE}")),
    # llama.cpp's converter writes this name into RWKV's files instead of a template
    "rwkv-world": _source(
        {role: (f"{role.capitalize()}: ", LINE + LINE) for role in ("system", "user", "assistant")},
        "",
        TRIM,
        "Assistant:",
    ),
    "zephyr": _source(_alike(f"<|ROLE|>{LINE}", f"{EOS}{LINE}")),
}


def template_source(file_or_name: Path) -> str:
    """Return the Jinja source in a file, or of a known template if no such file exists.

    Raises:
        DataError: the name is neither a file nor a known template, or the file cannot be read.
    """
    name = str(file_or_name)
    if file_or_name.exists():
        return read_text(file_or_name)
    if name in TEMPLATES:
        return TEMPLATES[name]
    raise DataError(name, "is neither a file nor a known chat template", nearest(name, TEMPLATES))
