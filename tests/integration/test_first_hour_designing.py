"""A designer's first hour: a known model made smaller, changed, counted, fitted to a budget, trained and exported."""

import json
from pathlib import Path

from archetype.io.yaml import read_mapping
from tests.integration.conftest import Run

LATENT = "{kind: latent, num_heads: 4, kv_lora_rank: 32, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32}"


def test_a_model_is_designed(run: Run, text_file: Path, tmp_path: Path) -> None:
    small, latent, hybrid, run_folder = (tmp_path / name for name in ("s.yaml", "l.yaml", "h.yaml", "run"))
    sizes = ("--scale", "width=1/32,depth=4,vocab=256,context=128")
    run("set", "llama-3-8b", *sizes, "--to", small)
    assert [read_mapping(small)[name] for name in ("d_model", "vocab_size", "context_length")] == [128, 256, 128]
    refused = run("set", small, "layers[*].mixer=latent", status=2)[1]
    assert "qk_rope_head_dim and v_head_dim; write {kind: latent, num_heads: 8, " in refused
    run("set", small, f"layers[*].mixer={LATENT}", "--to", latent)
    run("set", small, "layers[1::2].mixer=mamba", "--to", hybrid)
    assert "layers[1::2].mixer.kind: attention -> mamba" in run("diff", small, hybrid)[0]

    columns = ("--compare", small, latent, hybrid, "--length", "64,128", "--dtype", "float32,int8")
    costs = json.loads(run("cost", *columns, "--json")[0])["specifications"]
    assert len(costs) == 3 * 2 * 2
    states = [one["state"]["bytes_per_token"] for one in costs[::4]]  # in float32 at 64 tokens
    assert states == [4 * 4 * 2 * 32, 4 * 4 * (32 + 16), 2 * 4 * 2 * 32]  # layers x bytes x numbers; two have attention
    table = run("cost", small, "--length", "64,128", "--device", "H100-SXM")[0]
    assert table.split("\n")[0].split() == ["64", "tokens", "128", "tokens"] and table.count("H100-SXM (") == 2
    for wrong in ("0", "12k", "64,", ""):
        assert "archetype: --length: '" in run("cost", small, "--length", wrong, status=2)[1]

    told = run("set", hybrid, "--match", small, "parameters", "--to", tmp_path / "m.yaml")[1]
    assert told.startswith("layers[*].feedforward.d_ff: 448 -> ")
    told = run("set", latent, "--match", "1M", "parameters", "--to", tmp_path / "b.yaml")[1]
    assert told.endswith("the budget is 1,000,000\n")
    total = json.loads(run("cost", tmp_path / "b.yaml", "--json")[0])["parameters"]["total"]
    assert abs(total - 1_000_000) <= 4 * 3 * 128 / 2  # d_ff of one more adds three rows of 128 to four layers
    assert "layers[*].mixer.kv_lora_rank: 32 -> " in run("set", latent, "--match", small, "state")[1]
    assert "write it as 64MiB" in run("set", latent, "--match", "1M", "state", status=2)[1]

    run("draw", small, hybrid, "-o", tmp_path / "changes.svg")
    assert (tmp_path / "changes.svg").read_text().startswith("<svg")
    flags = ("--tokenizer", "bytes", "--steps", "2", "--batch-size", "2", "--sequence-length", "32")
    run("train", "--spec", latent, "--text", text_file, *flags, "--to", run_folder)
    refused = run("export", run_folder, "--to", tmp_path / "hf", status=2)[1]
    assert "--format archetype-hf writes any model" in refused and not (tmp_path / "hf").exists()
    run("export", run_folder, "--to", tmp_path / "own", "--format", "archetype-hf")
    run("import", tmp_path / "own", "--to", tmp_path / "again")
    texts = [run("generate", one, "Return", "--max-new-tokens", "8", "--temperature", "0")[0]
             for one in (run_folder, tmp_path / "again")]  # fmt: skip
    assert texts[0] == texts[1] and texts[0].startswith("Return")
