"""Bugs in what leaves the house otherwise: answers of the server, views of a pass, lines of the command line."""

BUGS: dict[str, list[tuple[str, str]]] = {
    "apps/serve/generation.py": [
        ("for request in self.requests[:: self.n])", "for request in self.requests)"),
        ('"seed": (seed + k) % 2**63', '"seed": (seed + index) % 2**63'),
        ("prompt, k = divmod(index, choices.n)", "k, prompt = divmod(index, num_prompts)"),
        ("prompt, completion = sum(map(len, self.prompts)),",
         "prompt, completion = self.n * sum(map(len, self.prompts)),"),
        ("return min(left, next(limits, left))", "return next(limits, left)"),
        ("if before + asked > context or", "if before + asked >= context or"),
    ],
    "apps/serve/answers.py": [
        ('"total_tokens": prompt_tokens + completion_tokens',
         '"total_tokens": prompt_tokens + completion_tokens - cached_tokens'),
        ("else [*top, (token, logprobs.logprob)]", "else [*top[:-1], (token, logprobs.logprob)]"),
        ("self._offset += len(text)", "self._offset += len(name)"),
        ("self._offset = model, count, offset", "self._offset = model, count, 0"),
        ("alternatives[key] = max(value, alternatives.get(key, value))", "alternatives[key] = value"),
        ('"bytes": list(data)}', '"bytes": list(data.decode("utf-8", "replace").encode())}'),
        ('({"usage": None} if with_usage else {})', '({"usage": None})'),
    ],
    "apps/serve/completions.py": [
        ('"text": echo.text + outputs[index],', '"text": outputs[index],'),
        ('item["prompt_token_ids"] = tokens, choices.prompts[index // choices.n]',
         'item["prompt_token_ids"] = tokens, choices.prompts[0]'),
        ("usage(sum(map(len, source_ids)), sum(target.num_tokens for target in targets))",
         "usage(sum(map(len, source_ids)), sum(target.num_tokens - 1 for target in targets))"),
        ("ids = tokenizer.encode_prompt(text) if add_special_tokens else tokenizer.encode(text)",
         "ids = tokenizer.encode_prompt(text)"),
        ("pieces[-1] += stream.finish()", "pass"),
    ],
    "apps/serve/chat.py": [
        ("text = template.render(plain, add_generation_prompt is not False, tools or None)",
         "text = template.render(plain, bool(add_generation_prompt), tools or None)"),
        ("step.token in (*model.lm.ends, *(body.stop_token_ids or ()))", "step.token in model.lm.ends"),
    ],
    "apps/serve/generation_request.py": [
        ("self.top_k if self.top_k > 0 else None", "self.top_k if self.top_k >= 0 else None"),
        ('settings["min_new_tokens"] = self.min_tokens', "pass"),
        ("return self.max_completion_tokens if self.max_tokens is None else self.max_tokens", "return self.max_tokens"),
    ],
    "apps/serve/tokens.py": [
        ("added = body.add_special_tokens is not False", "added = bool(body.add_special_tokens)"),
    ],
    "apps/serve/embeddings.py": [
        ('"usage": _usage(sum(map(len, sequences)))}', '"usage": _usage(len(sequences))}'),
        ('.astype("<f4")', '.astype("<f2")'),
        ("best = max(range(len(row)), key=row.__getitem__)", "best = max(range(len(row)))"),
    ],
    "apps/serve/positions.py": [
        ("places = [step * length // count for step in range(count)]", "places = [*range(count)]"),
        ("values = [memory.state(1, tokens) for tokens in lengths]",
         "values = [memory.state(1, length) for tokens in lengths]"),
    ],
    "inspection/residual.py": [
        ('.out"] * (block.residual_scale * factor) for content', '.out"] * factor for content'),
    ],
    "inspection/lens.py": [
        ("targets[:-1] = ids[0, 1:]", "targets[1:] = ids[0, :-1]"),
        ("ranks = (logp > of_target).sum(1)", "ranks = (logp >= of_target).sum(1)"),
        ("(final.exp() * (final - logp))", "(logp.exp() * (logp - final))"),
        ("torch.special.entr(logp.exp()).sum(-1))", "torch.special.entr(final.exp()).sum(-1))"),
        ("x = stack.leave(x)", "pass"),
    ],
    "inspection/attention.py": [
        ("nn.functional.pad(before[:, :-1], (1, 0))", "nn.functional.pad(before[:, 1:], (0, 1))"),
        ("weights.diagonal(-1, 1, 2)", "weights.diagonal(0, 1, 2)"),
        ('"first": weights[..., 0].mean(-1)', '"first": weights[..., -1].mean(-1)'),
    ],
    "inspection/patching.py": [
        ("y[torch.arange(len(positions)), positions] = source[0, positions]",
         "y[torch.arange(len(positions)), positions % ROWS] = source[0, positions]"),
        ("((difference(logits) - start) / (end - start))", "((difference(logits) - start) / end)"),
    ],
    "inspection/attribution.py": [
        ("for head, y in enumerate(heads[:, at].double() * scale):",
         "for head, y in enumerate(heads[:, at].double()):"),
        ("rest = x[0, at].double() - heads[:, at].double().sum(0) * scale",
         "rest = x[0, at].double() - heads[:, at].double().sum(0)"),
        ("    position %= length\n", ""),
        ("row = table[token].double() * head.spec.scale", "row = table[token].double()"),
    ],
    "generate/encoder.py": [
        ('pooling = "last" if isinstance(model, Decoder) else "mean"', 'pooling = "mean"'),
        ("return torch.cat(results)[torch.tensor(order, device=model.device).argsort()]",
         "return torch.cat(results)[torch.tensor(order, device=model.device)]"),
        ("room = max(map(len, sequences), default=0) if longest is None else longest - around",
         "room = max(map(len, sequences), default=0) if longest is None else longest"),
        ("best = logits[:, : tokenizer.vocab_size].softmax(-1)", "best = logits.softmax(-1)"),
    ],
    "evaluation/score.py": [
        ("answer_logits = logits[len(row) - len(targets) : len(row)].float()",
         "answer_logits = logits[-len(targets) :].float()"),
        ("first = scored - start", "first = max(0, scored - start - 1)"),
        ("bool((answer_logits.argmax(-1) == targets).all())", "bool((answer_logits.argmax(-1) == targets).any())"),
    ],
    "training/report_page.py": [
        ('samples = [(f"{line[\'step\']:,}", line["sample"])',
         'samples = [(f"{line[\'step\'] + 1:,}", line["sample"])'),
    ],
    "training/state.py": [
        ("self.num_evaluated = len(evaluated.get(self.step, ()))", "self.num_evaluated = 0"),
        ("self.compare(losses[0])", "self.compare(losses[-1])"),
        ("if self.num_evaluated == 1 and self.compare(evaluation.loss)", "if self.compare(evaluation.loss)"),
        ("files.append(self.final_weights())", "files.append({**weights})"),
        ("self.average.restore(load_file(checkpoint.average_file))", "pass"),
        ("restore_optimizer(self.model, self.optimizer, checkpoint.optimizer())", "pass"),
    ],
    "training/objectives/next_token.py": [
        ("targets[np.arange(targets.shape[1]) >= rows.num_targets[:, None]] = IGNORED", "pass"),
        ("targets[rows.document_ids[:, 1:] != rows.document_ids[:, :-1]] = IGNORED", "pass"),
    ],
    "data/packing.py": [
        ("return offset + start - 1, min(self.length, self.stream.num_tokens - start)",
         "return offset + start - 1, self.length"),
        ("offset = permutation(self.stream.num_tokens, self.seed, epoch)(0)",
         "offset = permutation(self.stream.num_tokens, self.seed, 0)(0)"),
        ("turn = permutation(self.documents.cycle, self.seed, cycle, 1)(turn)", "turn = int(turn)"),
    ],
    "apps/cli/prompt_file.py": [
        ("continues=continues, **settings | prompt.settings)", "continues=continues, **prompt.settings | settings)"),
        ('"completion_tokens": len(request.tokens),', '"completion_tokens": len(request.text),'),
        ("prompt.messages is None\n            engine", "True\n            engine"),
    ],
    "apps/cli/record_file.py": [
        ('num_failed + ("error" in record)', "num_failed"),
        ('complete = data[: data.rfind(b"\\n") + 1]', "complete = data"),
        ("left = [line for line in lines if line.id not in finished]", "left = [*lines]"),
    ],
    "apps/cli/source_file.py": [
        ('lines = [" ".join(targets[source.id]["target"].splitlines()) for source in sources]',
         'lines = [targets[source.id]["target"] for source in sources]'),
        ('text = read_lines_text(file, remedy).replace("\\r\\n", "\\n").removesuffix("\\n")',
         'text = read_lines_text(file, remedy).replace("\\r\\n", "\\n").rstrip()'),
    ],
    "studies/statistics.py": [
        ("np.std(values, ddof=1)", "np.std(values)"),
        ("(len(p_values) - rank) * p_values[index]", "len(p_values) * p_values[index]"),
        ("* (1 - 1e-12)))", "* (1 + 1e-12)))"),
        ("(1 + level) / 2)) * _standard_error", "level)) * _standard_error"),
        ("rows, seeds = generator.integers(num_examples, size=num_examples), generator",
         "rows, seeds = np.arange(num_examples), generator"),
        ('return max(paired_t_p(differences, -margin, "greater"),',
         'return min(paired_t_p(differences, -margin, "greater"),'),
    ],
    "studies/trained.py": [
        ("recipe = arm.recipe.replace(seed=seed + arm.seed_offset)", "recipe = arm.recipe.replace(seed=seed)"),
    ],
    "data/order.py": [
        ("while image >= self.n:", "while image > self.n:"),
        ("(n - 1).bit_length() + 1) // 2", "n.bit_length() + 1) // 2"),
    ],
    "data/records.py": [
        ('if record[field] is None or record[field] == "":', "if record[field] is None:"),
    ],
    "data/pairs.py": [
        ("if max(len(s), len(t)) < longest:", "if len(s) < longest:"),
        ("np.concatenate((end, t, end))", "np.concatenate((end, t))"),
    ],
    "data/conversations.py": [
        ("default=len(new) - 1)", "default=-1)"),
        ("is_answer and index <= last for", "is_answer for"),
        ("if not prompt.startswith(row.text):", "if False:"),
    ],
    "training/objectives/dpo.py": [
        ("after = list(tokenizer.eos[:1])", "after = list[int]()"),
        ("log_probabilities - batch[6]", "log_probabilities"),
    ],
    "training/objectives/chat.py": [
        ("targets = targets.masked_fill(ids[0][:, 1:] != ids[0][:, :-1], IGNORED)", "pass"),
    ],
    "training/metrics.py": [
        ('if values["step"] <= step]', 'if values["step"] < step]'),
    ],
}  # fmt: skip
