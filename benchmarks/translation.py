"""Translation by a trained encoder-decoder: its BLEU on a test set, and its speed beside transformers' Marian.

    python -m benchmarks.translation bleu runs/de-en test.de.gz test.en.gz
    python -m benchmarks.translation speed runs/de-en test.de.gz

The first needs sacrebleu, which is asked for lower-cased scores, greedy and with a beam of 5. The second gives Marian
the run's own weights: the original Transformer with its features in another order, sines before cosines. Both translate
the same tokens, sorted by length, in turns. transformers gets batches of the size that `--batch` says.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import archetype
from archetype.data.pairs import end_of_text, read_lines
from archetype.families.marian import marian
from archetype.generate.beam import beam_search
from archetype.io.text import read_text
from archetype.language_model import LanguageModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.settings.generation import Beam
from benchmarks.machine import heading

Targets = list[list[int]]


def main() -> None:
    """Print the scores or the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bleu", "speed"))
    parser.add_argument("run", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, nargs="?", help="of bleu")
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--beams", type=int, default=5, help="of speed")
    parser.add_argument("--sentences", type=int, default=1000, help="of speed: the first so many")
    parser.add_argument("--batch", type=int, default=64, help="of transformers: sentences at once")
    parser.add_argument("--dtype", default="float32", help="of the weights of both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    lm = archetype.load(chosen.run).to(dtype=chosen.dtype)
    name = f"python -m benchmarks.translation {chosen.what} {chosen.run} {chosen.source.name} --dtype {chosen.dtype}"
    if chosen.what == "bleu":
        print(heading(f"{name} {chosen.target.name}", "sacrebleu"))
        bleu(
            lm,
            *read_lines(read_text(chosen.source), read_text(chosen.target), str(chosen.source)),
            chosen.length_penalty,
        )
    else:
        print(heading(name, "transformers"))
        lines = read_text(chosen.source).splitlines()[: chosen.sentences]
        speed(lm, lines, Beam(num_beams=chosen.beams), chosen.batch, chosen.rounds)


def bleu(lm: LanguageModel, sources: list[str], references: list[str], length_penalty: float) -> None:
    """Print the scores of greedy targets and of those that a beam finds."""
    import sacrebleu

    for num_beams in (1, 5):
        started = time.perf_counter()
        translations = lm.translate(sources, num_beams=num_beams, length_penalty=length_penalty)
        seconds = time.perf_counter() - started
        score = sacrebleu.corpus_bleu(translations, [references], lowercase=True)
        print(f"beam {num_beams}: {score.score:5.2f} BLEU  {len(sources) / seconds:5.1f} texts/s  {score}")


def speed(lm: LanguageModel, lines: list[str], beam: Beam, batch: int, rounds: int) -> None:
    """Print the seconds of both, and their ratio."""
    tokenizer, model = lm.tokenizer, lm.model
    assert tokenizer is not None and isinstance(model, EncoderDecoder)
    end = end_of_text(tokenizer)
    sources = sorted(([*tokenizer.encode(line), end] for line in lines), key=len)
    theirs = peer(model, end, sources, beam, batch)
    sides: dict[str, Callable[[], Targets]] = {
        "archetype": lambda: beam_search(model, sources, end, end, beam), "transformers": theirs,
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in sides}
    targets: dict[str, Targets] = {}
    for _ in range(rounds + 1):
        for name, translate in sides.items():
            started = time.perf_counter()
            targets[name] = translate()
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    same = sum(ours == other for ours, other in zip(*targets.values(), strict=True))
    for name, seconds in medians.items():
        written = sum(map(len, targets[name]))
        print(
            f"{name:<14}{seconds:8.2f} s  {len(lines) / seconds:7.1f} sentences/s  {written:,} tokens of best targets"
        )
    print(f"ratio {medians['transformers'] / medians['archetype']:.2f}; {same} of {len(lines)} targets are the same")


def peer(model: EncoderDecoder, end: int, sources: Targets, beam: Beam, batch: int) -> Callable[[], Targets]:
    """The search of transformers with the same weights."""
    from transformers import AutoModelForSeq2SeqLM, GenerationConfig

    with tempfile.TemporaryDirectory() as folder:
        archetype.export(as_marian(model), Path(folder) / "model")
        other = AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / "model").to(model.dtype).eval()
    settings = {"eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end, "do_sample": False}
    limit = model.spec.context_length - 1
    pieces = [sources[start : start + batch] for start in range(0, len(sources), batch)]

    @torch.inference_mode()
    def run() -> Targets:
        targets: Targets = []
        for piece in pieces:
            longest = max(map(len, piece))
            ids = torch.tensor([source + [end] * (longest - len(source)) for source in piece])
            mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in piece])
            config = GenerationConfig(
                num_beams=beam.num_beams, length_penalty=beam.length_penalty, **settings,
                max_new_tokens=min(limit, longest + beam.max_extra_tokens),
            )  # fmt: skip
            rows = other.generate(ids, attention_mask=mask, generation_config=config)[:, 1:].tolist()
            targets += [row[: row.index(end)] if end in row else row for row in rows]
        return targets

    return run


def as_marian(model: EncoderDecoder) -> LanguageModel:
    """The same function in Marian's form: features in the order in which its positions stand, sines before cosines."""
    spec, layer = model.spec, model.spec.decoder.layers[0]
    width = spec.d_model
    built = archetype.build(
        marian(
            num_layers=len(spec.encoder.layers), num_decoder_layers=len(spec.decoder.layers), d_model=width,
            num_heads=layer.mixer.num_heads, d_ff=layer.feedforward.d_ff, activation=layer.feedforward.activation,  # type: ignore[union-attr]
            vocab_size=spec.vocab_size, context_length=spec.context_length, scaled=spec.embedding.scale != 1.0,
        )
    )  # fmt: skip
    order = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    weights = {name: _reordered(name, tensor, order) for name, tensor in model.state_dict().items()}
    built.load_state_dict(weights | {"lm_head.bias": torch.zeros(spec.vocab_size)})
    return LanguageModel(built.spec, built.eval())


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """A parameter with the features of the residual stream in another order, on whichever side it has them."""
    if "norm" in name or ".o." in name or ".down." in name:
        return tensor[order]
    return tensor[:, order] if tensor.dim() == 2 else tensor


if __name__ == "__main__":
    main()
