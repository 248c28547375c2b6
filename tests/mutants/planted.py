"""The bugs: in each file, a piece of code and what stands there instead, one at a time.

They are mistakes that people make (a forgotten factor, one position too many, `<` for `<=`) and those that an attack
on earlier versions planted without any test near them noticing.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted bug.

    Attributes:
        file: below `archetype/`.
        before: what stands in the file, once.
        after: what is planted instead.
        tests: files and folders below `tests/` that must notice it.
    """

    file: str
    before: str
    after: str
    tests: tuple[str, ...]


STATE = "invariants/test_state.py"
NN, PARTS = "unit/nn", "unit/parts"
# file: the tests near it, and the pairs (what stands there, what is planted)
PLANTED: dict[str, tuple[tuple[str, ...], list[tuple[str, str]]]] = {
    "parts/attention/projections.py": (
        (f"{PARTS}/test_attention.py", f"{PARTS}/test_cross_attention.py", STATE, "parity/test_decoders.py"),
        [
            ("self.spec.scale or 1 / math.sqrt(self.sizes.head_dim)", "self.spec.scale or 1 / self.sizes.head_dim"),
            ("self.spec.dropout if self.training else 0.0", "self.spec.dropout"),
            ("y.clamp(-bound, bound)", "y.clamp(max=bound)"),
        ],
    ),
    "parts/attention/module.py": (
        (f"{PARTS}/test_attention.py", STATE, "parity/test_decoders.py"),
        [
            ("cache.append(self.apply_rope(k, context.positions, context, self.k_norm), v,", "cache.append(k, v,"),
            ("allowed & present_keys(context.num_tokens, keys[0])", "allowed"),
        ],
    ),
    "parts/attention/core.py": (
        (f"{PARTS}/test_attention.py", f"{PARTS}/test_scores.py", STATE, "parity/test_decoders.py"),
        [("scores.masked_fill(~mask, MASKED) if", "scores if")],
    ),
    "models/block/module.py": (
        ("unit/models", "parity/test_decoders.py"),
        [
            ('return self.write("feedforward", x, self.output("feedforward", g, context, state), context)',
             'return x + self.output("feedforward", g, context, state)'),
            ("z if self.residual_scale == 1.0 else z * self.residual_scale", "z"),
            ('h if self.shared_norm else self.norm("feedforward")(self.read("feedforward", x, context), context)', "h"),
            ('getattr(self, f"{content}_post_norm")(self.output(content, h, context, state), context)',
             "self.output(content, h, context, state)"),
            ("normalize_stream(self.norm(content), x + y, context)", "x + self.norm(content)(y, context)"),
        ],
    ),
    "nn/cache.py": (
        (f"{NN}/test_cache.py", STATE),
        [
            ("- 1 - (ends[:, None] - 1 - places) % size", "- (ends[:, None] - places) % size"),
            ("torch.where(newest < 0, EMPTY_SLOT, newest)", "torch.where(newest < 0, 0, newest)"),
            ("written = torch.where(inside, written, buffer[rows, :, places])", "pass"),
            ("return State(self.lengths[rows], [", "return State(self.lengths, ["),
        ],
    ),
    "parts/norm/module.py": (
        (f"{PARTS}/test_norm.py", "parity/test_decoders.py"),
        [
            ("rms_norm(x, x.shape[-1:], None, self.eps)", "rms_norm(x, x.shape[-1:], None, 1e-6)"),
            ("weight = 1 + self.weight if self.unit_offset else self.weight", "weight = self.weight"),
            ("vectors.var(0, correction=0)", "vectors.var(0)"),
            ("var * n / (n - 1)", "var"),
            ("0.0 if name == \"bias\" or self.unit_offset else 1.0", "0.0 if name == \"bias\" else 1.0"),
        ],
    ),
    "parts/position/module.py": (
        (f"{PARTS}/test_position.py", "parity/test_rope_scaling.py", "parity/test_position_bias.py"),
        [
            ("odd * cos + even * sin), dim=-1).flatten(-2)", "odd * cos - even * sin), dim=-1).flatten(-2)"),
            ("return plain / factor", "return plain * factor"),
            ("exact = count // 2", "exact = count // 4"),
            ("positions[..., None] + self.offset", "positions[..., None]"),
        ],
    ),
    "parts/position/frequencies.py": (
        (f"{PARTS}/test_position.py", "parity/test_rope_scaling.py", "parity/test_position_bias.py"),
        [
            ("between[: num_heads - power]", "between[-(num_heads - power) :]"),
            ("0.1 * mscale * math.log(scaling.factor) + 1.0", "0.1 * math.log(scaling.factor) + 1.0"),
        ],
    ),
    "parts/experts/module.py": (
        (f"{PARTS}/test_experts.py", "parity/test_latent_experts.py"),
        [
            ("return weights * self.spec.router.scale, chosen", "return weights, chosen"),
            ("grouped.topk(groups.top_k_in_group).values.sum(-1)", "grouped.amax(-1)"),
            ("y * self.shared_gate(x).sigmoid()", "y * self.shared_gate(x)"),
            ("valid.to(affinities.dtype)", "torch.ones_like(affinities[:, 0])"),
            ("order.argsort()).view", "order).view"),
        ],
    ),
    "parts/pattern/scores.py": (
        (f"{PARTS}/test_scores.py", f"{PARTS}/test_attention.py", "parity/test_decoders.py"),
        [
            ("self.softcap * torch.tanh(scores / self.softcap)", "self.softcap * torch.tanh(scores)"),
            ("keys[:, None, :] <= queries", "keys[:, None, :] < queries"),
            ("keys < num_tokens[:, None]", "keys <= num_tokens[:, None]"),
        ],
    ),
    "parts/mamba/module.py": (
        (f"{PARTS}/test_mamba.py", STATE),
        [
            ("return y + self.D.to(exact) * u, hidden", "return y, hidden"),
            ("delta.masked_fill(~context.valid[..., None], 0.0)", "delta"),
        ],
    ),
    "nn/convolution.py": (
        (f"{PARTS}/test_mamba.py", STATE),
        [("inputs[:, :, x.shape[2] :].clone()", "inputs[:, :, x.shape[2] - 1 : -1].clone()")],
    ),
    "parts/mamba/scan.py": (
        (f"{PARTS}/test_mamba.py",),
        [
            ("before[-1].add_(h_grad)", "pass"),
            ("h_grad = after[0] * before[0]", "h_grad = before[0]"),
        ],
    ),
    "parts/recurrent/module.py": (
        (f"{PARTS}/test_recurrent.py", STATE, "invariants/test_encoder_decoders.py"),
        [
            ("new = [torch.where(has_tokens, now, old) for now, old in zip(new, before, strict=True)]", "pass"),
            ("context.num_tokens is None or x.shape[1] == 1", "True or x.shape[1] == 1"),
        ],
    ),
    "parts/latent_attention/module.py": (
        (f"{PARTS}/test_latent_attention.py", "parity/test_latent_experts.py"),
        [
            ("self.spec.scale or 1 / math.sqrt(self.spec.head_dim)", "1 / math.sqrt(self.spec.head_dim)"),
            ('probe(self, "latent", self.kv_norm(latent))', "latent"),
            ("+ turned.flatten(1, 2) @ shared.transpose(1, 2)", ""),
        ],
    ),
    "models/initialization.py": (
        ("unit/models/test_initialization.py",),
        [
            ("1 / math.sqrt(2 * num_layers)", "1 / math.sqrt(num_layers)"),
            ("math.sqrt(6 / (weight", "math.sqrt(3 / (weight"),
        ],
    ),
    "parts/pattern/window.py": (
        (f"{PARTS}/test_attention.py", STATE, "unit/parts/test_pattern.py"),
        [
            ("(self.spec.size - 1, 0) if causal", "(self.spec.size, 0) if causal"),
            ("| (i < g) | (j < g)", "| (j < g)"),
            ("return min(length, self.spec.size)", "return min(length, self.spec.size - 1)"),
        ],
    ),
    "parts/embedding/module.py": (
        ("unit/models", "parity/test_encoders.py"),
        [
            ("x = x if self.norm_first else normalize_stream(", "x = normalize_stream("),
            ("x = x * (x.new_tensor(self.scale) if self.round_scale else self.scale)", "pass"),
        ],
    ),
    "parts/head/module.py": (
        ("unit/models", "parity/test_decoders.py", "parity/test_encoders.py"),
        [
            ("cap * torch.tanh(logits / cap)", "cap * torch.tanh(logits)"),
            ("x if self.spec.scale == 1.0 else x * self.spec.scale", "x"),
            ("forward(dropout(x, self.dropout, self.training))", "forward(dropout(x, self.dropout))"),
        ],
    ),
    "generate/settings.py": (
        ("unit/generate/test_beam.py",),
        [("log_probability / float(((5 + length) / 6)", "log_probability / float(((6 + length) / 6)")],
    ),
    "generate/hypotheses.py": (
        ("unit/generate/test_beam.py",),
        [
            ("[self.settings.num_beams - 1][0]", "[0][0]"),
            ("(values[:, : self.settings.num_beams] for values in candidates)", "candidates"),
        ],
    ),
    "generate/filters.py": (
        ("unit/generate/test_sampling.py", "parity/test_sampling.py"),
        [
            ("before >= top_p", "before > top_p"),
            ("sampling.min_p * probabilities.amax(-1, keepdim=True)", "sampling.min_p"),
            ("logits < kth", "logits <= kth"),
        ],
    ),
    "generate/logits_processors.py": (
        ("unit/generate/test_sampling.py", "parity/test_sampling.py"),
        [
            ("torch.where(scores > 0, scores / penalty, scores * penalty)", "scores / penalty"),
            ("self.seen[token] = None", "pass"),
        ],
    ),
    "generate/step.py": (
        ("unit/generate/test_engine.py",),
        [
            ("torch.where((num_tokens > 0)[:, None], last, logits)", "last"),
            ("buffer.copy_(updated)", "pass"),
        ],
    ),
    "generate/request.py": (
        ("unit/generate/test_engine.py", "unit/generate/test_stop_strings.py"),
        [
            ("len(self.held)), 0, -1)", "len(self.held)) - 1, 0, -1)"),
            ("if token in self._stop_ids:", "if token in self._stop_ids and self.tokens:"),
        ],
    ),
    "generate/scheduler.py": (
        ("unit/generate/test_engine.py", "unit/generate/test_requests.py"),
        [
            ("request.window = request.window[-min(", "request.window = request.window[:min("),
            ("state.shorten(length)", "state"),
        ],
    ),
    "generate/speculate.py": (
        ("unit/generate/test_speculation.py",),
        [("if token != guess:", "if False:")],
    ),
    "generate/slots.py": (
        ("unit/generate/test_engine.py", "unit/generate/test_requests.py"),
        [
            ("self.texts[slot] = last", "pass"),
            ("self.state.lengths[used:] = 0", "pass"),
            ("min(count, len(tokens) - 1)", "min(count, len(tokens))"),
        ],
    ),
    "training/loop.py": (
        ("unit/training/test_loop.py", "unit/training/test_every_objective.py"),
        [
            ("*weights.values()], recipe.max_grad_norm)", "*weights.values()], 2 * recipe.max_grad_norm)"),
            ("recipe.seed * 1_000_003 + state.step", "state.step"),
            ("buffer.copy_(before)", "pass"),
            ("optimizer.zero_grad(set_to_none=True)", "pass"),
            ("state.step, recipe.steps)\n", "state.step + 1, recipe.steps)\n"),
        ],
    ),
    "training/stop_signal.py": (
        ("unit/training/test_loop.py",),
        [("and number == signal.SIGINT", "")],
    ),
    "training/optimizers/groups.py": (
        ("unit/training/test_optimizers.py", "unit/training/test_provenance.py"),
        [
            ("weight_decay if name in decayed else 0.0", "0.0"),
            ("weight_decay if name in decayed else 0.0", "weight_decay"),
        ],
    ),
    "training/optimizers/kinds.py": (
        ("unit/training/test_loop.py", "unit/training/test_provenance.py"),
        [("**options, fused=True)\n        try", "fused=True)\n        try")],
    ),
    "training/schedules.py": (
        ("unit/training/test_schedules.py",),
        [
            ("peak * (step + 1) / self.warmup_steps", "peak * step / self.warmup_steps"),
            ("num_steps - 1 - first", "num_steps - first"),
        ],
    ),
    "training/evaluate.py": (
        ("unit/training/test_evaluate.py",),
        [
            ("nats += float(output.loss) * output.num_targets", "nats += float(output.loss)"),
            ("model.eval()", "pass"),
        ],
    ),
    "training/objectives/base.py": (
        ("unit/training/test_loop.py", "unit/training/test_pairs_and_images.py"),
        [
            ("self.label_smoothing if model.training else 0.0", "self.label_smoothing"),
            ("loss = loss + aux_loss", "pass"),
        ],
    ),
    "training/objectives/masked_token.py": (
        ("unit/training/test_text_objectives.py",),
        [("draw >= 0.9", "draw >= 0.8"), ("np.where(chosen, tokens, IGNORED)", "tokens")],
    ),
    "training/objectives/sequence_to_sequence.py": (
        ("unit/training/test_pairs_and_images.py",),
        [(">= inputs[\"num_tokens\"][:, None]", "> inputs[\"num_tokens\"][:, None]")],
    ),
    "data/batches.py": (
        ("unit/data/test_batches.py",),
        [("* self.length + offset", "* self.length"), ("key=[self.seed, epoch]", "key=[self.seed, 0]")],
    ),
    "estimate/memory.py": (
        ("unit/estimate/test_memory.py", "unit/cost/test_activations.py"),
        [
            ("\"optimizer\": 2 * copy", "\"optimizer\": copy"),
            ("4 * copy,  # weights", "3 * copy,  # weights"),
            ("self.cast_weights + activations, 4 * copy)", "self.cast_weights + activations, 0)"),
        ],
    ),
    "runs/checkpoints.py": (
        ("unit/runs", "unit/training/test_resume.py"),
        [
            (" and _identity(file) == expected", ""),
            ("[:-keep]", "[: -keep + 1]"),
        ],
    ),
    "io/atomic.py": (
        ("unit/io/test_atomic.py",),
        [
            ("temporary.chmod(0o666 & ~_umask())", "pass"),
            ("            _sync(temporary)\n            temporary.replace", "            temporary.replace"),
        ],
    ),
}  # fmt: skip
MUTANTS = [Mutant(file, before, after, tests) for file, (tests, pairs) in PLANTED.items() for before, after in pairs]
