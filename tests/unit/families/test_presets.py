"""Presets: the promised names, and what makes each family what it is."""

import subprocess
import sys
from math import isclose, log

from archetype import families, spec
from archetype.families.index import count_presets, preset_facts
from tests.helpers.cases import case

PRESETS = sorted(families.presets())

# Of each system of the mission, the one that trains in minutes.
TINY = (
    "bigram-tiny", "ngram-tiny", "rnn-tiny", "lstm-tiny", "gru-tiny", "seq2seq-lstm-tiny", "seq2seq-attention-tiny",
    "transformer-tiny", "bert-tiny", "gpt2-tiny", "gpt3-tiny", "t5-tiny", "llama-tiny", "mistral-tiny", "qwen2-tiny",
    "gemma-tiny", "gemma2-tiny", "deepseek-v2-tiny", "mixtral-tiny", "sparse-strided-tiny", "sparse-fixed-tiny",
    "longformer-tiny", "bigbird-tiny", "bloom-tiny", "mpt-tiny", "mamba-tiny", "mambabyte-tiny", "megabyte-tiny",
    "vit-tiny", "qwen3-tiny", "qwen3-moe-tiny", "gemma3-tiny", "olmo2-tiny", "phi3-tiny", "smollm3-tiny",
    "gpt-oss-tiny", "deepseek-v3-tiny", "mamba2-tiny", "roberta-tiny", "albert-tiny",
    "gemma3n-tiny", "gemma4-tiny", "gemma4-moe-tiny", "deepseek-v4-tiny", "modernbert-tiny", "eurobert-tiny",
    "llada-tiny", "deberta-v3-tiny",
    "kimi-linear-tiny", "kimi-k3-tiny", "retnet-tiny", "gla-tiny", "hgrn2-tiny", "deltanet-tiny", "minimax-tiny",
    "mamba3-tiny", "ouro-tiny", "nanbeige-tiny", "xlstm-tiny", "rwkv4-tiny", "rwkv7-tiny",
    "block-index-tiny", "pool-index-tiny", "gated-streams-tiny", "engram-tiny", "block-diffusion-tiny",
    "nsa-tiny", "moba-tiny", "softpick-tiny", "dynamic-tanh-tiny", "canon-tiny",
)  # fmt: skip


def kinds(part: object) -> set[str]:
    """Every `kind` within a specification that is written out."""
    match part:
        case dict():
            own = {part["kind"]} if isinstance(part.get("kind"), str) else set()
            return own.union(*map(kinds, part.values()))
        case list():
            return set().union(*map(kinds, part))
        case _:
            return set()


def test_a_preset_bears_its_name_and_names_its_source() -> None:
    for name in PRESETS:
        with case(name):
            assert families.preset(name).name == name
            assert len(families.presets()[name][1].source) > 10


def test_the_listed_facts_are_those_of_the_presets() -> None:
    """Where this fails, run `python -m archetype.families.index`."""
    assert preset_facts() == count_presets()


def test_one_preset_imports_its_family_only() -> None:
    script = """if True:
        import sys
        from archetype.families import preset_facts
        assert len(preset_facts()) > 80 and "pydantic" not in sys.modules
        from archetype.families import preset
        preset("llama-tiny")
        families = {name.rpartition(".")[2] for name in sys.modules if name.startswith("archetype.families.")}
        print(sorted(families & {"llama", "gpt2", "bert", "t5", "mamba"}))
    """
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "['llama']\n"


def test_every_system_has_a_tiny_preset_and_no_other_is_tiny() -> None:
    assert {name for name in PRESETS if name.endswith("-tiny")} == set(TINY)


def test_a_tiny_preset_reads_bytes_or_digits_in_two_layers_a_side() -> None:
    for name in TINY:
        with case(name):
            tiny = families.preset(name)
            if isinstance(tiny, spec.VisionEncoder):
                assert (tiny.image_size, tiny.num_channels, tiny.head) == (
                    8,
                    1,
                    spec.ClassificationHead(num_classes=10),
                )
            else:
                assert 256 <= tiny.vocab_size <= 263  # the bytes, and the ids that its objective needs beside them
            # a per-layer input of Gemma 4 is a block of its own behind each layer
            layers = [
                [block for block in stack.layers if not block.feedforward.layer_features] for stack in tiny.stacks
            ]
            assert all(len(blocks) == 2 for blocks in layers)


def test_a_tiny_preset_has_every_kind_of_part_of_its_family() -> None:
    for name, family in families.FAMILIES.items():
        presets = family.presets
        if not any(preset.endswith("-tiny") for preset in presets):
            continue  # a published table, whose parts other families have
        with case(name):
            tiny = set().union(*(kinds(families.preset(n).dump(full=True)) for n in presets if n.endswith("-tiny")))
            published = set().union(
                *(kinds(families.preset(n).dump(full=True)) for n in presets if not n.endswith("-tiny"))
            )
            # texts of 128 bytes need no stretched positions; of a family with two designs, the tiny one is the first
            absent = {"deepseek_v2": {"yarn", "direct"}, "llama": {"llama3"}, "t5": {"gated"}, "gpt_oss": {"yarn"}}
            absent |= {"deepseek_v3": {"yarn"}, "deepseek_v4": {"yarn"}, "gemma3_text": {"linear"}, "phi3": {"full"}}
            assert published - tiny == absent.get(name, set())


def decoder(name: str) -> spec.Decoder:
    preset = families.preset(name)
    assert isinstance(preset, spec.Decoder)
    return preset


def attention(name: str, layer: int = 0) -> spec.Attention:
    mixer = decoder(name).layers[layer].mixer
    assert isinstance(mixer, spec.Attention)
    return mixer


def test_gpt3_alternates_dense_and_banded_layers() -> None:
    patterns = [attention("gpt3-175b", layer).pattern for layer in range(96)]
    assert patterns == [spec.Full(), spec.Window(size=128)] * 48


def test_gemma2_alternates_windows_and_full_layers_and_caps_both_scores() -> None:
    patterns = [attention("gemma2-27b", layer).pattern for layer in range(46)]
    assert patterns == [spec.Window(size=4096), spec.Full()] * 23
    assert (attention("gemma2-27b").softcap, decoder("gemma2-27b").head.softcap) == (50.0, 30.0)
    assert (attention("gemma2-27b").scale, attention("gemma2-9b").scale) == (1 / 12, None)  # None: 1 / sqrt(256)


def test_gemma_scales_embeddings_by_the_root_of_the_width() -> None:
    for name, scale in (("gemma-2b", 2048), ("gemma-7b", 3072), ("gemma2-9b", 3584)):
        with case(name, scale):
            assert isclose(decoder(name).embedding.scale ** 2, scale)


def test_deepseek_v2_applies_the_factor_of_yarn_to_scores_and_not_to_the_rotation() -> None:
    for name in ("deepseek-v2", "deepseek-v2-lite"):
        with case(name):
            mixer = decoder(name).layers[0].mixer
            assert isinstance(mixer, spec.LatentAttention) and mixer.scale is not None
            assert isclose(mixer.scale, (0.1 * 0.707 * log(40) + 1) ** 2 / 192**0.5)
            scaling = mixer.position.scaling
            assert isinstance(scaling, spec.YarnScaling) and scaling.mscale == scaling.mscale_all_dim


def test_deepseek_v2_starts_with_a_dense_layer() -> None:
    for name, width in (("deepseek-v2", 12_288), ("deepseek-v2-lite", 10_944)):
        first, *rest = (block.feedforward for block in decoder(name).layers)
        assert first == spec.GatedMLP(d_ff=width, activation="silu")
        assert all(isinstance(part, spec.MixtureOfExperts) and part.shared is not None for part in rest)


def test_t5_divides_no_score_and_version_1_1_has_a_head_of_its_own() -> None:
    old, new = families.preset("t5-base"), families.preset("t5-v1.1-base")
    assert isinstance(old, spec.EncoderDecoder) and isinstance(new, spec.EncoderDecoder)
    blocks = [*old.encoder.layers, *old.decoder.layers]
    assert {block.mixer.scale for block in blocks if isinstance(block.mixer, spec.Attention)} == {1.0}
    assert {block.cross_attention.scale for block in blocks if block.cross_attention is not None} == {1.0}
    assert (old.head.tied, old.head.scale) == (True, 768**-0.5)
    assert (new.head.tied, new.head.scale) == (False, 1.0)


def test_seq2seq_with_attention_looks_at_the_source_from_its_last_layer_only() -> None:
    model = families.preset("seq2seq-attention-tiny")
    assert isinstance(model, spec.EncoderDecoder) and model.state_bridge is not None
    assert [block.mixer for block in model.encoder.layers] == [spec.LSTM(bidirectional=True)] * 2
    assert [block.cross_attention for block in model.decoder.layers] == [
        None,
        spec.Attention(num_heads=1, score="additive"),
    ]
