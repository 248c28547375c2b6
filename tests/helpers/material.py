"""Files and small models of every kind, which calls of the program name."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from archetype.io.yaml import mapping_to_yaml
from tests.helpers.options import call
from tests.unit.studies import small

WORDS = ["the", "model", "reads", "a", "token", "and", "says", "what", "comes", "next"]
TRAIN = "--spec {decoder} --tokenizer bytes --sequence-length 16 --batch-size 4"
ALL_MODES = small.trained(modes={
    "quick": {"tokens": 64}, "full": {"tokens": 192}, "extended": {"seeds": 3}, "gpu": {"tokens": 96},
})  # fmt: skip
MODELS = {  # of the material, each made when a mode names it first
    "tokenizer": "tokenizer train --text {text} --vocab-size 300 --to tokenizer",
    "run": f"train {{text}} {TRAIN} --steps 80 --learning-rate 0.01 --to run",
    "masked": "train {text} --spec llada-tiny --tokenizer bytes --sequence-length 16 --batch-size 4 --steps 9"
    " --to masked",
    "exported": "export {run} --to exported",
    "adapted": "train {text} --from {run} --adapter lora --steps 1 --sequence-length 16 --to adapted",
    "chatting": "train --from {run} --chat {chat} --steps 1 --set data.template={template} --to chatting",
    "classes": "train --labelled {labelled} --spec {decoder} --tokenizer bytes --steps 2 --to classes",
    "sentences": "train --pairs {anchors} --spec {decoder} --tokenizer bytes --sequence-length 16 --batch-size 4"
    " --steps 1 --set objective.kind=contrastive --set objective.anchor_prompt=ask --to sentences",
    "pairs": "train --source {source} --target {target} --spec {pair} --tokenizer byte_bpe --vocab-size 300"
    " --steps 200 --learning-rate 0.01 --to pairs",
    "store": "compare run {experiment} --store store",
}


def _write_files(folder: Path) -> dict[str, str]:
    """Small files of every kind that a mode names."""
    drawn = random.Random(0)
    lines = [" ".join(drawn.choice(WORDS) for _ in range(drawn.randint(2, 6))) for _ in range(40)]
    attention = {"kind": "attention", "num_heads": 2, "position": {"kind": "rotary"}}
    block = {"mixer": attention, "feedforward": {"kind": "gated", "d_ff": 32, "activation": "silu"},
             "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}}  # fmt: skip
    decoder = {"vocab_size": 256, "context_length": 128, "d_model": 16, "layers": [block, block], "final_norm": "rms"}
    records: dict[str, list[Any]] = {
        "labelled": [{"text": line, "label": "x" if "the" in line else "y"} for line in lines],
        "tokens": [{"tokens": line.split(), "labels": line.split()} for line in lines],
        "chat": [{"messages": [{"role": "user", "content": line[:9]}, {"role": "assistant", "content": line[::-1][:9]}]}
                 for line in lines],
        "preferences": [{"prompt": line[:9], "chosen": line[:9], "rejected": line[::-1][:9]} for line in lines],
        "anchors": [{"anchor": line, "positive": line[::-1]} for line in lines],
        "scored": [{"text1": line, "text2": line[::-1], "score": len(line)} for line in lines],
        "prompts": [{"prompt": line[:9]} for line in lines[:3]],
    }  # fmt: skip
    texts = {
        "text": ("txt", "\n".join(lines)), "source": ("txt", "\n".join(lines) + "\n"),
        "target": ("txt", "\n".join(line[::-1] for line in lines) + "\n"),
        "decoder": ("yaml", mapping_to_yaml(decoder)), "recipe": ("yaml", "max_grad_norm: 0.1\n"),
        "template": ("jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"),
        "terse": ("jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"),
        "schema": ("json", '{"type": "string", "maxLength": 4}'), "lark": ("lark", "start: /[0-9]{3}/"),
        "experiment": ("yaml", mapping_to_yaml(small.experiment(ALL_MODES).dump())),
        "search": ("yaml", mapping_to_yaml({"title": "one", "base": small.BASE, "data": small.DATA, "recipe":
                   small.RECIPE, "rungs": [64, 128], "space": {"d_model": [8, 16]}, "metric": {"name": "test.loss"}})),
        **{name: ("jsonl", "\n".join(map(json.dumps, some))) for name, some in records.items()},
    }  # fmt: skip
    places = {"images": str(folder / "images.npz"), "claims": str(folder / "claims")}
    for name, (suffix, text) in texts.items():
        (folder / f"{name}.{suffix}").write_text(text)
        places[name] = str(folder / f"{name}.{suffix}")
    numbers = np.random.default_rng(0)
    np.savez(places["images"], images=numbers.random((20, 8, 8)), labels=numbers.integers(3, size=20))
    (folder / "claims").mkdir()
    (folder / "claims" / "01-width.yaml").write_text(mapping_to_yaml(small.experiment(ALL_MODES, claim=1).dump()))
    pair = {
        "vocab_size": 320, "context_length": 32, "d_model": 16, "kind": "encoder_decoder",
        "embedding": {"position": {"kind": "sinusoidal"}}, "encoder": {"layers": [block], "final_norm": "rms"},
        "decoder": {"layers": [block | {"cross_attention": {"kind": "attention", "num_heads": 2}}],
                    "final_norm": "rms"},
    }  # fmt: skip
    (folder / "pair.yaml").write_text(mapping_to_yaml(pair))
    places["pair"] = str(folder / "pair.yaml")
    return places


class Material(dict[str, str]):
    """Places of files, and of models, which are made on demand."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_write_files(folder))
        self.folder = folder

    def __missing__(self, name: str) -> str:
        done = call([word.format_map(self) for word in MODELS[name].split()], self.folder)
        assert done.status == 0, (name, done.error)
        self[name] = str(self.folder / name)
        return self[name]
