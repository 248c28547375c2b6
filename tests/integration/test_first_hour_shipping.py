"""The first hour with a published model: measured, tuned by LoRA, quantized, exported to two formats and read again."""

import json
from pathlib import Path

from tests.integration.conftest import Run


def test_a_model_is_tuned_and_shipped(run: Run, shared: Path, tmp_path: Path) -> None:
    model, tuned, text = shared / "stories260K", tmp_path / "tuned", tmp_path / "text.txt"
    text.write_text("Once upon a time, there was a little girl named Lily. " * 40)
    plain, few = (
        json.loads(run("evaluate", model, text, *words, "--json")[0])["texts"][0]["loss"]
        for words in ((), ("--weights", "int4"))
    )
    assert plain < 2.5 and 0 < abs(plain - few) < 0.2
    greedy = ("Once upon a time", "--max-new-tokens", "10", "--temperature", "0")
    assert run("generate", model, *greedy)[0].startswith("Once upon a time, there was")

    chat = tmp_path / "chat.jsonl"
    turns = [("user", "Tell me of a dog"), ("assistant", "The dog ran to the park.")]
    row = json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})
    chat.write_text(f"{row}\n" * 20)
    assert "has no chat template" in run("chat", model, status=2)[1]
    told = run("train", "--from", model, "--chat", chat, "--adapter", "lora", "--steps", "4", "--to", tuned)[1]
    assert "260,032 parameters (" in told and " trained); " in told
    assert run("generate", tuned, "--chat", turns[0][1], "--max-new-tokens", "5", "--temperature", "0")[0].strip()

    run("export", tuned, "--to", tmp_path / "hf")
    run("export", tuned, "--to", tmp_path / "adapter", "--adapter-only")
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    texts = {run("generate", one, *greedy)[0] for one in (tuned, tmp_path / "hf")}
    assert len(texts) == 1
    run("export", model, "--to", tmp_path / "gguf", "--format", "gguf")
    assert run("generate", tmp_path / "gguf" / "model.gguf", *greedy)[0] == run("generate", model, *greedy)[0]
    assert "no-run: " in run("export", "no-run", "--to", tmp_path / "no", status=2)[1]
    refused = run("export", "no-run", "--to", tmp_path / "no", "--adapter-only", status=2)[1]
    assert "no-run: there is no such folder; pass a run directory" in refused
