"""The words of a cost report: what letters mean, what is read, how it grows, and what the state is called."""

import re
from functools import cache

import pytest
from typer.testing import CliRunner

from archetype import cost, families, spec
from archetype.apps.cli.main import app
from archetype.errors import SpecError
from archetype.estimate.report import CostReport, comparison_table
from archetype.estimate.roofline import predict, time_table
from archetype.legend import LEGEND
from archetype.machine.hardware import device
from archetype.spec import assign
from archetype.spec.kinds import parts_within
from tests.helpers.cases import in_one_test
from tests.helpers.presets import PRESETS

HYBRID = {
    "attention and delta net": ("llama-3-8b", "layers[::2].mixer={kind: gated_delta_net, num_heads: 32}"),
    "attention and Mamba-2": ("llama-3-8b", "layers[::2].mixer={kind: mamba2, num_heads: 32}"),
    "attention and convolution": ("llama-3-8b", "layers[::2].mixer={kind: short_convolution}"),
}
STATES = {
    "attention": "KV cache", "latent": "latent KV cache", "rnn": "recurrent state", "gru": "recurrent state",
    "lstm": "recurrent state", "mamba": "convolution and SSM state", "mamba2": "convolution and SSM state",
    "gated_delta_net": "convolution and delta-rule state",
    "compressed": "window and pooled keys", "native_sparse": "KV cache and compressed keys",
    "mamba3": "SSM state, angles and last token", "mlstm": "mLSTM state",
    "rwkv4": "token shift and weighted sums", "rwkv7": "token shift and delta-rule state",
    "linear_attention": "linear attention state", "rg_lru": "convolution and recurrent state",
    "short_convolution": "convolution state", "channel_mixing": "token shift", "ngram_memory": "n-gram state",
}  # fmt: skip


@cache
def report(name: str) -> CostReport:
    source, *change = HYBRID.get(name, (name,))
    return cost.cost_report(assign(families.preset(source), change))


def meanings(name: str) -> dict[str, str]:
    return {letter: meaning for letter, (_, meaning) in report(name).legend.items()}


@in_one_test("name", [*PRESETS, *HYBRID])
def test_every_letter_that_is_printed_has_a_meaning(name: str) -> None:
    for orders in report(name).complexity.values():
        letters = set(re.findall(r"[A-Za-z_]\w*", " ".join(orders))) - {"O"}
        assert letters <= set(report(name).legend), orders


@in_one_test("name", [*PRESETS, *HYBRID])
def test_a_letter_means_what_the_legend_or_a_part_of_the_model_says(name: str) -> None:
    said = [report(name).spec.letters, *(getattr(part, "letters", {}) for part in parts_within(report(name).spec))]
    for letter, meaning in meanings(name).items():
        letter = letter if letter in LEGEND else letter.rstrip("0123456789")
        assert meaning in (LEGEND.get(letter), *(letters.get(letter) for letters in said)), letter


def test_parts_say_what_their_own_letters_mean() -> None:
    assert meanings("mamba2-130m")["H"] == "heads"
    assert meanings("mamba2-130m")["K"] == "groups of heads that share B and C"
    assert meanings("llama-3-8b")["K"] == "key/value heads"
    drawn = meanings("attention and delta net")
    assert {"heads", "value heads"} >= {meaning for letter, meaning in drawn.items() if letter[0] == "H"}
    assert {drawn["K1"], drawn["K2"]} == {"key/value heads", "key heads"}


def test_equal_sizes_of_other_meanings_are_told_apart() -> None:
    mixed = assign(families.preset("qwen3-0.6b"), ["layers[::2].mixer={kind: gated_delta_net, num_heads: 16}"])
    legend = cost.cost_report(mixed).legend
    assert legend["H1"] == (16, "heads") and legend["H2"] == (16, "value heads")


def test_a_letter_without_a_meaning_is_refused() -> None:
    with pytest.raises(SpecError, match=r"RNN\.letters: the letter X has no meaning"):
        cost.formula.symbol("X", 1, spec.RNN())


@in_one_test("name", [*PRESETS, *HYBRID])
def test_a_report_speaks_of_decoding_where_there_is_any(name: str) -> None:
    one = report(name)
    table, generates = one.table(), not isinstance(one.spec, spec.Encoder | spec.VisionEncoder)
    times = str(time_table(predict(one, device("H100-SXM"))))
    assert bool(one.state_name) == bool(one.state["bytes"]) and (generates or not one.state_name)
    for words in ("one more token", "decode", "state ("):
        assert generates or words not in table
    unit = "tokens" if generates else "images" if isinstance(one.spec, spec.VisionEncoder) else "sequences"
    assert re.findall(r"(\w+)/s", times) == [unit]
    assert isinstance(one.spec, spec.VisionEncoder) == ("tokens" not in table)


@in_one_test("name", [*PRESETS, *HYBRID])
def test_the_state_is_called_after_the_mixers_that_keep_it(name: str) -> None:
    one = report(name)
    if isinstance(one.spec, spec.NGram | spec.Encoder | spec.VisionEncoder):
        return
    stack = one.spec.stacks[-1 if isinstance(one.spec, spec.EncoderDecoder) else 0]
    expected = {STATES[block.mixer.kind] for block in stack.layers if not block.mixer.is_absent}  # type: ignore[attr-defined]
    expected |= {"KV cache"} if any(block.cross_attention for block in stack.layers) else set()
    feedforwards = [part for block in stack.layers for part in parts_within(block.feedforward)]
    expected |= {STATES[part.kind] for part in feedforwards if part.kind in ("channel_mixing", "ngram_memory")}
    is_convolved = any(getattr(part, "convolutions", None) is not None for part in feedforwards)
    expected |= {"convolution state"} if is_convolved else set()
    expected |= {"open patch"} if isinstance(one.spec, spec.MegaByte) else set()
    assert set(one.state_name.split(", ")) == set(", ".join(expected).split(", "))
    assert f"state ({one.state_name})" in one.table()


def test_models_of_all_kinds_stand_side_by_side() -> None:
    names = ["lstm-tiny", "llama-tiny", "bert-tiny", "vit-tiny"]
    rows = {row[0]: list(row[1:]) for row in comparison_table(names, [report(name) for name in names]).rows}
    assert rows["state"] == ["recurrent state", "KV cache", "", ""]
    assert rows["state a token"][0] == "0 bytes" and rows["state a token"][2:] == ["", ""]
    assert rows["input"][2:] == ["1 x 128 tokens", "1 image of 17 positions"]
    assert rows["forward FLOPs a token"][3] == "" and rows["decode FLOPs a token"][2:] == ["", ""]


def test_an_image_per_second_is_a_row() -> None:
    (forward, _) = predict(cost.cost_report(families.preset("vit-b-16"), 8), device("H100-SXM"))
    assert forward.units_per_second == pytest.approx(8 / forward.seconds)
    assert forward.tokens_per_second == pytest.approx(8 * 197 / forward.seconds)


@pytest.mark.parametrize("name", [name for name in families.presets() if name.startswith("vit")])
@pytest.mark.parametrize("verb", ["cost", "draw"])
def test_a_length_that_an_image_does_not_have_is_refused(name: str, verb: str) -> None:
    length = report(name).length
    result = CliRunner().invoke(app, [verb, name, "--length", "100", "--json"])
    assert isinstance(result.exception, SpecError) and result.stdout == ""
    assert str(result.exception).startswith(f"length: an image has {length} positions")
    assert CliRunner().invoke(app, [verb, name, "--length", str(length), "--json"]).exit_code == 0
