"""Remedies name options that exist: in the source of all messages, and in those that a verb prints."""

from pathlib import Path

import archetype
from tests.helpers.named_options import OPTION, options_of_verbs, texts_of, wrong_in_commands, wrong_in_message

PACKAGE = Path(archetype.__file__).parent
OTHERS = {  # options of other programs, by the file that names them
    "--nproc-per-node": "torchrun", "--logdir": "tensorboard", "--line": "CSS", "--soft": "CSS", "--paper": "CSS",
    "--ink": "CSS", "--share": "CSS",
}  # fmt: skip


def test_commands_in_messages_have_their_options() -> None:
    """Each command in backquotes can be typed."""
    count = 0
    for file in PACKAGE.rglob("*.py"):
        for text in texts_of(file):
            assert not (wrong := wrong_in_commands(text)), f"{file}: {wrong} in {text!r}"
            count += "`archetype " in text
    assert count > 20


def test_options_named_below_the_command_line_are_options_of_a_verb() -> None:
    every = frozenset[str]().union(*options_of_verbs().values())
    for file in PACKAGE.rglob("*.py"):
        if "apps" not in file.relative_to(PACKAGE).parts:
            for text in texts_of(file):
                unknown = {option for option in OPTION.findall(text) if option not in every} - OTHERS.keys()
                assert not unknown, f"{file}: {unknown} in {text!r}"


def test_a_plan_that_offers_force_is_noticed() -> None:
    """`compare plan` once offered what only `train` has."""
    message = "arms.a: batch_size: too large; use at most 4, or --force"
    assert wrong_in_message("compare plan", message) == ["compare plan --force"]
    assert wrong_in_message("train", message) == [] == wrong_in_message("compare plan", "use `archetype train --force`")
    assert wrong_in_message("train", "see `archetype compare plan --force`") == ["compare plan --force"]
