# %% [markdown]
# # 7. Windows and sparse patterns
#
# **Question.** Full attention looks at all pairs of tokens. Which pairs can be left out, and how far does a model
# still see?
#
# You draw masks, measure by gradients how far a stack of windows reaches, and count what each pattern costs.
# %% [markdown]
# ## Predict
#
# In a *window* of size $W$ a token sees itself and the $W - 1$ tokens before it. A model has 4 layers with windows
# of 8. How many positions back can the last output depend on the input?
# %%
prediction = None
# %% [markdown]
# ## By hand
#
# Let $A$ be the matrix of a mask: $A_{ij} = 1$ if $i$ sees $j$. Two layers reach $j$ from $i$ if $i$ sees some $k$
# that sees $j$, that is, if $(A A)_{ij} > 0$. So powers of the mask give the reach of a stack.
# %%
import archetype

T, W, LAYERS = 64, 8, 4
i, j = torch.arange(T)[:, None], torch.arange(T)[None]
window = (j <= i) & (i - j < W)


def reach(masks):
    """Which inputs each output of a stack can depend on, if layer l has masks[l]."""
    seen = torch.eye(len(masks[0]))
    for mask in masks:
        seen = ((mask.float() @ seen) > 0).float()
    return seen.bool()


oldest = reach([window] * LAYERS)[-1].nonzero()[0].item()
reveal(prediction, T - 1 - oldest)
# %% [markdown]
# That is $L (W - 1)$. Mistral 7B has 32 layers with windows of 4,096: about 131,000 tokens.
#
# ## The same, measured
#
# What holds on paper may not hold in code. So we take the gradient of the last output with respect to every input:
# it is zero exactly where the model cannot see.
# %%


def model_with(pattern, layers=LAYERS, length=T, D=32):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"},
        "mixer": {"kind": "attention", "num_heads": 4, "pattern": pattern},
        "feedforward": {"kind": "mlp", "d_ff": 64, "activation": "gelu"},
    }
    sizes = {"vocab_size": 50, "context_length": length, "d_model": D}
    return {"kind": "decoder", **sizes, "layers": [block] * layers, "final_norm": "rms"}


def input_gradients(spec):
    """Norm of the gradient of the last output with respect to each position's vector."""
    model = archetype.build(dict(spec, initialization={"kind": "xavier"}))
    embedded = []
    hook = model.embedding.register_forward_hook(lambda _, __, y: embedded.append(y.retain_grad() or y))
    last = model(torch.randint(50, (1, spec["context_length"]))).hidden[0, -1]
    (last @ torch.randn_like(last)).backward()  # a random mixture of its features
    hook.remove()
    return embedded[0].grad[0].norm(dim=-1)


gradients = input_gradients(model_with({"kind": "window", "size": W}))
assert torch.equal(gradients > 0, reach([window] * LAYERS)[-1])
figure, axis = plt.subplots(figsize=(6, 2.6))
axis.semilogy((gradients + 1e-12).flip(0), ".-")
for layer in range(1, LAYERS + 1):
    axis.axvline(layer * (W - 1), color="gray", linestyle=":")
axis.set(xlabel="positions back", ylabel="gradient", ylim=(1e-5, 100))
figure.tight_layout()
# %% [markdown]
# The far end of the reach has only a few paths through the stack, so its gradient is small: a model can see
# 131,000 tokens back in principle, and little in practice.
#
# ## Patterns that reach everything in two steps
#
# The Sparse Transformer combines near keys and far keys. *Strided*: the last $s$ positions, and every $s$-th
# position before them. *Fixed*: the token's own block of $s$ positions, and the last position of each block before
# it. With $s \approx \sqrt T$ each token sees about $2 \sqrt T$ others.
# %%
s = 8
masks = {
    "full": j <= i,
    "window": window,
    "strided": (j <= i) & ((i - j < s) | ((i - j) % s == 0)),
    "fixed": (j <= i) & ((i // s == j // s) | (j % s == s - 1)),
}
figure, axes = plt.subplots(2, 4, figsize=(7, 3.6))
for column, (name, mask) in enumerate(masks.items()):
    axes[0, column].imshow(mask, cmap="Greys")
    axes[1, column].imshow(reach([mask] * 2), cmap="Greys")
    axes[0, column].set_title(name, fontsize=9)
    for axis in axes[:, column]:
        axis.set(xticks=[], yticks=[])
    two = reach([mask] * 2)[masks["full"]].double().mean().item()
    print(f"{name:8} {mask.sum().item():5,} pairs; two layers reach {two:.0%} of all earlier positions")
axes[0, 0].set_ylabel("one layer")
axes[1, 0].set_ylabel("two layers")
figure.tight_layout()
# %% [markdown]
# Archetype's patterns have the same pairs. Its cost model counts them without building anything:
# %%
patterns = {
    "full": {"kind": "full"},
    "window": {"kind": "window", "size": W},
    "strided": {"kind": "strided", "stride": s},
    "fixed": {"kind": "fixed", "stride": s, "num_summary": 1},
}
for name, pattern in patterns.items():
    spec = model_with(pattern, layers=1)
    seen = input_gradients(spec) > 0
    assert torch.equal(seen, masks[name][-1]), name
    rows = archetype.cost_report(spec, attention="allowed").records()
    (scores,) = (row["forward"] for row in rows if row["module"].endswith("mixer.scores"))
    assert scores == 2 * masks[name].sum().item() * 32
print("masks and counted pairs agree for", ", ".join(patterns))
# %% [markdown]
# ## What it saves
#
# The work of a full layer grows with $T^2$, that of a window with $T W$, and that of the strided pattern with
# $T \sqrt T$. A window also bounds the cache: keys that have left the window are never read again.
# %%
lengths = [256 * 4**power for power in range(5)]
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8))
for name in ("full", "window", "strided"):
    flops, states = [], []
    for length in lengths:
        sizes = {"window": {"size": 256}, "strided": {"stride": round(length**0.5)}}.get(name, {})
        spec = model_with({"kind": name, **sizes}, length=length)
        report = archetype.cost_report(spec, attention="allowed")
        flops.append(sum(row["forward"] for row in report.records() if "scores" in row["module"]))
        states.append(report.state["bytes"])
    axes[0].loglog(lengths, flops, "o-", label=name)
    axes[1].loglog(lengths, states, "o-", label=name)
axes[0].set(xlabel="tokens", ylabel="FLOPs of scores")
axes[1].set(xlabel="tokens", ylabel="cache, bytes")
axes[0].legend()
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# * Reach of $L$ windows: $L (W - 1)$ positions back. Work: $O(T W)$ instead of $O(T^2)$; cache: $W$ positions.
# * Strided and fixed patterns reach every earlier position in two layers with $O(T \sqrt T)$ pairs.
# * The gradient with respect to the inputs shows what a model can see, whatever its pattern.
# %% [markdown]
# ## Exercises
#
# **1.** Gemma 2 alternates windows and full attention. Write the mask of a window with `g` *global* tokens at the
# start, which attend to, and are attended by, every position that the causal mask allows.
# %% exercise 1
def global_window(T, W, g):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    mask = global_window(64, 8, 2)
    spec = model_with({"kind": "global_window", "size": 8, "num_global_tokens": 2}, layers=1)
    assert torch.equal(mask[-1], input_gradients(spec) > 0)
    assert mask[5, 0] and not mask[5, 6] and not mask[40, 20] and mask[40, 1]


# %% [markdown]
# **2.** How many pairs does a causal window of `W` have in a sequence of `T` tokens, `T >= W`? Use a formula, not a
# loop.
# %% exercise 2
def window_pairs(T, W):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    for size in (1, 3, 8, 64):
        assert window_pairs(T, size) == ((j <= i) & (i - j < size)).sum().item()


# %% [markdown]
# **3.** A stack must reach `distance` positions back with as few layers as possible. How many layers with windows
# of `W` does it need?
# %% exercise 3
def layers_needed(distance, W):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    assert layers_needed(28, 8) == 4 and layers_needed(29, 8) == 5 and layers_needed(1, 2) == 1
    assert layers_needed(131_040, 4096) == 32
