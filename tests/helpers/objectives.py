"""A small recipe for every objective, and for the ways of computing a loss that `recipes` leaves out."""

import json
import random
from pathlib import Path
from typing import Any

from archetype.training.datasets import TextData
from archetype.training.examples import Conversations, LabelledText, Preferences, ScoredPairs, TextPairs
from archetype.training.objectives import (
    DPO,
    Chat,
    Contrastive,
    MaskedDiffusion,
    MaskedToken,
    NextToken,
    Regression,
    TextClass,
    TextSimilarity,
)
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from tests.helpers.recipes import ATTENTION, BATCH, ENCODER, WORDS, block, decoder, recipes

ENCODER_OF_TEXTS = ENCODER | {"context_length": 48, "layers": [block(), block()]}
BLOCKS = ENCODER | {
    "embedding": {"position": {"kind": "learned"}},
    "layers": [block(ATTENTION | {"pattern": {"kind": "block_causal", "size": 3}})],
}
FURTHER = {"count": 2, "loss_weight": 0.5}


def write_examples(folder: Path) -> dict[str, str]:
    """Write a file of records for each kind of data; return their paths by kind."""
    drawn = random.Random(0)
    records: dict[str, list[dict[str, Any]]] = {
        kind: [] for kind in ("chat", "preferences", "scored", "pairs", "labelled", "values")
    }
    for _ in range(48):
        words = [drawn.choice(WORDS) for _ in range(drawn.randint(1, 4))]
        text, other = " ".join(words), " ".join(drawn.sample(WORDS, 2))
        answer = {"role": "assistant", "content": other}
        records["chat"].append({"messages": [{"role": "user", "content": text}, answer]})
        records["preferences"].append({"prompt": text, "chosen": other, "rejected": other[::-1]})
        records["scored"].append({"text1": text, "text2": other, "score": len(words) / 4})
        records["pairs"].append({"anchor": text, "positive": words[0]})
        records["labelled"].append({"text": text, "label": "long" if len(words) > 2 else "short"})
        records["values"].append({"text": text, "label": len(words) / 4})
    files = {kind: folder / f"{kind}.jsonl" for kind in records}
    for kind, file in files.items():
        file.write_text("\n".join(map(json.dumps, records[kind])))
    return {kind: str(file) for kind, file in files.items()}


def objective_recipes(folder: Path) -> dict[str, Recipe]:
    """Return the recipes by name, each with ten steps; the data are written into the folder."""
    files = write_examples(folder)
    (folder / "documents.txt").write_text((" ".join(WORDS) + "\n") * 60)
    common = Recipe(
        batch_size=8, steps=10, evaluate_every=5, checkpoint_every=5, seed=5, dtype="float32",
        optimizer=AdamW(learning_rate=3e-3),
    )  # fmt: skip

    def of(kind: str, data: Any, objective: Any, spec: Any = ENCODER_OF_TEXTS, **fields: Any) -> Recipe:
        files_and_tokens = {"examples": (files[kind],), "tokenizer": "bytes"} | fields
        return common.replace(spec=spec, data=data(**files_and_tokens), objective=objective)

    text = TextData(text=(str(folder / "documents.txt"),), tokenizer="bytes")
    long = decoder() | {"context_length": 48}
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}")
    next_token = common.replace(spec=decoder(), data=text, objective=NextToken())
    padded = ENCODER_OF_TEXTS | {"layers": [block(norm=BATCH)], "final_norm": BATCH}
    more = {
        "further tokens": next_token.replace(spec=decoder() | {"further_tokens": FURTHER}),
        "cosent": of("scored", ScoredPairs, TextSimilarity()),
        "cosine": of("scored", ScoredPairs, TextSimilarity(loss="cosine")),
        "contrastive": of("pairs", TextPairs, Contrastive()),
        "chat": of("chat", Conversations, Chat(), long, template=str(folder / "template.jinja")),
        "packed chat": of("chat", Conversations, Chat(packed=True), long, template=str(folder / "template.jinja")),
        "dpo": of("preferences", Preferences, DPO(), long),
        "classes": of("labelled", LabelledText, TextClass()),
        "regression": of("values", LabelledText, Regression()),
        "padded batch norm": of("labelled", LabelledText, TextClass(), padded),
        "masked tokens": common.replace(spec=ENCODER, data=text, objective=MaskedToken()),
        "masked diffusion": common.replace(spec=ENCODER, data=text, objective=MaskedDiffusion()),
        "block diffusion": common.replace(spec=BLOCKS, data=text, objective=MaskedDiffusion()),
        "moving average": next_token.replace(ema_decay=0.9),
    }
    return recipes(folder) | more
