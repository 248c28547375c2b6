"""What TRL makes of a model of `archetype.hf`: a program for an environment that has TRL beside this one's packages.

Its argument is a folder of an export; it writes the losses of its trainers as JSON.
"""

import json
import sys
from typing import Any

import transformers
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import archetype.hf  # noqa: F401  # registers the type

folder, output = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<end>"})
settings: dict[str, Any] = {
    "output_dir": output, "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 3e-3, "report_to": [],
    "logging_steps": 1, "save_strategy": "no", "use_cpu": True, "bf16": False, "disable_tqdm": True,
}  # fmt: skip
texts = [f"the {color} {animal} sleeps by the {place}" for color in ("red", "old", "wet") for animal in ("cat", "dog")
         for place in ("sea", "road", "fire", "door")]  # fmt: skip


def start() -> Any:
    """The folder's model with room for the tokens that were added."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    return model


def losses(trainer: Any) -> list[float]:
    """Of each step."""
    trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


written = Dataset.from_dict({"text": texts})
sft = SFTTrainer(start(), SFTConfig(max_length=64, **settings), train_dataset=written, processing_class=tokenizer)
pairs = {
    "prompt": [text[:12] for text in texts],
    "chosen": [text[12:] for text in texts],
    "rejected": ["zzz"] * len(texts),
}
dpo = DPOTrainer(
    start(), args=DPOConfig(**settings), train_dataset=Dataset.from_dict(pairs), processing_class=tokenizer,
    peft_config=LoraConfig(r=4, target_modules="all-linear"),
)  # fmt: skip
print(json.dumps({"sft": losses(sft), "dpo": losses(dpo)}))
