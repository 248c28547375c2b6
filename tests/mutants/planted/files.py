"""Bugs in what is read from and written to files of others: GGUF, folders of Hugging Face, tokenizers."""

BUGS: dict[str, list[tuple[str, str]]] = {
    "convert/gguf/graph.py": [
        ('"expert_used_count": first.experts_per_token,', '"expert_used_count": first.num_experts,'),
        ("_alike([size.num_kv_heads for size in sizes])", "_alike([size.num_heads for size in sizes])"),
        ("{'rms_' if isinstance(self.norm, RMSNorm) else ''}", "{'' if isinstance(self.norm, RMSNorm) else 'rms_'}"),
        ('tied="output.weight" not in keys.shapes, bias=', "tied=True, bias="),
        ('"rope.freq_base": position.theta}', '"rope.freq_base": 10_000.0}'),
        ("full = next((mixer for mixer in rotated if not _window(mixer.pattern)), rotated[0])", "full = rotated[0]"),
        ('{"attention.sliding_window": max(sizes)}', '{"attention.sliding_window": max(sizes) - 1}'),
    ],
    "convert/gguf/plain.py": [
        ("context_length=min(model.context_length, *widths))", "context_length=model.context_length)"),
    ],
    "convert/gguf/finish.py": [
        ('{"attn_logit_softcapping": softcap, ', '{"attn_logit_softcapping": 50.0, '),
        ('{"final_logit_softcapping": model.head.softcap or 0.0}', '{"final_logit_softcapping": 30.0}'),
    ],
    "convert/gguf/rope.py": [
        ('{"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}',
         '{"rope.scaling.type": "linear", "rope.scaling.factor": 1 / scaling.factor}'),
        ("share = min(max((turns - scaling.low_frequency_factor) / scaling.band, 0.0), 1.0)",
         "share = min(max((turns - scaling.low_frequency_factor) / scaling.high_frequency_factor, 0.0), 1.0)"),
    ],
    "convert/gguf/deepseek2.py": [
        ('"rope.scaling.yarn_log_multiplier": TENTH * every', '"rope.scaling.yarn_log_multiplier": every'),
        ('"attention.key_length": rank + rope,', '"attention.key_length": mixer.head_dim,'),
        ('"rope.scaling.yarn_beta_slow": scaling.beta_slow,', '"rope.scaling.yarn_beta_slow": 1.0,'),
    ],
    "convert/gguf/file.py": [
        ('"add_bos_token": tokenizer.adds_bos or "bos" in vocab.special,',
         '"add_bos_token": tokenizer.bos is not None,'),
        ('"add_eos_token": ends and bool(tokenizer.eos),', '"add_eos_token": bool(tokenizer.eos),'),
        ("*config.get(\"eos_token_id\", ()), *tokenizer.eos)", "*tokenizer.eos)"),
        ("            writer.add_float32(key, value)", "            writer.add_float32(key, round(value, 6))"),
        ("writer.add_decoder_start_token_id(start)", "writer.add_decoder_start_token_id(0)"),
    ],
    "convert/gguf/changes.py": [
        ("pairs: Tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2)",
         "pairs: Tensor = tensor.unflatten(0, (2, heads, -1)).transpose(1, 2)"),
    ],
    "convert/sentence_transformers/files.py": [
        ("(before + text).lower() if self.lowercase else before + text",
         "(text + before).lower() if self.lowercase else text + before"),
        ('return "query" if "query" in self.prompts else None', "return None"),
    ],
    "convert/sentence_transformers/head.py": [
        ("    if order == head.pooling:", "    if True:"),
        ("model.embeds_tokens and not model.head.has_classes", "model.embeds_tokens"),
        ("read_settings(before).pools_prompt", "True"),
        ("        width = layer.width\n    if head.normalize", "    if head.normalize"),
    ],
    "convert/sentence_transformers/weights.py": [
        ("return all(torch.equal(tensors[name].to(tensor), tensor) for name, tensor in state.items())", "return True"),
    ],
    "tokenizers/added.py": [
        ("names = map(re.escape, sorted(known, key=len, reverse=True))",
         "names = map(re.escape, sorted(known, key=len))"),
        ("parts[at - 1] = parts[at - 1].rstrip() if token.lstrip",
         "parts[at - 1] = parts[at - 1].rstrip() if token.rstrip"),
        ("tokens.append(AddedToken(int(id), token[\"content\"], **{\"special\": False} | flags))",
         "tokens.append(AddedToken(int(id), token[\"content\"], flags.get(\"special\", False)))"),
    ],
    "tokenizers/added_tokens.py": [
        ("wider.bos, wider.eos, wider.adds_bos = tokenizer.bos, tokenizer.eos, tokenizer.adds_bos",
         "wider.bos, wider.eos = tokenizer.bos, tokenizer.eos"),
        ('"normalized": False,', '"normalized": True,'),
        ('"special": name[0] + name[-1] in ("<>", "[]")', '"special": True'),
        ('"single_word": False, "lstrip": False,', '"single_word": True, "lstrip": False,'),
        ('"rstrip": False,', '"rstrip": True,'),
    ],
    "tokenizers/special_tokens.py": [
        ('"eos_token": tokenizer.eos[0] if', '"eos_token": tokenizer.eos[-1] if'),
        ("tokenizer.adds_bos = tokenizer.adds_bos and tokenizer.bos is not None", "pass"),
        ('if key in ("cls_token", "bos_token"):', 'if key == "bos_token":'),
        ('if "added_tokens_decoder" not in config and', "if"),
    ],
    "tokenizers/stream.py": [
        ("if recent_text == new or recent_text.strip():", "if True:"),
        ("return self._decode(self._window)[len(self._text) :]", "return \"\""),
    ],
    "tokenizers/hugging_face.py": [
        ("known = [id for id in ids if 0 <= id < self._vocab_size]",
         "known = [id for id in ids if 0 < id < self._vocab_size]"),
        ("return whole[:first], whole[first + len(plain) :]", "return whole[:first], []"),
        ("return [*first, *before, *ids, *after]", "return [*before, *ids, *after]"),
    ],
    "tokenizers/tokenizer.py": [
        ("names = map(re.escape, sorted(special, key=len, reverse=True))", "names = map(re.escape, special)"),
    ],
    "tokenizers/token_bytes.py": [
        ("text = self._tokenizer.decode([self._first, id])[len(self._before) :]",
         "text = self._tokenizer.decode([id])"),
    ],
    "io/atomic.py": [
        ("temporary.chmod(0o777 & ~_umask())", "pass"),
        ("            path.rmdir()\n", "            pass\n"),
    ],
}  # fmt: skip
