"""Messages of a conversation as a chat template is given them."""

import json

import pytest

from archetype.apps.serve.messages import Message, plain_messages
from tests.helpers.tool_templates import TEMPLATES


def called(arguments: object) -> list[Message]:
    function = {"name": "weather"} | ({} if arguments is None else {"arguments": arguments})
    call = {"id": "1", "type": "function", "function": function}
    return [Message(role="user", content="Hi"), Message(role="assistant", content="", tool_calls=[call])]


@pytest.mark.parametrize(
    ("arguments", "objects", "texts"),
    [
        ('{"city": "Bern"}', {"city": "Bern"}, '{"city": "Bern"}'),
        ({"city": "Bern"}, {"city": "Bern"}, {"city": "Bern"}),  # which some clients send as it is
        ("Bern", "Bern", "Bern"),
        ("[" * 10**5, "[" * 10**5, "[" * 10**5),
        (None, None, None),
    ],
)
def test_arguments_are_objects_unless_the_template_reads_texts(
    arguments: object, objects: object, texts: object
) -> None:
    for name, expected in (("hermes", objects), ("texts", texts)):
        plain = plain_messages(called(arguments), TEMPLATES[name])
        function = plain[1]["tool_calls"][0]["function"]
        assert function == {"name": "weather"} | ({} if expected is None else {"arguments": expected})
        assert json.dumps(plain[0]["content"]) == '"Hi"'
