"""dots 3 in GGUF: latent attention of two kinds, to the keys that an index selects or within a window."""

from typing import Any

from archetype.convert.gguf import deepseek2
from archetype.convert.gguf.keys import Keys, Layer, unsupported, written_fields
from archetype.convert.gguf.mixers import OtherMixer
from archetype.convert.gguf.plain import plain
from archetype.families.keys import expect_kind
from archetype.families.standard_block import changed
from archetype.parts.attention.spec import OutputGate
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.lightning_index.spec import LightningIndex
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Window

WINDOW, LOCAL = "attention.sliding_window", "_swa"  # `LOCAL` ends the keys of layers with windows
APART = (
    "attention.kv_lora_rank", "attention.key_length", "attention.value_length", "attention.key_length_mla",
    "attention.value_length_mla", "rope.freq_base",
)  # fmt: skip


def read(layer: Layer, eps: float) -> LatentAttention:
    keys = layer.keys
    fields: dict[str, Any] = {"rotates": "plain", "gate": OutputGate(per="head")}
    windows = keys.get(f"{WINDOW}_pattern")
    if not isinstance(windows, list) or len(windows) <= layer.index:
        raise keys.error(f"{WINDOW}_pattern", f"{windows!r:.80} lacks layers", "fix the file")
    keys.expect(f"rope.dimension_count{LOCAL}", keys.size("rope.dimension_count"), "rotations of another width")
    if windows[layer.index]:
        mixer = deepseek2.read(layer, eps, kind=LOCAL, **fields).replace(pattern=Window(size=keys.size(WINDOW)))
    else:
        mixer = deepseek2.read_indexed(layer, eps, interleaved=False, kind="", **fields)
    return mixer.replace(key_norm=RMSNorm(eps=eps))


def write(mixer: Any, decoder: Any) -> Keys:
    mixers: list[Any] = [expect_kind(LatentAttention, block.mixer, "layers[*].mixer") for block in decoder.layers]
    windows = [isinstance(mixer.pattern, Window) for mixer in mixers]
    if len(set(windows)) < 2:
        raise unsupported("layers[*].mixer.pattern", "windows in all layers or in none here")
    whole, local = mixers[windows.index(False)], mixers[windows.index(True)]
    index = expect_kind(LightningIndex, whole.index, "layers[*].mixer.index")
    of_windows = deepseek2.write(local, decoder)
    return (
        deepseek2.write(whole, decoder)
        | written_fields(index, deepseek2.LIGHTNING)
        | {f"{key}{LOCAL}": of_windows[key] for key in APART}
        | {
            "attention.head_count": [mixer.num_heads for mixer in mixers],
            WINDOW: local.pattern.size,
            f"{WINDOW}_pattern": windows,
            f"{deepseek2.INDEX}.types": [not is_local for is_local in windows],
        }
    )


def computed(model: Any) -> Any:
    """Return the model without factors on latents, and with an index that rotates halves (see `latents.py`)."""

    def mixer(latent: Any) -> Any:
        if not isinstance(latent, LatentAttention) or not isinstance(latent.query, LowRankQuery):
            return latent
        index = latent.index
        if isinstance(index, LightningIndex) and index.position is not None:
            index = index.replace(position=index.position.replace(interleaved=False))
        return latent.replace(query=latent.query.replace(scale=1.0), latent_scale=1.0, index=index)

    return plain(changed(model, mixer=mixer) if hasattr(model, "layers") else model)


DOTS = OtherMixer(LatentAttention, "attn_kv_a_norm.weight", read, write)
