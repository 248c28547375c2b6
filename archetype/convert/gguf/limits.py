"""Sizes and rotations without which a loader of llama.cpp refuses a file, or computes something else."""

from collections.abc import Iterable
from typing import Any

from archetype.convert.gguf.keys import unsupported
from archetype.parts.attention.spec import Attention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.mamba.spec import Mamba
from archetype.parts.pattern.spec import Window
from archetype.parts.position.spec import Rotary


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# the head has weights of its own, or those of the embedding
OWN_HEAD = _names("""
    apertus baichuan bailingmoe bailingmoe2 codeshell dbrx dots1 exaone-moe glm5-next gpt-oss gptneox hy_v4 internlm2
    jais kimi-k3 kimi-linear llada-moe maple mellum mimo2 minimax-m2 minimax-m3 muse-glimmer nemotron olmo2 olmoe orion
    phi2 plamo qwen qwen2moe stablelm step35 xverse
""")
TIED_HEAD = _names("bitnet cohere2 command-r gemma gemma2 gemma3 openelm plm")
# some layers have windows
WINDOWED = _names("""
    afmoe cohere2 cohere2moe exaone-moe gemma-embedding gpt-oss granite_swa maple mimo2 muse-glimmer spark2_5 step35
""")
# the widths of all heads sum to d_model
SQUARE = _names("""
    baichuan bailingmoe2 bert bitnet bloom chatglm codeshell cohere2 command-r dbrx deepseek deepseek2-ocr dream
    eurobert exaone4 falcon gpt2 gptneox grok internlm2 jais jamba jina-bert-v2 jina-bert-v3 lfm2 lfm2moe llada-moe
    modern-bert mpt nemotron neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe orion phi2 phi3 plamo qwen qwen2
    qwen2moe qwen2vl stablelm starcoder starcoder2 xverse
""")
# heads are rotated as a whole
WHOLE = _names("""
    apertus bailingmoe codeshell cohere2moe dbrx dots1 dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon
    gpt-oss grok hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 jais2 llada-moe llama4 maincoder mellum olmo2 olmoe
    orion paddleocr pangu-embedded plamo qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe rnd1 seed_oss
    starcoder2
""")
# frequencies may have divisors, which is Llama 3's scaling
DIVIDED = _names("""
    apertus arcee deci exaone exaone-moe exaone4 gemma4 granite granite_swa granitehybrid granitemoe llama llama-embed
    llama4 minicpm mistral3 nanbeige step35
""")
# layers may have different numbers of heads, or dense networks of different widths
UNEQUAL_HEADS = _names("deci gemma4 laguna mimo2 nemotron_h nemotron_h_moe openelm plamo3 spark2_5 step35")
UNEQUAL_WIDTHS = _names("deci gemma4 nemotron_h nemotron_h_moe openelm plamo3")
# layers may lack a mixer or a feed-forward part, have one of the two, or have a recurrent mixer alone
INCOMPLETE = _names("deci gemma4 mamba mamba2 nemotron_h nemotron_h_moe qwen4exp")
ONE_OF_TWO = _names("nemotron_h nemotron_h_moe")
RECURRENT = _names("mamba mamba2")
# layers have mixers of two kinds
HYBRID = _names("""
    bailingmoe3 glm5-next granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01 nemotron_h nemotron_h_moe
    qwen35 qwen35moe qwen3next qwen4exp
""")
# dense networks are as wide as experts
ONE_WIDTH = _names("jamba nomic-bert-moe")


def check_sublayers(architecture: str, model: Any) -> None:
    """Refuse layers without a mixer or a feed-forward part, or with both, where an architecture has no such layers.

    Raises:
        CheckpointError: names the field.
    """
    for index, block in enumerate(getattr(model, "layers", ())):
        lacking = [name for name in ("mixer", "feedforward") if getattr(block, name).is_absent]
        if lacking and architecture not in INCOMPLETE:
            raise unsupported(f"layers[{index}].{lacking[0]}", f"a layer without this part in {architecture}")
        if not lacking and architecture in ONE_OF_TWO | RECURRENT:
            raise unsupported(f"layers[{index}].feedforward", f"a feed-forward part beside a mixer in {architecture}")
        if isinstance(block.mixer, Mamba) and getattr(block.mixer.norm, "weight", False) != (architecture == "jamba"):
            cause = "norms of Mamba with weights" if architecture != "jamba" else "Mamba without norms with weights"
            raise unsupported(f"layers[{index}].mixer.norm", f"{cause} in {architecture}")
        if architecture in RECURRENT and (block.mixer.is_absent or isinstance(block.mixer, Attention)):
            raise unsupported(f"layers[{index}].mixer", f"'{block.mixer.kind}' in {architecture}")


def check_limits(architecture: str, model: Any) -> None:
    """Refuse a model that an architecture's loader does not read.

    Raises:
        CheckpointError: names the field.
    """
    tied, layers = getattr(getattr(model, "head", None), "tied", None), getattr(model, "layers", ())
    if (tied is True and architecture in OWN_HEAD) or (tied is False and architecture in TIED_HEAD):
        raise unsupported("head.tied", f"{'a tied' if tied else 'an untied'} head in {architecture}")
    kinds = {block.mixer.kind for block in layers if not block.mixer.is_absent}
    if architecture in HYBRID and len(kinds) == 1:
        raise unsupported("layers[*].mixer", f"{architecture} whose mixers are all '{kinds.pop()}'")
    attentions = [mixer for block in layers for mixer in block.mixer.each() if isinstance(mixer, Attention)]
    if architecture in WINDOWED and not any(isinstance(mixer.pattern, Window) for mixer in attentions):
        raise unsupported("layers[*].mixer.pattern", f"{architecture} without windows")
    for mixer in attentions:
        sizes, position = mixer.sizes(model.d_model), mixer.position
        if architecture in SQUARE and sizes.head_dim * sizes.num_heads != model.d_model:
            raise unsupported(
                "layers[*].mixer.head_dim", f"a head_dim other than d_model / num_heads in {architecture}"
            )
        if architecture in WHOLE and isinstance(position, Rotary) and sizes.rotary_dim != sizes.head_dim:
            raise unsupported("layers[*].mixer.position.dim", f"partially rotated heads in {architecture}")
    if architecture not in UNEQUAL_HEADS:
        sizes_of_heads = (mixer.sizes(model.d_model) for mixer in attentions)
        _check_equal("mixer.num_heads", ((size.num_heads, size.num_kv_heads) for size in sizes_of_heads))
    networks = [block.feedforward for block in layers]
    experts = [part for part in networks if isinstance(part, MixtureOfExperts)]
    widths = [part.width(model.d_model) for part in networks if isinstance(part, MLP | GatedMLP)]
    of_experts = [part.expert.width(model.d_model) for part in experts]
    if architecture not in UNEQUAL_WIDTHS:
        _check_equal("feedforward.d_ff", widths + (of_experts if architecture in ONE_WIDTH else []))
    _check_equal("feedforward.num_experts", (part.num_experts for part in experts))
    _check_equal("feedforward.expert.d_ff", of_experts)
    shared = (part.shared for part in experts if part.shared is not None)
    _check_equal("feedforward.shared.d_ff", (part.width(model.d_model) for part in shared))


def _check_equal(field: str, values: Iterable[object]) -> None:
    if len(different := dict.fromkeys(values)) > 1:
        numbers = " and ".join(str(value) for value in different)
        raise unsupported(f"layers[*].{field}", f"{numbers} in layers of one file here")
