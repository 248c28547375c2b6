"""The verb `cost`: its tables, comparisons and predictions, and what programs read of them."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

import archetype
from archetype.apps.cli.main import app
from archetype.errors import SpecError
from archetype.estimate.report import common_length
from archetype.table import size


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cost", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def read(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))


def test_both_tables_have_formulas_and_numbers() -> None:
    shown = run("gpt2", "--length", "64")
    for expected in ("L (4 D^2 + 4 D)", "28,348,416", "8 L B T D^2", "2 B T V D + L (24 B T D^2 + 4 B T^2 D)",
                     "V D + T_max D + 2 D + L (12 D^2 + 13 D)", "124,439,808", "O(T^2 D) for a sequence"):  # fmt: skip
        assert expected in shown


def test_a_mixture_tells_what_is_active() -> None:
    shown = run("mixtral-8x7b", "--length", "64")
    assert "46,702,792,704" in shown and "12,879,925,248" in shown
    assert "active" in shown and "active" not in run("gpt2", "--length", "64")


def test_an_encoder_has_no_column_for_decoding() -> None:
    text = run("bert-tiny")
    assert "decode" not in text
    _, flops = text.split("forward FLOPs")
    for module in ("blocks.0-1.mixer.q", "blocks.0-1.feedforward.down", "lm_head"):
        assert f"\n{module} " in flops, text


def test_several_stand_side_by_side() -> None:
    specifications = read("--compare", "gpt2", "llama-2-7b", "--length", "128")["specifications"]
    assert [one["parameters"]["total"] for one in specifications] == [124_439_808, 6_738_415_616]
    shown = run("--compare", "gpt2", "llama-2-7b", "--length", "128")
    assert re.search(r"124,439,808 +6,738,415,616", shown)


def test_models_beside_each_other_have_the_length_of_the_shortest_context() -> None:
    models = [archetype.load_spec(name) for name in ("gpt2", "llama-tiny", "vit-tiny")]
    assert common_length(models[:2]) == 128 == common_length(models[1::-1]) and common_length(models) is None


def test_several_without_compare_are_refused() -> None:
    with pytest.raises(SpecError, match="--compare"):
        run("gpt2", "llama-2-7b")


def test_what_fits_is_told() -> None:
    fit = read("llama-2-7b", "--fit", "24GiB")["fit"]
    assert fit["inference"] == {"batch": 5, "length": 23_446}
    assert fit["training"] == {"batch": 0, "length": 0}
    assert "23,446" in run("llama-2-7b", "--fit", "24GiB")


def test_times_are_predicted_for_a_device() -> None:
    report = read("llama-2-7b", "--device", "h100-sxm")
    assert report["device"]["name"] == "H100-SXM" and report["device"]["source"]
    assert [(time["phase"], time["bound"]) for time in report["time"]] == [("prefill", "compute"), ("decode", "memory")]
    assert [one["phase"] for one in report["too_large"]] == ["train", "train_recomputed"] and report["routing"] is None
    assert set(report["device"]["usual"]["decode"]) == {"share", "source"}
    shown = run("llama-2-7b", "--device", "h100-sxm")
    assert "memory traffic" in shown and "at least, on H100-SXM (NVIDIA" in shown and "does not fit" in shown
    assert "usual: decode 69% (gpt-fast" in shown
    mixture = ("mixtral-8x7b", "--device", "h100-sxm", "--devices", "8", "--length", "64")
    assert "at least, if tokens choose experts evenly, on 8 x H100-SXM" in run(*mixture)
    assert read(*mixture)["routing"] == "even"


def test_several_devices_share_the_work() -> None:
    one, eight = (read("gpt2", "--device", "h100-sxm", "--devices", number)["time"] for number in ("1", "8"))
    for alone, together in zip(one, eight, strict=True):
        assert together["seconds"] == pytest.approx(alone["seconds"] / 8) and together["bound"] == alone["bound"]
    assert "8 x H100-SXM" in run("gpt2", "--device", "h100-sxm", "--devices", "8")
    with pytest.raises(SpecError, match="--devices: has no effect without --device or --fit"):
        run("gpt2", "--devices", "8")


def test_a_wrong_size_of_memory_is_refused_before_any_table(capsys: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(app, ["cost", "gpt2", "--fit", "24potatoes"])
    assert str(result.exception).startswith("--fit: '24potatoes' is not a size of memory") and result.stdout == ""


def test_each_figure_of_memory_has_a_name_of_its_own() -> None:
    memory, table = read("gpt2")["memory"], run("gpt2")
    for name, label in (("training_state", "training state"), ("training_peak", "training peak")):
        assert re.search(rf"{label} +{re.escape(size(memory[name]))}", table)
    assert size(memory["training_peak"]) in run("--compare", "gpt2", "llama-2-7b", "--length", "1024")
    assert "state (KV cache)" in table and "activation checkpointing" in table


def test_this_machine_is_measured_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from archetype.runs import peaks

    monkeypatch.setattr(peaks, "SIDE", 64)
    monkeypatch.setattr(peaks, "READ_BYTES", 2**16)
    report = read("gpt2-tiny", "--device", "here")
    assert report["device"]["bandwidth"] > 0 and set(report["device"]["flops"]) == {"bfloat16", "float32"}
    assert all(time["seconds"] > 0 for time in report["time"])


def test_counts_without_the_tables() -> None:
    """Kaplan 2020 counts so; a head of its own is no table."""
    assert read("gpt2")["parameters"] == {
        "total": 124_439_808, "embedding": 50_257 * 768 + 1024 * 768, "non_embedding": 85_056_000,
        "active": 124_439_808, "active_non_embedding": 85_056_000,
    }  # fmt: skip
    mixture = read("mixtral-8x7b", "--length", "64")["parameters"]
    assert mixture["active_non_embedding"] == mixture["active"] - 32_000 * 4096
    assert mixture["non_embedding"] == mixture["total"] - mixture["embedding"]


def test_copies_of_weights_are_a_line_of_their_own() -> None:
    products = 50_257 * 768 + 12 * 12 * 768**2 + 12 * 9 * 768  # the table that the head reads, matrices and biases
    assert read("gpt2")["memory"]["weight_copies"] == 2 * products
    assert "copies of weights" in run("gpt2") and "copies of weights" not in run("gpt2", "--dtype", "float32")


def test_source_and_state_have_sizes_of_their_own() -> None:
    pair = read("t5-base", "--length", "64", "--source-length", "512", "--state-dtype", "fp8")
    assert (pair["length"], pair["source_length"], pair["state_dtype"], pair["dtype"]) == (64, 512, "fp8", "bfloat16")
    shown = run("t5-base", "--length", "64", "--source-length", "512")
    assert "1 x 64 tokens and sources of 512" in shown and "T_s = 512 tokens of a source" in shown


def test_allowed_pairs_cost_less_than_computed_ones() -> None:
    computed, allowed = (read("gpt2", "--attention", attention) for attention in ("computed", "allowed"))
    assert allowed["attention"] == "allowed" and allowed["flops"]["forward"] < computed["flops"]["forward"]


def test_an_unknown_way_to_count_attention_is_refused_with_those_there_are() -> None:
    with pytest.raises(SpecError, match="'half' is not a way to count attention; use computed or allowed"):
        run("gpt2", "--attention", "half")
