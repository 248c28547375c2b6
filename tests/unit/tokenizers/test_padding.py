"""Batches of texts that transformers pads with an export's tokenizer."""

from pathlib import Path

from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.models.build import build
from archetype.tokenizers import open_tokenizer, train_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from tests.unit.convert.test_gguf_metadata import CONFIGS, model_of

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 48}  # fmt: skip


def test_a_collator_takes_the_tokenizer_of_bytes(tmp_path: Path) -> None:
    """Its pad is the id of a byte that no text has; ids and texts are the same as before."""
    spec = model_of(CONFIGS["llama-2-7b"] | SIZES)
    export(LanguageModel(spec, build(spec), train_tokenizer("bytes", "", None)), tmp_path / "out")
    theirs, own = AutoTokenizer.from_pretrained(tmp_path / "out"), open_tokenizer(tmp_path / "out")
    batch = DataCollatorForLanguageModeling(theirs, mlm=False)([theirs("abc"), theirs("é")])
    assert batch["input_ids"].tolist() == [[97, 98, 99], [0xC3, 0xA9, 255]]
    assert batch["labels"].tolist()[1][2] == -100 and batch["attention_mask"].tolist()[1] == [1, 1, 0]
    for text in AWKWARD_TEXTS:
        ids = theirs(text).input_ids
        assert ids == own.encode(text) and theirs.decode(ids, skip_special_tokens=True) == text
    theirs.save_pretrained(tmp_path / "again")
    again = open_tokenizer(tmp_path / "again")
    assert (again.kind, again.special_tokens) == ("byte_bpe", {"<|pad|>": 255})
    assert [again.encode(text) for text in AWKWARD_TEXTS] == [own.encode(text) for text in AWKWARD_TEXTS]
