"""Chat templates, which render messages to the text that a model was trained on."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from archetype.confined.process import Confined, ConfinedError
from archetype.errors import DataError
from archetype.io.atomic import write_bytes
from archetype.io.files import read_bytes
from archetype.io.text import decode_text
from archetype.tokenizers.files import validated
from archetype.tokenizers.special_tokens import content, read_config

FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
TOOL_USE = "tool_use"  # name of the template for conversations with tools, if there is one
NAME = r"^[\w-]+$"  # template names, which are also file names
MAX_SOURCE = 2**16  # characters; the longest published templates have about 20,000
MAX_SECONDS = 3.0  # limit for rendering
MAX_BYTES = 2**21  # limit for the rendered text, in addition to the messages
PLAIN = """{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token if m.role == "assistant" else "" }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""  # for models trained to answer without a template
_render = Confined("archetype.confined.templates", 2**29)

Message = Mapping[str, Any]  # its role (system, user, assistant, tool), its content, and whatever else a template reads
# names of the reasoning in an answer; templates read the first two
REASONING = ("reasoning_content", "thinking", "reasoning")
UNREAD = ("role", "content", "tool_call_id")  # keys that a template may ignore
# appended to find the end of the text; its space shows whether the template trims
CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass(frozen=True)
class ChatTemplate:
    """Chat template with the special tokens that it may use.

    Attributes:
        source: Jinja source; empty if the folder has only named templates and no default.
        tokens: special tokens keyed by their names, such as bos_token.
        named: sources of additional templates, by name.
    """

    source: str
    tokens: Mapping[str, str]
    named: Mapping[str, str] = field(default_factory=dict)

    def for_tools(self, tools: Sequence[Mapping[str, Any]] | None) -> "ChatTemplate":
        """Select the template by name for a conversation with or without tools, as transformers does.

        Raises:
            DataError: the model has several templates but no default.
        """
        if tools is not None and TOOL_USE in self.named:
            return ChatTemplate(self.named[TOOL_USE], self.tokens)
        if self.named and not self.source:
            cause = f"has no default among {', '.join(sorted(self.named))}"
            raise DataError("chat template", cause, f"pass --chat-template {FOLDER}/NAME.jinja, or add {FILE}")
        return ChatTemplate(self.source, self.tokens) if self.named else self

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render a conversation up to the beginning of the model's answer.

        Args:
            messages: messages with role and content. A null content is passed to the template, as in transformers, but
                other null keys are dropped.
            add_generation_prompt: whether the rendered text ends with the text that precedes an answer.
            tools: functions that an answer may call, as JSON schemas.

        Raises:
            DataError: the template is invalid, refuses these messages, ignores a part of them, or exceeds the time or
                memory limit.
        """
        return str(self.for_tools(tools)._rendered(messages, add_generation_prompt, tools)[0])

    def beginnings(
        self, messages: Sequence[Message], add_generation_prompt: bool, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> "Beginnings | None":
        """Render a nonempty conversation together with all its prefixes, in time linear in its length.

        Returns:
            The conversation; None if the template does not write the messages one after the other.

        Raises:
            DataError: same as for `render`, for any prefix.
        """
        text, *starts = self.for_tools(tools)._rendered(messages, add_generation_prompt, tools, True)
        return Beginnings(text, starts[0]) if starts and len(starts[0]) == len(messages) + 1 else None

    def _rendered(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        *with_starts: bool,
    ) -> list[Any]:
        # the rendered text and, if requested and known, the position where each message begins
        self._check_read(messages, tools)
        if len(self.source) > MAX_SOURCE:
            cause = f"has {len(self.source):,} characters, more than {MAX_SOURCE:,}"
            raise DataError("chat template", cause, "write a shorter template")
        values = {"add_generation_prompt": add_generation_prompt, "tools": tools, "documents": None, **self.tokens}
        values["messages"] = [_named(message) for message in messages]
        try:
            outcome, text, *starts = _render(
                self.source, values, *with_starts, seconds=MAX_SECONDS, max_bytes=MAX_BYTES
            )
        except ConfinedError as error:
            raise DataError("chat template", str(error), "fix the template or the messages") from None
        if outcome == "refused":
            raise DataError("chat template", text, "fix the template or the messages")
        if outcome == "fails":
            raise DataError("chat template", f"fails with {text}", "fix the template")
        return [text, *starts]

    def render_continued(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Render a conversation up to the end of its last message, which the model will continue.

        Raises:
            DataError: same as for `render`, or the template drops a part of the last message.
        """
        last = messages[-1].get("content")
        if not isinstance(last, str):
            raise DataError(f"messages[{len(messages) - 1}].content", "is not text to continue", "add some text")
        text = self.render([*messages[:-1], {**messages[-1], "content": last + CONTINUED}], False, tools)
        # the last match, since a message may quote the tag
        end = text.rfind(CONTINUED.strip())
        if end < 0 or last.strip() not in text:
            cause = "drops part of the message to be continued"
            raise DataError("chat template", cause, "continue another text, or request a new answer")
        keeps_spaces = text.startswith(CONTINUED, end)
        return text[:end] if keeps_spaces else text[:end].rstrip()

    def around_content(
        self, messages: Sequence[Message], answer: Message, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[str, str]:
        """Return the rendered text before and after the content of a last message. Errors are those of `render`."""
        # two contents that differ show where the template writes them
        with_0, with_1 = (self.render([*messages, {**answer, "content": text}], False, tools) for text in "01")
        start = next((index for index, (a, b) in enumerate(zip(with_0, with_1, strict=False)) if a != b), len(with_0))
        return with_0[:start], with_0[start + 1 :]

    def reads(self, key: str) -> bool:
        names = REASONING[:2] if key in REASONING else (key,)
        return any(re.search(rf"\b{re.escape(name)}\b", self.source) for name in names)

    def _check_read(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> None:
        # refuse message parts that the template would silently ignore
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise DataError(
                    f"messages[{index}]", "is not an object with a role and a content", "write an object with both"
                )
        keys = [
            (f"messages[{index}].{key}", key)
            for index, message in enumerate(messages)
            for key, value in message.items()
            if key not in UNREAD and value not in (None, "", [], {})
        ]
        for key_path, key in [*keys, *([("tools", "tools")] if tools else [])]:
            if not self.reads(key):
                raise DataError(key_path, "is not used by the model's chat template", "remove it")


@dataclass(frozen=True)
class Beginnings:
    """Rendered conversation whose template writes the messages one after the other.

    Attributes:
        text: text of all messages.
        starts: position where each message begins, then the position where the last message ends.
    """

    text: str
    starts: list[int]

    def render(self, count: int) -> str:
        """Return the result of `ChatTemplate.render` for the first `count` messages, where `count` is at least 1."""
        return self.text[: self.starts[count]] + self.text[self.starts[-1] :]


def _named(message: Message) -> dict[str, Any]:
    # a null content is passed on, as in transformers
    present = {key: value for key, value in message.items() if value is not None or key == "content"}
    # under every name that a template may read
    thoughts = next((present[name] for name in REASONING if name in present), None)
    return present if thoughts is None else {"thinking": thoughts, **present, "reasoning_content": thoughts}


def _by_name(value: object) -> object:
    # older files list templates as objects; one without a name is the default
    match value:
        case str():
            return {"default": value}
        case [*items]:
            return {item.get("name"): item.get("template") for item in items if isinstance(item, dict)}
        case _:
            return value


class TemplateConfig(BaseModel):
    chat_template: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], str] | None,
        BeforeValidator(_by_name),
        Field(description="text, or a list of templates with names of letters, digits, - and _"),
    ] = None


def read_template(folder: Path) -> ChatTemplate | None:
    """Return the template in a model folder, from .jinja files or tokenizer_config.json; None if there is no template.

    Raises:
        DataError: a file is damaged.
    """
    config, files = read_config(folder), {file.stem: file for file in sorted((folder / FOLDER).glob("*.jinja"))}
    files |= {"default": folder / FILE} if (folder / FILE).is_file() else {}
    named = {name: decode_text(read_bytes(file), str(file)) for name, file in files.items()}
    named = named or validated(TemplateConfig, config, str(folder)).chat_template or {}
    if not named:
        return None
    tokens = {key: text for key, value in config.items() if key.endswith("_token") and (text := content(value))}
    return ChatTemplate(named.pop("default", ""), tokens, named)


def write_template(template: ChatTemplate, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    files = {folder / FOLDER / f"{name}.jinja": source for name, source in template.named.items()}
    if files:
        (folder / FOLDER).mkdir(exist_ok=True)
    for file, source in {**files, **({folder / FILE: template.source} if template.source or not files else {})}.items():
        write_bytes(file, source.encode())
