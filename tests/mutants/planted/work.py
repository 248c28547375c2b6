"""Bugs in what uses a model: training, generation, their data, runs and files."""

BUGS: dict[str, list[tuple[str, str]]] = {
    "settings/generation.py": [
        ("log_probability / float(((5 + length) / 6)", "log_probability / float(((6 + length) / 6)"),
    ],
    "generate/hypotheses.py": [
        ("[self.settings.num_beams - 1][0]", "[0][0]"),
        ("(values[:, : self.settings.num_beams] for values in candidates)", "candidates"),
    ],
    "generate/filters.py": [
        ("(len(before), 1), top_p)", "(len(before), 1), top_p), right=True"),
        ("sampling.min_p * probabilities.amax(-1, keepdim=True)", "sampling.min_p"),
        ("logits < kth", "logits <= kth"),
    ],
    "generate/logits_processors.py": [
        ("torch.where(scores > 0, scores / penalty, scores * penalty)", "scores / penalty"),
        ("self.seen = torch.cat((self.seen, torch.tensor([token])))", "pass"),
    ],
    "generate/step.py": [
        ("torch.where((num_tokens > 0)[:, None], last, logits)", "last"),
        ("buffer.copy_(updated)", "pass"),
    ],
    "generate/request.py": [
        ("len(self.held)), 0, -1)", "len(self.held)) - 1, 0, -1)"),
        ("if token in self._stop_ids:", "if token in self._stop_ids and self.tokens:"),
    ],
    "generate/scheduler.py": [
        ("request.window = request.window[-min(", "request.window = request.window[:min("),
        ("state.shorten(length)", "state"),
    ],
    "generate/speculate.py": [
        ("if token != guess:", "if False:"),
    ],
    "generate/slots.py": [
        ("self.sequences[slot] = last", "pass"),
        ("self.state.lengths[used:] = 0", "pass"),
        ("min(count, len(tokens) - 1)", "min(count, len(tokens))"),
    ],
    "training/loop.py": [
        ("*weights.values()], recipe.max_grad_norm)", "*weights.values()], 2 * recipe.max_grad_norm)"),
        ("recipe.seed * 1_000_003 + state.step", "state.step"),
        ("restore_buffers(buffers)", "pass"),
        ("optimizer.zero_grad(set_to_none=True)", "pass"),
        ('state.step, recipe.steps)\n', 'state.step + 1, recipe.steps)\n'),
    ],
    "training/stop_signal.py": [
        ("and signum == signal.SIGINT", ""),
    ],
    "training/optimizers/groups.py": [
        ("weight_decay if name in decayed else 0.0", "0.0"),
        ("weight_decay if name in decayed else 0.0", "weight_decay"),
    ],
    "training/optimizers/kinds.py": [
        ('**options, fused=True)\n        try', 'fused=True)\n        try'),
    ],
    "training/schedules.py": [
        ("peak * (step + 1) / self.warmup_steps", "peak * step / self.warmup_steps"),
        ("num_steps - 1 - first", "num_steps - first"),
    ],
    "training/evaluate.py": [
        ("nats += float(output.loss) * num_targets", "nats += float(output.loss)"),
        ("model.eval()", "pass"),
    ],
    "training/objectives/base.py": [
        ("smoothing = self.label_smoothing if model.training else 0.0\n        plain:",
         "smoothing = self.label_smoothing\n        plain:"),
        ("loss = loss + aux_loss", "pass"),
    ],
    "training/objectives/contrastive.py": [
        ("self._similarities(anchors, torch.cat(vectors[1:]))", "self._similarities(anchors, positives)"),
        ("cross_entropy(self._similarities(positives, anchors), right)", "loss"),
        ("self.config.document_prompt + text", "self.config.anchor_prompt + text"),
    ],
    "training/objectives/text_similarity.py": [
        ("scores[:, None] < scores[None, :]", "scores[:, None] <= scores[None, :]"),
    ],
    "evaluation/retrieval.py": [
        ("reciprocals += 1 / hits[0] if hits else 0.0", "reciprocals += 1 / hits[-1] if hits else 0.0"),
        ("ideal = sorted(answers.values(), reverse=True)", "ideal = sorted(answers.values())"),
        ("descending=True, stable=True", "descending=True"),
    ],
    "training/objectives/masked_token.py": [
        ("draw >= 0.9", "draw >= 0.8"),
        ("np.where(selected, tokens, IGNORED)", "tokens"),
    ],
    "training/objectives/sequence_to_sequence.py": [
        ('>= inputs["num_tokens"][:, None]', '> inputs["num_tokens"][:, None]'),
    ],
    "data/batches.py": [
        ("* self.length + offset", "* self.length"),
        ("key=[self.seed, epoch]", "key=[self.seed, 0]"),
    ],
    "runs/checkpoints.py": [
        (" and _identity(file) == expected", ""),
        ("[:-keep]", "[: -keep + 1]"),
    ],
    "io/atomic.py": [
        ("temporary.chmod(0o666 & ~_umask())", "pass"),
        ('        _sync(temporary)\n        temporary.replace', "        temporary.replace"),
    ],
}  # fmt: skip
