"""Infer a gated delta network of an unregistered family from names and shapes of its tensors."""

from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.parts.mamba.infer import PARAMETERS, PREFIX, check_activation
from archetype.roles.checkpoint import CheckpointMixer, FusedOrder, Joint, MixerReader, NameTable
from archetype.spec.registry import provides

NAMES: NameTable = (
    (rf"{PREFIX}in_proj_qkvz", "qkvz"),
    (rf"{PREFIX}in_proj_ba", "ba"),
    (rf"{PREFIX}in_proj_qkv", "qkv"),
    *((rf"{PREFIX}{name}_proj", name) for name in "qkvab"),
    (rf"{PREFIX}(?:in_proj_z|g_proj)", "gate"),
    (rf"{PREFIX}in_proj_a", "a"),
    (rf"{PREFIX}in_proj_b", "b"),
    (rf"{PREFIX}conv1d", "conv"),
    (rf"{PREFIX}o?_?norm", "norm"),
    (rf"{PREFIX}(?:out_proj|o_proj)", "o"),
)
JOINT = {"qkvz": ("q", "k", "v", "gate"), "ba": ("b", "a"), "qkv": ("q", "k", "v")}
PARTS = ("qkv_per_head", "qkv"), ("qkv", "qkv_per_head")  # orders with a gate, and without


def read(tensors: CheckpointMixer) -> GatedDeltaNet:
    """Read sizes from the rates, the norm and the convolution, and the number of key heads from config.json."""
    check_activation(tensors)
    (num_heads,), (v_head_dim,) = tensors.shape("A_log"), tensors.shape("norm.weight")
    channels, _, kernel = tensors.shape("conv.weight")
    for path in JOINT.keys() & {name.removesuffix(".weight") for name in tensors.shapes}:
        _fused_order(tensors, path)
    # of the convolution's 2 K P + H Q channels, K is the size that no shape gives
    key_heads = tensors.size(("linear_num_key_heads",)) or num_heads
    return GatedDeltaNet(
        num_heads=num_heads,
        num_key_heads=None if key_heads == num_heads else key_heads,
        head_dim=(channels - num_heads * v_head_dim) // (2 * key_heads),
        v_head_dim=v_head_dim,
        conv_kernel=kernel,
        negative_eigenvalues=tensors.config.flag("linear_allow_neg_eigval", False),
        eps=tensors.quirks.mixer_eps or tensors.eps,
    )


def _joint(mixer: GatedDeltaNet, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    if path not in JOINT:
        return None
    return Joint(JOINT[path], mixer.key_heads if _fused_order(tensors, path) == "qkv_per_head" else 1)


def _fused_order(tensors: CheckpointMixer, path: str) -> FusedOrder:
    # head by head, except for queries, keys and values without a gate
    order: FusedOrder = tensors.settle(
        "delta_order", PARTS[path == "qkv"], f"no file says how the parts of {path} are ordered"
    )
    return order


provides("infer", GatedDeltaNet)(
    MixerReader(NAMES, read, sign=(r"linear_attn\.A_log", 1), parameters=PARAMETERS, joint=_joint)
)
