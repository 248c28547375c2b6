"""Drawn bugs that are none: nobody can notice them. Each has its reason."""

# (file, line before -> line after): why
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "confined/process.py",
        "BUSY = 10 -> BUSY = 11",
    ): "a limit of time that a machine must be eleven times too busy to meet",
    (
        "cost/registry.py",
        'Cost = TypeVar("Cost", bound=type[Any]) -> Cost = TypeVar("Cost")',
    ): "types alone",
    (
        "data/shards.py",
        "return document_hash(text) < int(fraction * 2**64) -> return document_hash(text) <= int(fraction * 2**64)",
    ): "one of 2^64 hashes is the bound itself",
    (
        "training/report_page.py",
        "MAX_POINTS = 400 -> MAX_POINTS = 401",
    ): "how many points of a curve of thousands are drawn",
    (
        "inspection/figures.py",
        "axes.tick_params(colors=INK, labelsize=8, length=2, width=0.5)"
        " -> axes.tick_params(colors=INK, labelsize=8, length=2, width=1.0)",
    ): "the width of a picture's tick marks",
    (
        "models/initialization.py",
        "assert_never(scheme) -> pass",
    ): "never reached, as mypy proves",
    (
        "weights/linear.py",
        "FEW = 16 -> FEW = 17",
    ): "the number of vectors from which the other of two ways is faster; both give the same",
    (
        "apps/cli/source_file.py",
        "for source, target in zip(batch, targets, strict=True): -> for source, target in zip(batch, targets):",
    ): "a model gives a target for each source",
    (
        "native/products.py",
        "if x.numel() > MAX_TILED_ROWS * width and width not in TILED_WIDTHS:"
        " -> if x.numel() > MAX_TILED_ROWS * width and width in TILED_WIDTHS:",
    ): "which of two ways is faster on processors with matrix tiles; both give the same",
}
