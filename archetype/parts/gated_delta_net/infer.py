"""Infer a gated delta network of an unregistered family from names and shapes of its tensors."""

from math import prod
from typing import Any

from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.mamba.infer import PREFIX, check_activation
from archetype.roles.checkpoint import CheckpointMixer, FusedOrder, Joint, MixerReader, NameTable
from archetype.spec.registry import provides

# Kimi delta attention has the names of attention; transformers keeps the decay's tensors in a module of their own.
OWN = r"(?:\w+\.)*?(?:mamba|mixer|linear_attn|self_attn|attention)\.(?:forget_gate\.)?"
NAMES: NameTable = (
    (rf"{PREFIX}in_proj_qkvz", "qkvz"),
    (rf"{PREFIX}in_proj_ba", "ba"),
    (rf"{PREFIX}in_proj_qkv", "qkv"),
    (rf"{PREFIX}in_proj", "qkvzba"),
    *((rf"{OWN}{name}_proj", name) for name in "qkvab"),
    *((rf"{OWN}{theirs}_proj", ours) for theirs, ours in (("f_a", "a_down"), ("f_b", "a_up"), ("f", "a"))),
    *((rf"{OWN}{theirs}_proj", ours) for theirs, ours in (("g_a", "gate_down"), ("g_b", "gate_up"))),
    (rf"{OWN}(?:in_proj_z|g_proj)", "gate"),
    (rf"{PREFIX}in_proj_a", "a"),
    (rf"{PREFIX}in_proj_b", "b"),
    (rf"{OWN}conv1d", "conv"),
    *((rf"{OWN}{name}_conv1d", f"{name}_conv") for name in "qkv"),
    (rf"{OWN}(?:o_|out_)?norm", "norm"),
    (rf"{OWN}(?:out_proj|o_proj|dense)", "o"),
)
STEPS: NameTable = tuple((rf"{OWN}{name}", name) for name in ("A_log", "dt_bias"))
JOINT = {"qkvz": ("q", "k", "v", "gate"), "ba": ("b", "a"), "qkv": ("q", "k", "v")}
JOINT["qkvzba"] = (*JOINT["qkvz"], *JOINT["ba"])  # of Lara
BOUNDS = ("kda_lower_bound", "linear_lower_bound")  # of the logarithm of a decay
BOUND = "gate_lower_bound"  # the same in a section of Kimi K3
# shown by tensors
SIZES = {"full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size", "use_full_rank_gate"}
CONVOLUTIONS = ("q_conv", "k_conv", "v_conv")  # whose channels are in this order in one convolution
PARTS = ("qkv_per_head", "qkv"), ("qkv", "qkv_per_head")  # orders with a gate, and without


def read(tensors: CheckpointMixer) -> GatedDeltaNet:
    """Read sizes from the rates, the norm and the convolution, and the number of key heads from config.json."""
    if tensors.config.get("hidden_act") != "situ":  # of Kimi K3's networks, whose convolutions have SiLU
        check_activation(tensors)
    num_heads, (v_head_dim,) = _num_heads(tensors), tensors.shape("norm.weight")
    channels, kernel = _convolution(tensors)
    for path in JOINT.keys() & {name.removesuffix(".weight") for name in tensors.shapes}:
        _fused_order(tensors, path)
    (decays,) = tensors.shape("dt_bias")
    by_channel = decays != num_heads
    # of the convolution's 2 K P + H Q channels, K is the size that no shape gives
    key_heads = num_heads if by_channel else _key_heads(tensors, num_heads)
    head_dim = (channels - num_heads * v_head_dim) // (2 * key_heads)
    if (channels - num_heads * v_head_dim) % (2 * key_heads) or decays not in (num_heads, num_heads * head_dim):
        raise tensors.missing(f"a convolution whose {channels} channels do not fit {key_heads} key heads")
    fields = _of_channels(tensors) if by_channel else {}
    if (gate := tensors.config.get("output_gate_type")) is not None:  # Qwen4-Exp
        if gate not in ("silu", "sigmoid"):
            raise tensors.missing(f"a delta network with gate {gate!r}")
        fields["gate"] = gate
    return GatedDeltaNet(
        num_heads=num_heads,
        num_key_heads=None if key_heads == num_heads else key_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        conv_kernel=kernel,
        negative_eigenvalues=tensors.config.flag("linear_allow_neg_eigval", False),
        eps=tensors.quirks.mixer_eps or tensors.eps,
        **fields,
    )


def _of_channels(tensors: CheckpointMixer) -> dict[str, Any]:
    # Kimi Linear; Ling 3.0 and GLM 5.3 bound the decay
    tensors.assume("gate", "sigmoid", "as all classes with a decay of each channel have it")
    config, key = tensors.config, next((key for key in BOUNDS if tensors.config.get(key) is not None), None)
    bound = None if key is None or not config.flag("kda_safe_gate", True) else config.get(key)
    if (section := tensors.config.section("linear_attn_config")) is not None:
        for other in {key for key, value in section.values.items() if value is not None} - SIZES - {BOUND}:
            raise tensors.missing(f"linear attention with key {other}")
        if section.get(BOUND) is not None:
            config, key, bound = section, BOUND, section.get(BOUND)
    if bound is not None and not (isinstance(bound, int | float) and bound < 0):
        raise config.error(str(key), f"{bound!r} is not a negative logarithm", "fix the file")
    ranks = {
        field: tensors.sides(f"{name}_down.weight")[0]
        for field, name in (("decay_rank", "a"), ("gate_rank", "gate"))
        if f"{name}_down.weight" in tensors.shapes
    }
    return {"decay": "channel", "gate": "sigmoid", "decay_bound": None if bound is None else float(bound), **ranks}


def _num_heads(tensors: CheckpointMixer) -> int:
    # each has a rate of writing; Kimi K3 has zeros behind the rates of the decay, up to the width of a head
    return tensors.sides("b.weight")[0] if "b.weight" in tensors.shapes else prod(tensors.shape("A_log"))


def _padding(mixer: GatedDeltaNet, tensors: CheckpointMixer, param: str) -> int:
    return prod(tensors.shapes[param]) - mixer.num_heads if param == "A_log" else 0


def _key_heads(tensors: CheckpointMixer, num_heads: int) -> int:
    if (count := tensors.size(("linear_num_key_heads",))) is not None:
        return count
    # OLMo-Hybrid's class then takes as many as attention has heads
    if tensors.size(("num_attention_heads",)) not in (None, num_heads):
        cause = f"is missing and cannot be inferred from {num_heads} value heads or from attention's heads"
        raise tensors.config.error("linear_num_key_heads", cause, "add it")
    return num_heads


def _convolution(tensors: CheckpointMixer) -> tuple[int, int]:
    # channels and kernel size of one convolution, or of three over neighbouring channels (OLMo-Hybrid)
    if "q_conv.weight" not in tensors.shapes:
        channels, _, kernel = tensors.shape("conv.weight")
        return channels, kernel
    shapes = [tensors.shape(f"{name}.weight") for name in CONVOLUTIONS]
    if len({kernel for _, _, kernel in shapes}) > 1:
        raise tensors.missing("convolutions of different kernel sizes")
    return sum(channels for channels, _, _ in shapes), shapes[0][2]


def _joint(mixer: GatedDeltaNet, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    if path in CONVOLUTIONS:
        # transformers joins all channels and writes equal thirds, which need not be those of q, k and v
        before = CONVOLUTIONS[: CONVOLUTIONS.index(path)]
        start = sum(tensors.shape(f"{other}.weight")[0] for other in before)
        return Joint(("conv",), rows=(start, start + tensors.shape(f"{path}.weight")[0]))
    if path not in JOINT:
        return None
    return Joint(JOINT[path], mixer.key_heads if _fused_order(tensors, path) == "qkv_per_head" else 1)


def _fused_order(tensors: CheckpointMixer, path: str) -> FusedOrder:
    # head by head, except for queries, keys and values without a gate or with everything else
    whole = path in ("qkv", "qkvzba")
    return tensors.settle("delta_order", PARTS[whole], f"no file states the order of the parts of {path}")


provides("infer", GatedDeltaNet)(
    MixerReader(
        NAMES,
        read,
        sign=(r"linear_attn\.A_log|(self_attn|attention)\.dt_bias", 1),
        parameters=STEPS,
        joint=_joint,
        padding=_padding,
    )
)
