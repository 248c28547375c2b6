#!/usr/bin/env bash
# One expects a tokenizer.json made of a SentencePiece BPE model to give the model's ids, with merges ordered by score.
# Where overlapping pieces have equal scores, as in a vocabulary that was extended with pieces of score 0, no order of
# merges does: sentencepiece merges the leftmost pair, and tokenizers the pair that stands first in its list.
# sentencepiece 0.2.3 (pieces made through its model's protocol buffer), tokenizers 0.23.3.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet sentencepiece==0.2.3 tokenizers==0.23.3 protobuf==7.36.2
"$place/env/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as model_pb2
from tokenizers import Tokenizer, models

print(*(f"{name} {version(name)}" for name in ("sentencepiece", "tokenizers")))
PIECES = {"<unk>": 0.0, "a": -1.0, "b": -2.0, "ab": 0.0, "ba": 0.0}
TEXTS = ("aba", "bab")
model = model_pb2.ModelProto()
model.trainer_spec.model_type = 2  # BPE
model.normalizer_spec.name = "identity"
model.normalizer_spec.add_dummy_prefix = False
for piece, score in PIECES.items():
    added = model.pieces.add()
    added.piece, added.score = piece, score
    added.type = 2 if piece == "<unk>" else 1
library = SentencePieceProcessor(model_proto=model.SerializeToString())
expected = [library.encode(text, out_type=str) for text in TEXTS]
print("sentencepiece:", *expected)
vocabulary, merges = {piece: index for index, piece in enumerate(PIECES)}, [("a", "b"), ("b", "a")]
for order in (merges, merges[::-1]):
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=order, unk_token="<unk>"))
    found = [tokenizer.encode(text).tokens for text in TEXTS]
    print("tokenizers, merges", order, ":", *found)
    assert sum(one != other for one, other in zip(found, expected, strict=True)) == 1, "no longer as recorded"
assert expected == [["ab", "a"], ["ba", "b"]], "no longer as recorded"
PY
