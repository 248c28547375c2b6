# %% [markdown]
# # 6. From MHA to MLA: heads and the cache
#
# **Question.** While a model generates, it keeps the keys and values of all earlier tokens. How large is this
# cache, and how do fewer key heads, or one narrow vector, make it smaller?
#
# You decode with and without a cache, count its bytes, and turn one kind of attention into the next *without
# changing its output*: that shows which kind contains which.
# %% [markdown]
# ## A cache changes nothing but the work
#
# With a causal mask the keys and values of earlier tokens do not depend on later ones. So each needs to be
# computed only once.
# %%
import archetype
from archetype.extend import ForwardContext

D, H, P, T = 64, 8, 8, 32


def decoder(mixer, layers=1):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"}, "mixer": mixer,
        "feedforward": {"kind": "mlp", "d_ff": 128, "activation": "gelu"},
    }  # fmt: skip
    sizes = {"vocab_size": 100, "context_length": 256, "d_model": D}
    return {"kind": "decoder", **sizes, "layers": [block] * layers, "final_norm": "rms"}


model = archetype.build(decoder({"kind": "attention", "num_heads": H, "num_kv_heads": 2, "position": "rotary"}, 2))
tokens = torch.randint(100, (1, T))
with torch.no_grad():
    at_once = model(tokens).logits
    state, one_by_one = model.new_state(1), []
    for t in range(T):
        output = model(tokens[:, t : t + 1], state)
        state = output.state
        one_by_one.append(output.logits)
torch.testing.assert_close(torch.cat(one_by_one, dim=1), at_once)
print("32 tokens at once and one by one: equal logits")
# %% [markdown]
# ## Predict
#
# Llama 2 70B has 80 layers and heads of 128 features. Each of its 64 query heads could have its own keys and
# values (multi-head attention, MHA); in fact there are 8 heads of keys and values (grouped-query attention, GQA).
# How many GiB would the cache of **one** sequence of 4,096 tokens take with MHA, at 2 bytes per number?
# %%
prediction = None
# %%


def cache_bytes(layers, kv_heads, head_dim, length, itemsize=2):
    return 2 * layers * kv_heads * head_dim * length * itemsize  # 2: keys and values


reveal(prediction, cache_bytes(80, 64, 128, 4096) / 2**30)
report = archetype.cost_report("llama-2-70b", length=4096)
assert report.state["bytes"] == cache_bytes(80, 8, 128, 4096)
print(f"with its 8 heads of keys and values: {report.state['bytes'] / 2**30:.2f} GiB")
# %% [markdown]
# ## GQA is MHA with equal heads
#
# Query head $h$ of GQA reads key head $\lfloor h K / H \rfloor$. Repeat each key head, and you have an MHA that
# gives the same output. So MHA contains GQA, and GQA with $K = 1$ is multi-query attention (MQA).
# %%
x = torch.randn(2, T, D)


def mixer_of(**fields):
    spec = decoder({"kind": "attention", "num_heads": H, **fields})
    return archetype.build(spec).blocks[0].mixer


def copied(source, target, **changed):
    """Copy the weights of the source into the target, with some changed."""
    target.load_state_dict(source.state_dict() | changed)
    return target


gqa, context = mixer_of(num_kv_heads=2), ForwardContext.of(x)


def repeated(weight, times):
    return weight.unflatten(0, (-1, P)).repeat_interleave(times, dim=0).flatten(0, 1)


changed = {f"{name}.weight": repeated(getattr(gqa, name).weight.detach(), 4) for name in "kv"}
mha = copied(gqa, mixer_of(), **changed)
with torch.no_grad():
    torch.testing.assert_close(gqa(x, context), mha(x, context))
print("parameters of k and v: GQA", gqa.k.weight.numel() * 2, "MHA", mha.k.weight.numel() * 2)
# %% [markdown]
# ## MLA contains GQA
#
# Multi-head latent attention keeps one narrow vector $c = W_{down} x$ of $C$ features for each token, and expands
# it to the keys and values of all heads: $k_h = W^{uk}_h c$, $v_h = W^{uv}_h c$. If $c$ is exactly the keys and
# values of GQA ($C = 2 K P$), and the expansion copies them to the heads that read them, MLA gives the output of
# GQA from the same cache. In general the expansion is learned, and each head has keys of its own.
#
# (Published MLA normalizes $c$ and adds a few rotated features. Here the norm is left out, and the rotated
# features get queries of zero.)
# %%
K, R = 2, 2
C = 2 * K * P
latent = {
    "kind": "latent", "num_heads": H, "kv_lora_rank": C, "qk_nope_head_dim": P, "qk_rope_head_dim": R, "v_head_dim": P,
    "norm": "none", "scale": P**-0.5,
}  # fmt: skip
mla = archetype.build(decoder(latent)).blocks[0].mixer
with torch.no_grad():
    q = gqa.q.weight.unflatten(0, (H, P))
    mla.q.weight.copy_(torch.cat((q, torch.zeros(H, R, D)), dim=1).flatten(0, 1))
    mla.kv_down.weight.copy_(torch.cat((gqa.k.weight, gqa.v.weight, torch.zeros(R, D))))
    expansion = torch.zeros(H, 2, P, 2, K, P)  # (head, key or value, feature) from (key or value, KV head, feature)
    for head in range(H):
        for part in range(2):
            expansion[head, part, :, part, head * K // H, :] = torch.eye(P)
    mla.kv_up.weight.copy_(expansion.reshape(H * 2 * P, C))
    mla.o.weight.copy_(gqa.o.weight)
    torch.testing.assert_close(mla(x, context), gqa(x, context))
print("MLA with copied heads equals GQA")
# %% [markdown]
# ## Attending to the latents themselves
#
# $q_h \cdot (W^{uk}_h c) = (W^{uk\,\top}_h q_h) \cdot c$: the expansion can be moved into the query. Then no key
# is ever expanded, and decoding reads only the narrow cache. This is the *absorbed* form.
# %%
with torch.no_grad():
    mla.kv_up.weight.normal_(std=0.2)  # any expansion, not a copy
    c = mla.kv_down(x)[0, :, :C]  # (T, C)
    up = mla.kv_up.weight.unflatten(0, (H, 2, P))  # (H, 2, P, C)
    q = mla.q(x)[0].unflatten(-1, (H, P + R))[..., :P].transpose(0, 1)  # (H, T, P)
    hidden = ~torch.ones(T, T, dtype=torch.bool).tril()

    def softmax(scores):
        return (scores * P**-0.5).masked_fill(hidden, float("-inf")).softmax(-1)

    k, v = (torch.einsum("tc,hpc->htp", c, up[:, part]) for part in range(2))
    expanded = softmax(q @ k.transpose(1, 2)) @ v
    absorbed_queries = torch.einsum("htp,hpc->htc", q, up[:, 0])
    absorbed = torch.einsum("htc,hpc->htp", softmax(absorbed_queries @ c.T) @ c, up[:, 1])
    torch.testing.assert_close(expanded, absorbed)
    torch.testing.assert_close(mla.o(absorbed.transpose(0, 1).flatten(1)), mla(x, context)[0], rtol=1e-4, atol=1e-5)
print("expanded, absorbed and Archetype's layer: equal")
# %% [markdown]
# ## What it costs
#
# Four kinds of attention in the same model of 32 layers, with 32 heads of 128 features.
# %%
kinds = {
    "MHA": {"kind": "attention", "num_heads": 32},
    "GQA, 8 heads": {"kind": "attention", "num_heads": 32, "num_kv_heads": 8},
    "MQA": {"kind": "attention", "num_heads": 32, "num_kv_heads": 1},
    "MLA": {"kind": "latent", "num_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128},
}  # fmt: skip
lengths = [1024 * 2**power for power in range(8)]
figure, axis = plt.subplots(figsize=(6, 3))
for name, mixer in kinds.items():
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"}, "mixer": mixer,
        "feedforward": {"kind": "gated", "d_ff": 11008, "activation": "silu"},
    }  # fmt: skip
    spec = {
        "kind": "decoder", "vocab_size": 32000, "context_length": 131_072, "d_model": 4096, "layers": [block] * 32,
        "final_norm": "rms",
    }  # fmt: skip
    reports = [archetype.cost_report(spec, length=length) for length in lengths]
    axis.loglog(lengths, [report.state["bytes"] / 2**30 for report in reports], "o-", label=name)
    per_token = reports[0].state["bytes_per_token"]
    print(f"{name:13} {per_token / 1024:6.1f} KiB per token, {reports[-1].parameters['total'] / 1e9:.2f} B parameters")
axis.axhline(80, color="gray", linestyle=":")
axis.annotate("memory of one large GPU", (1024, 90), fontsize=7)
axis.set(xlabel="tokens", ylabel="cache, GiB")
axis.legend()
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# | attention | numbers kept for each token and layer |
# |---|---|
# | MHA | $2 H P$ |
# | GQA | $2 K P$ |
# | MQA | $2 P$ |
# | MLA | $C + R$ |
#
# * Each kind contains the one below it in the first three rows, and MLA contains GQA with $C = 2KP$.
# * MLA keeps more than MQA but gives each head keys of its own; the absorbed form never expands them.
# %% [markdown]
# ## Exercises
#
# **1.** How many sequences of `length` tokens fit into a GPU of `memory` bytes together with weights of `weights`
# bytes, if each token of each sequence needs `per_token` bytes?
# %% exercise 1
def sequences_that_fit(memory, weights, per_token, length):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    assert sequences_that_fit(80 * 2**30, 16 * 2**30, 128 * 1024, 8192) == 64
    assert sequences_that_fit(80 * 2**30, 79 * 2**30, 2**20, 4096) == 0


# %% [markdown]
# **2.** A trained MHA is often converted to GQA by taking the *mean* of the key heads of each group. Return the
# key (or value) matrix with `K` heads, given the matrix with `H` heads of `P` features.
# %% exercise 2
def mean_heads(weight, K):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    torch.testing.assert_close(mean_heads(mha.k.weight, 2), gqa.k.weight)  # the heads of a group are equal
    assert mean_heads(torch.randn(H * P, D), 1).shape == (P, D)


# %% [markdown]
# **3.** The absorbed form multiplies each query by $W^{uk}$ once and then has wide products. Per query and head
# with `S` keys, count the multiplications of the scores: expanded (all keys are expanded again: $S\,C\,P$, then
# $S\,P$) and absorbed ($P\,C$, then $S\,C$). Return the pair.
# %% exercise 3
def score_multiplications(S, C, P):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    assert score_multiplications(1, 512, 128) == (65_664, 66_048)
    expanded_work, absorbed_work = score_multiplications(4096, 512, 128)
    assert expanded_work > 100 * absorbed_work
