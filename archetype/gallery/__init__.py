"""The gallery of published models: facts about each, its specification, and a static site of cards.

`models.csv` has the facts. `python -m benchmarks.gallery` writes `read.json` and `specs/` from the published files. No
module of this package loads torch.
"""
