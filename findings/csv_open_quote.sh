#!/usr/bin/env bash
# One expects a row of a CSV file whose quote is never closed to be an error, or to spoil that row alone.
# load_dataset("csv") reads on to the next quote of the file without a word: one text holds every line between, and those
# records are gone. Semicolons as separators are not seen either: with a comma in a text, half of the text becomes the index.
# datasets 5.2.0 with pandas 3.1.1.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet datasets==5.2.0 pandas==3.1.1 pyarrow==26.0.1
cd "$place"
cat > quote.csv <<'CSV'
text,label
one,0
"two,1
three,0
four,1
five",0
six,1
CSV
cat > semicolon.csv <<'CSV'
text;label
one, or two;0
three, or four;1
CSV
HF_HOME="$place/home" HF_HUB_OFFLINE=1 "$place/env/bin/python" -W ignore - <<'PY'
import datasets
import pandas

print("datasets", datasets.__version__, "pandas", pandas.__version__)
datasets.disable_progress_bars()
quote = datasets.load_dataset("csv", data_files="quote.csv", split="train").to_list()
print("six records with an open quote:", quote)
assert [row["text"] for row in quote] == ["one", "two,1\nthree,0\nfour,1\nfive", "six"], "no longer as recorded"
semicolon = datasets.load_dataset("csv", data_files="semicolon.csv", split="train").to_list()
print("two records with semicolons:", semicolon)
assert [row["text;label"] for row in semicolon] == [" or two;0", " or four;1"], "no longer as recorded"
PY
