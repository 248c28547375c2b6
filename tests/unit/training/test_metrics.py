"""Metrics lines."""

from pathlib import Path

import pytest

from archetype.api.samples import MAX_SAMPLE
from archetype.errors import DataError
from archetype.training import metrics
from archetype.training.evaluate import Evaluation
from archetype.training.metrics import Evaluated, Sampled, Saved, Step


def test_a_line_for_what_was_measured_and_none_for_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for event in (Step(1, 2.5, 1e-3, 0.5, 100.0, 64), Saved(1), Evaluated(1, Evaluation(2.4, 0.25, 64, 3.4))):
        metrics.append(file, event)
    first, second = metrics.read(file)
    assert first["loss"] == 2.5 and first["learning_rate"] == 1e-3 and first["per_second"] == 100.0
    assert second == {
        "step": 1, "validation_loss": 2.4, "validation_accuracy": 0.25, "validation_count": 64,
        "validation_bits_per_byte": 3.4,
    }  # fmt: skip


def test_the_longest_sample_is_read_again(tmp_path: Path) -> None:
    metrics.append(tmp_path / "metrics.jsonl", Sampled(1, "\U0001f642" * MAX_SAMPLE))
    assert metrics.read(tmp_path / "metrics.jsonl") == [{"step": 1, "sample": "\U0001f642" * MAX_SAMPLE}]


@pytest.mark.parametrize(
    "damage", [b"{", b"7", b"[]", b"null", b"\xff\xfe", b'{"step": "1"}', b'{"loss": 1.0}', b'{"step": 1, "loss": "a"}',
               b'{"step": 1, "loss": [1]}', b'{"step": 1, "validation_loss": null}', b'{"step": true, "loss": 1.0}',
               b'{"step": 1, "loss": 1' + b"0" * 400 + b"}", b"[" * 100_000, b""]
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics.append(file, Step(1, 1.0, 1.0, 1.0, 1.0, 1))
    whole = file.read_bytes()
    file.write_bytes(whole + damage + b"\n" + whole)
    with pytest.raises(DataError) as caught:
        metrics.read(file)
    assert str(caught.value) == f"{file}: line 2: is not a line of metrics; remove this line"
    file.write_bytes(whole + damage)
    assert len(metrics.read(file)) == 1


def test_a_line_cut_short_by_a_crash_is_left_out_and_rewound(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for step in (1, 2, 3):
        metrics.append(file, Step(step, 1.0, 1.0, 1.0, 1.0, 1))
    file.write_text(file.read_text() + '{"step": 4, "lo')
    assert [values["step"] for values in metrics.read(file)] == [1, 2, 3]
    metrics.rewind(file, 2)
    assert [values["step"] for values in metrics.read(file)] == [1, 2]
    assert file.read_text().endswith("}\n")
