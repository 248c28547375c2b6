"""Words that users bring along: other names of options and verbs, and what a wrong call is told."""

import re
from pathlib import Path

import pytest

import archetype
from archetype.api.language_model import LanguageModel
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.options import call, options, verbs
from tests.helpers.weights import randomize

LINES = "".join(f"{word} the model reads\n" for word in ("one", "two", "three", "four") * 20)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a folder for transformers, and texts."""
    folder = tmp_path_factory.mktemp("words")
    spec = archetype.load_spec("llama-tiny")
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("bytes", "", None))
    lm.save(folder / "run")
    archetype.export(lm, folder / "exported")
    for name in ("text.txt", "source.txt", "target.txt"):
        (folder / name).write_text(LINES)
    return folder


def said(words: str, folder: Path) -> str:
    done = call(words.split(), folder)
    assert done.status == 0, done.error
    return done.output


def refused(words: str, folder: Path) -> str:
    done = call(words.split(), folder)
    assert done.status == 2 and done.error.count("\n") == 1
    return done.error


def test_second_names_are_the_same_options(material: Path) -> None:
    plan = "train --spec llama-tiny --plan 1x8 --json"
    rates = [re.search(r'"learning_rate": ([\d.e-]+)', said(f"{plan} {name} 0.004", material))
             for name in ("--learning-rate", "--lr")]  # fmt: skip
    assert rates[0] and rates[1] and rates[0][1] == rates[1][1] == "0.004"
    scores = [said(f"evaluate run text.txt {name}", material) for name in
              ("--weights int8", "--quantization int8", "--quantization=int8", "")]  # fmt: skip
    assert scores[0] == scores[1] == scores[2] != scores[3]
    for verb, command in verbs():
        names = [name for option in options(command) for name in option.opts]
        assert ("--weights" in names) == ("--quantization" in names), verb
    assert archetype.from_pretrained is archetype.load


def test_epochs_are_a_budget(material: Path) -> None:
    """Of a text as many windows as it has, of pairs as many as there are; nothing of what is drawn without end."""

    def steps(words: str) -> int:
        match = re.search(r'"steps": (\d+)', said(f"train {words} --plan --json", material))
        assert match is not None
        return int(match[1])

    text = "text.txt --spec llama-tiny --tokenizer bytes --sequence-length 16 --batch-size 4"
    windows = (round(0.9 * len(LINES)) - 1) // 16 - 1
    assert [steps(f"{text} --epochs {count}") for count in (1, 2.5)] == [windows // 4, int(2.5 * windows / 4)]
    pairs = "--source source.txt --target target.txt --spec t5-tiny --set spec.vocab_size=400 --batch-size 8"
    assert steps(f"{pairs} --epochs 3") == 3 * (72 // 8)
    assert "have no epochs; pass --steps or --tokens" in refused(
        "train --spec llama-tiny --set data.kind=recall --epochs 1 --to a", material
    )
    assert "--epochs: cannot be combined with --steps" in refused(f"train {text} --epochs 1 --steps 2 --to a", material)
    assert "a plan for a cluster reads no data" in refused("train --spec llama-tiny --epochs 1 --plan 1x8", material)


def test_convert_is_import_or_export(material: Path, tmp_path: Path) -> None:
    for words, file in (
        ("run --to {}", "config.json"), ("exported --to {}", "spec.yaml"), ("--to {} run", "config.json"),
        ("llama-tiny --to {} --format gguf", "model.gguf"), ("exported --to {} --format=gguf", "model.gguf"),
    ):  # fmt: skip
        with case(words):
            to = tmp_path / str(len([*tmp_path.iterdir()]))
            assert "wrote" in said(f"convert {words.format(to)}", material) and (to / file).is_file()
    assert "See `archetype import --help`." in refused("convert exported", material)
    assert "convert" in said("--help", material)


def test_usage_errors_name_the_verbs_own_help(material: Path) -> None:
    for verb, _ in verbs():
        with case(verb):
            error = refused(f"{verb} --such-an-option", material)
            assert error.endswith(f"See `archetype {verb} --help`.\n")
            assert "Options" in said(f"{verb} --help", material)
    assert refused("cost", material) == "archetype: Missing argument 'SPEC...'. See `archetype cost --help`.\n"
    assert refused("bogus", material).endswith("See `archetype --help`.\n")


def test_a_file_is_evaluated_without_an_option(material: Path) -> None:
    assert said("evaluate run text.txt", material) == said("evaluate run --text text.txt", material)
    assert said("evaluate run text.txt source.txt", material).count("source.txt") == 1
    assert "accepts exactly one kind of data; pass FILE, " in refused("evaluate run text.txt --text text.txt", material)
    assert "nope.txt" in refused("evaluate run nope.txt", material)


def test_explain_lists_all_kinds(material: Path) -> None:
    from archetype.spec import describe

    lines = {
        line[:20].strip(): line[20:].split() for line in said("explain", material).splitlines() if line[:1].strip()
    }
    kinds = [str(cls.model_fields["kind"].default) for _, cls in describe.kinds()]
    assert sorted(kind for members in list(lines.values())[:-1] for kind in members) == sorted(kinds)
    assert "attention" in lines["mixer"] and "rotary" in lines["mixer position"]


def test_remedies_for_pairs_lead_to_a_run(material: Path) -> None:
    """Each is followed to the letter."""
    words = "train --spec llama-tiny --source source.txt --target target.txt --tokenizer bytes --steps 2 --plan"
    told: list[str] = []
    while (done := call(words.split(), material)).status:
        told.append(remedy := done.error.rpartition("; ")[2].strip())
        assert len(told) < 5, told
        if (option := re.search(r"--[\w-]+ [\w.=-]+", remedy)) is not None:
            words = words.replace("--spec llama-tiny", option[0])
        else:
            words = words.replace("--tokenizer bytes", f"--tokenizer {remedy.removeprefix('use ')}")
    model = "use a model that reads data of kind pairs, such as --spec transformer-tiny, or other data"
    assert told == [model, "use byte_bpe"]  # which fits into the model's vocabulary
