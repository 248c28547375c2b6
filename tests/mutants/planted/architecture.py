"""Bugs in what computes: parts, models, the context of a pass, and what they cost."""

BUGS: dict[str, list[tuple[str, str]]] = {
    "parts/attention/projections.py": [
        ("self.spec.scale or 1 / math.sqrt(self.sizes.head_dim)", "self.spec.scale or 1 / self.sizes.head_dim"),
        ("self.spec.dropout if self.training else 0.0", "self.spec.dropout"),
        ("y.clamp(-bound, bound)", "y.clamp(max=bound)"),
    ],
    "parts/attention/module.py": [
        ("k = self.rotate(k, context, self.k_norm)", "pass"),
    ],
    "parts/attention/pairs.py": [
        ("allowed & present_keys(context.num_tokens, keys[0])", "allowed"),
    ],
    "parts/attention/core.py": [
        ("scores.masked_fill(~mask, MASKED) if", "scores if"),
    ],
    "parts/sentence_head/module.py": [
        ('"last": lambda: vectors[torch.arange(vectors.shape[0], device=vectors.device), num_tokens - 1]',
         '"last": lambda: vectors[:, -1]'),
        ('"mean": lambda: mean_over_tokens(vectors, num_tokens)', '"mean": lambda: vectors.mean(1)'),
        ("/ num_tokens[:, None].sqrt()", "/ num_tokens[:, None]"),
        ("is_token * (positions[:, None] + 1)", "is_token * positions[:, None]"),
        ("if (self.spec.normalize if normalized is None else normalized) else x", "if self.spec.normalize else x"),
    ],
    "models/block/module.py": [
        ('return self.write("feedforward", x, y, context)', "return x + y"),
        ("z if self.residual_scale == 1.0 else z * self.residual_scale", "z"),
        ('g = norm(self.read("feedforward", x, context), context)', "pass"),
        ('y = getattr(self, f"{content}_post_norm")(y, context)', "pass"),
        ("normalize_stream(self.norm(content), x + self.branch(y), context)",
         "x + self.norm(content)(self.branch(y), context)"),
    ],
    "nn/cache.py": [
        ("- 1 - (ends[:, None] - 1 - slots) % size", "- (ends[:, None] - slots) % size"),
        ("torch.where(newest < 0, EMPTY_SLOT, newest)", "torch.where(newest < 0, 0, newest)"),
        ("written = torch.where(inside, written, buffer[rows, :, index])", "pass"),
    ],
    "nn/state.py": [
        ("return State(self.lengths[rows], [", "return State(self.lengths, ["),
    ],
    "parts/norm/module.py": [
        ("rms_norm(x, x.shape[-1:], None, self.eps)", "rms_norm(x, x.shape[-1:], None, 1e-6)"),
        ("weight = 1 + self.weight if self.unit_offset else self.weight", "weight = self.weight"),
        ("vectors.var(0, correction=0)", "vectors.var(0)"),
        ("var * n / (n - 1)", "var"),
        ("0.0 if norm.unit_offset else 1.0", "1.0"),
    ],
    "parts/position/module.py": [
        ("odd * cos + even * sin), dim=-1).flatten(-2)", "odd * cos - even * sin), dim=-1).flatten(-2)"),
        ("return plain / factor", "return plain * factor"),
        ("exact = count // 2", "exact = count // 4"),
        ("positions[..., None] + self.offset", "positions[..., None]"),
    ],
    "parts/position/frequencies.py": [
        ("between[: num_heads - power]", "between[-(num_heads - power) :]"),
        ("0.1 * mscale * math.log(scaling.factor) + 1.0", "0.1 * math.log(scaling.factor) + 1.0"),
    ],
    "parts/experts/module.py": [
        ("weights = weights * self.spec.router.scale", "weights = weights * 1.0"),
        ("grouped.topk(groups.top_k_in_group).values.sum(-1)", "grouped.amax(-1)"),
        ("y * self.shared_gate(x).sigmoid()", "y * self.shared_gate(x)"),
        ("valid.to(affinities.dtype)", "torch.ones_like(affinities[:, 0])"),
        ("order.argsort()).view", "order).view"),
    ],
    "parts/pattern/scores.py": [
        ("self.softcap * torch.tanh(scores / self.softcap)", "self.softcap * torch.tanh(scores)"),
        ("keys[:, None, :] <= queries", "keys[:, None, :] < queries"),
        ("keys < num_tokens[:, None]", "keys <= num_tokens[:, None]"),
    ],
    "parts/mamba/module.py": [
        ("return y + self.D.to(exact) * u, hidden", "return y, hidden"),
        ("delta = context.fill_padding(delta)", "delta = delta"),
    ],
    "nn/convolution.py": [
        ("inputs[:, :, x.shape[2] :].clone()", "inputs[:, :, x.shape[2] - 1 : -1].clone()"),
    ],
    "parts/mamba/scan.py": [
        ("before[-1].add_(h_grad)", "pass"),
        ("h_grad = after[0] * before[0]", "h_grad = before[0]"),
    ],
    "parts/recurrent/module.py": [
        ("new = [torch.where(has_tokens, now, old) for now, old in zip(new, before, strict=True)]", "pass"),
        ("context.num_tokens is None or x.shape[1] == 1", "True or x.shape[1] == 1"),
    ],
    "parts/latent_attention/module.py": [
        ("self.spec.scale or 1 / math.sqrt(self.spec.head_dim)", "1 / math.sqrt(self.spec.head_dim)"),
        ("scaled(self.kv_norm(latent), self.spec.latent_scale)", "latent"),
        ("+ turned.flatten(1, 2) @ shared.transpose(1, 2)", ""),
    ],
    "models/initialization.py": [
        ("1 / math.sqrt(2 * num_layers)", "1 / math.sqrt(num_layers)"),
        ("math.sqrt(6 / (weight", "math.sqrt(3 / (weight"),
    ],
    "parts/pattern/window.py": [
        ("(self.spec.size - 1, 0) if causal", "(self.spec.size, 0) if causal"),
        ("| (i < g) | (j < g)", "| (j < g)"),
        ("return min(length, self.spec.size)", "return min(length, self.spec.size - 1)"),
    ],
    "parts/embedding/module.py": [
        ("x = x if self.norm_first else normalize_stream(", "x = normalize_stream("),
        ("x = x * (x.new_tensor(self.scale) if self.round_scale else self.scale)", "pass"),
    ],
    "parts/head/module.py": [
        ("cap * torch.tanh(logits / cap)", "cap * torch.tanh(logits)"),
        ("x if self.spec.scale == 1.0 else x * self.spec.scale", "x"),
        ("self.product(dropout(x, self.dropout, self.training))", "self.product(dropout(x, self.dropout))"),
    ],
    "estimate/memory.py": [
        ('"optimizer": 2 * copy', '"optimizer": copy'),
        ("4 * copy,  # weights", "3 * copy,  # weights"),
        ("self.cast_weights + activations, 4 * copy)", "self.cast_weights + activations, 0)"),
    ],
    "native/elementwise.h": [
        ("case SOFTPLUS: EACH(a[i] > 20 ?", "case SOFTPLUS: EACH(a[i] > 2 ?"),
        ("case REMAINDER: return b == 0 ? 0 : ((a % b) + b) % b;", "case REMAINDER: return b == 0 ? 0 : a % b;"),
        ("case SUB: EACH(a[i] - factor * b[i]);", "case SUB: EACH(a[i] - b[i]);"),
        ("0.044715f * x * x * x", "0.044715f * x * x"),
    ],
    "native/rows.h": [
        ("for (total = sum(sums); i < D; i++) total += (x[i] - mean) * (x[i] - mean);", "total = sum(sums);"),
        ("for (i = 0; i < D; i++) out[i] += bias[i];", ";"),
        ("- along * x[i];", "+ along * x[i];"),
    ],
    "weights/quantized.py": [
        ("(largest / -8, -8)", "(largest / 8, -8)"),
        ("better = squares < error", "better = squares > error"),
        ("padded = nn.functional.pad(rows, (0, 0, 0, -len(rows) % lanes))", "padded = rows"),
        ("name: value[index * blocks : (index + 1) * blocks]", "name: value[:blocks]"),
    ],
}  # fmt: skip
