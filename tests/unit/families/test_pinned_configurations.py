"""Every configuration of a registered family as it was published: read, or refused for a reason that is known."""

import csv
import json
import re
import warnings
from pathlib import Path

from archetype import families
from archetype.errors import CheckpointError, UnreadKeys

# Why a published configuration may be refused, by what the refusal says.
REASONS = {
    "low bits": r".*: quantization_config: .*",
    "another class": r".*: architectures: '(BitNet|T5EncoderModel)' is not supported in the .* format.*",
    "another head": r".*: architectures: the head of \w+(ForQuestionAnswering|ForPreTraining) is not supported; .*",
}


def test_each_is_read_or_refused_for_a_reason(shared: Path) -> None:
    outcomes: dict[str, str] = {}
    with (shared / "published" / "MANIFEST.csv").open() as manifest:
        files = [row["file"] for row in csv.DictReader(manifest) if row["part"] == "config"]
    for file in files:
        values = json.loads((shared / "published" / file).read_text())
        if (family := families.family_of(values)) is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreadKeys)
            try:
                family.format.spec_from(values)
                outcomes[file] = "read"
            except CheckpointError as error:
                reasons = [reason for reason, said in REASONS.items() if re.fullmatch(said, str(error))]
                outcomes[file] = reasons[0] if reasons else str(error)
        low_bits = "quantization_config" in values
        assert (outcomes[file] == "low bits") == low_bits or outcomes[file] == "read", file
    assert set(outcomes.values()) <= {"read", *REASONS}
    assert list(outcomes.values()).count("read") >= 70
