# %% [markdown]
# # 5. Norms, before or after a layer
#
# **Question.** Why does every Transformer normalize its vectors, and why does it matter whether before or after a
# layer?
#
# You write two norms, watch a residual stream grow with depth, measure gradients in 24 layers, and train the same
# stack with its norms before and after the layers.
# %% [markdown]
# ## Two norms by hand
#
# LayerNorm subtracts the mean of the features and divides by their standard deviation. RMSNorm only divides by the
# root mean square.
# %%
import math

import archetype


def decoder(wiring, layers=24, D=48, final_norm="none", initialization="gpt2"):
    block = {
        "wiring": wiring,
        "mixer": {"kind": "attention", "num_heads": 4, "position": "rotary"},
        "feedforward": {"kind": "mlp", "d_ff": 4 * D, "activation": "gelu"},
    }
    return archetype.build(
        {"kind": "decoder", "vocab_size": 64, "context_length": 64, "d_model": D, "layers": [block] * layers,
         "final_norm": final_norm, "initialization": initialization}
    )  # fmt: skip


def layer_norm(x, weight, bias, eps=1e-5):
    centered = x - x.mean(-1, keepdim=True)
    return centered / (centered.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


x = 3 * torch.randn(5, 48) + 1
norm = decoder({"kind": "pre_norm", "norm": "layer"}, layers=1).blocks[0].mixer_norm
with torch.no_grad():
    norm.weight.uniform_(0.5, 1.5)
    norm.bias.normal_()
    torch.testing.assert_close(layer_norm(x, norm.weight, norm.bias), norm(x))
print("LayerNorm by hand equals the layer's output")
# %% [markdown]
# ## Predict
#
# Each layer adds to the residual stream: $x_{l+1} = x_l + F(x_l)$. Suppose that every $F(x_l)$ is independent of
# $x_l$ and has variance 1, and that $x_0$ has variance 1. What is the standard deviation of the stream after 24
# such sums?
# %%
prediction = None
# %%
stream = torch.randn(100_000)
for _ in range(24):
    stream = stream + torch.randn(100_000)
reveal(prediction, stream.std().item())
# %% [markdown]
# ## The stream in a model
#
# A block can normalize what a layer *reads* (pre-norm) or the *sum* (post-norm):
#
# $$\text{pre: } x + F(\operatorname{norm}(x)) \qquad \text{post: } \operatorname{norm}(x + F(x))$$
#
# With pre-norm the stream grows as in your prediction. With post-norm each layer resets it to 1.
# %%
KINDS = {"pre_norm": "layer", "post_norm": "none"}  # with the final norm: a post-norm block already ends with one
tokens = torch.randint(64, (8, 33))


def gradients(model):
    """Gradient norm of the last matrix of each layer."""
    logits = model(tokens[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    return [block.feedforward.down.weight.grad.norm().item() for block in model.blocks]


depths = [2, 4, 8, 16, 32]
figure, axes = plt.subplots(1, 2, figsize=(7, 2.8))
for kind, final_norm in KINDS.items():
    deep = decoder({"kind": kind, "norm": "layer"}, final_norm=final_norm, initialization={"kind": "xavier"})
    trace = archetype.LanguageModel(deep.spec, deep).trace(tokens[:1]).run()
    axes[0].plot([trace[f"blocks.{number}.out"].std() for number in range(24)], label=kind)
    last = []
    for depth in depths:
        model = decoder({"kind": kind, "norm": "layer"}, depth, 48, final_norm, {"kind": "xavier"})
        last.append(gradients(model)[-1])
    axes[1].loglog(depths, last, "o-", label=kind)
    print(f"{kind:9}  gradient of the last of {depths[0]} layers {last[0]:.2f}, of {depths[-1]} layers {last[-1]:.2f}")
axes[0].set(xlabel="layer", ylabel="standard deviation", title="residual stream")
axes[1].set(xlabel="layers", ylabel="norm", title="gradient of the last layer")
axes[1].set_xscale("log", base=2)
axes[0].legend()
figure.tight_layout()
# %% [markdown]
# The head of a pre-norm stack reads a stream of size $\sqrt L$ through a norm, which divides its gradient by the
# same factor. In a post-norm stack the last layers get gradients of the same size at any depth (Xiong 2020). With
# many layers, a learning rate that suits one of them is too large for all of them together.
#
# ## Does it matter for learning?
#
# The task: repeat a sequence of four random tokens. Both stacks have 8 layers and the same learning rate from the
# first step, without warm-up.
# %%


def copy_batch(count):
    half = torch.randint(1, 16, (count, 4))
    return torch.cat((half, torch.zeros(count, 1, dtype=torch.long), half), dim=1)


figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True)
for axis, rate in zip(axes, (3e-3, 1e-2), strict=True):
    for kind, final_norm in KINDS.items():
        torch.manual_seed(0)
        model = decoder({"kind": kind, "norm": "layer"}, 8, 32, final_norm, {"kind": "normal", "std": 0.1})

        def loss(model=model):
            batch = copy_batch(16)
            logits = model(batch[:, :-1]).logits[:, 4:]
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 5:].flatten())

        losses = torch.tensor(fit(loss, model.parameters(), 120, rate))
        axis.plot(losses, label=kind)
        print(f"rate {rate}, {kind:9}  last losses {losses[-10:].mean():.3f} (a guess: {math.log(15):.3f})")
    axis.set(xlabel="step", title=f"rate {rate}")
axes[0].set(ylabel="loss, nats")
axes[0].legend()
figure.tight_layout()


# %% [markdown]
# At the small rate post-norm is no worse, perhaps better. At the large rate it gets stuck, while pre-norm learns
# faster than at the small rate. This is why warm-up starts with small rates. How much it helps depends on depth and
# rate; the [study of this claim](../claims/reports/claim-03.md) confirms it only in part.
# %% [markdown]
# ## What you have seen
#
# $$\operatorname{LayerNorm}(x) = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} \odot \gamma + \beta, \qquad
# \operatorname{RMSNorm}(x) = \frac{x}{\sqrt{\frac1D \sum_i x_i^2 + \epsilon}} \odot \gamma$$
#
# * Variances of independent terms add: after $L$ layers of equal size the stream has grown by $\sqrt{L + 1}$.
# * Pre-norm leaves the sum $x + \dots$ alone, and needs one more norm before the head.
# * The last layers' gradient falls as $1 / \sqrt L$ with pre-norm and not with post-norm, which needs smaller
#   learning rates at first.
# %% [markdown]
# ## Exercises
#
# **1.** Write RMSNorm.
# %% exercise 1
def rms_norm(x, weight, eps=1e-5):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    rms = decoder({"kind": "pre_norm", "norm": "rms"}, layers=1).blocks[0].mixer_norm
    with torch.no_grad():
        rms.weight.uniform_(0.5, 1.5)
        torch.testing.assert_close(rms_norm(x, rms.weight), rms(x))


# %% [markdown]
# **2.** A LayerNorm with $\gamma = 1$, $\beta = 0$ is a matrix followed by an RMSNorm with weight 1. Return that
# $D$ x $D$ matrix.
# %% exercise 2
def centering_matrix(D):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    ones = torch.ones(48)
    y = x @ centering_matrix(48)
    by_rms = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(by_rms, layer_norm(x, ones, 0 * ones), rtol=1e-4, atol=1e-4)


# %% [markdown]
# **3.** GPT-2 initializes the matrices that write into the residual stream with smaller values. A stack of $L$
# blocks adds $2L$ terms. By what factor must the standard deviation be multiplied so that the sum of these terms
# has the variance of one term? Archetype's initialization `gpt2` does this.
# %% exercise 3
def residual_scale(L):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"}, "mixer": {"kind": "attention", "num_heads": 4},
        "feedforward": {"kind": "mlp", "d_ff": 1024, "activation": "gelu"},
    }  # fmt: skip
    for L in (1, 8):
        sizes = {"vocab_size": 8, "context_length": 8, "d_model": 256}
        deep = archetype.build({"kind": "decoder", **sizes, "layers": [block] * L, "final_norm": "rms"})
        first = deep.blocks[0].feedforward
        assert abs(first.down.weight.std() / first.up.weight.std() - residual_scale(L)) < 0.01
