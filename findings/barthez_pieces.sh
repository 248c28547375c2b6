#!/usr/bin/env bash
# One expects BarthezTokenizer to give a sentencepiece.bpe.model fairseq's ids (<s> 0, <pad> 1, </s> 2, <unk> 3, then the
# pieces) and to put <s> and </s> around a text, as XLMRobertaTokenizer does with the same file, and as the default
# vocabulary of BarthezTokenizer itself begins. transformers 5.24.0 numbers the tokens as the SentencePiece model does, appends <pad>
# and <mask>, and adds nothing around a text; it gives no warning. A folder with tokenizer.json is not concerned.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet transformers==5.24.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cd "$place"
"$place/env/bin/python" -W ignore - 2>/dev/null <<'PY'
import io
import json
from importlib.metadata import version
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from transformers import BarthezTokenizer, XLMRobertaTokenizer

print(*(f"{name} {version(name)}" for name in ("transformers", "sentencepiece")))
model = io.BytesIO()
sentences = ["a small cat sleeps on a warm stone", "who has taken the bread this morning"] * 4
SentencePieceTrainer.train(
    sentence_iterator=iter(sentences), model_writer=model, vocab_size=40, hard_vocab_limit=False, minloglevel=2
)
Path("sentencepiece.bpe.model").write_bytes(model.getvalue())
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>"]
found = {}
for cls in (XLMRobertaTokenizer, BarthezTokenizer):
    Path("tokenizer_config.json").write_text(json.dumps({"tokenizer_class": cls.__name__}))
    tokenizer = cls.from_pretrained(".")
    ids, tokens = tokenizer.convert_tokens_to_ids(SYMBOLS), tokenizer("a cat").tokens()
    found[cls] = ids, (tokens[0], tokens[-1])
    print(cls.__name__, dict(zip(SYMBOLS, ids, strict=True)), tokens)
assert found[XLMRobertaTokenizer] == ([0, 1, 2, 3], ("<s>", "</s>")), "no longer as recorded"
(bos, pad, eos, unknown), ends = found[BarthezTokenizer]
assert (unknown, bos, eos) == (0, 1, 2) and pad > 3 and ends != ("<s>", "</s>"), "no longer as recorded"
PY
