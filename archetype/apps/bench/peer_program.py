"""Program that runs a job in another library on the same weights. It does not import Archetype.

It runs in any Python that has the library named by its argument. It prints the library's version, reads a JSON
request and prints a line when the weights are loaded. Then it runs the job once per input line and prints a JSON
object for each repetition.
"""

import ctypes
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Request = dict[str, Any]
Run = Callable[[], dict[str, Any]]
TOKENS_AT_ONCE = 2048  # batch size of a llama.cpp call, in tokens


def main() -> None:
    """Reserve standard output for the protocol. Anything that libraries print goes to stderr."""
    # C libraries write to descriptor 1 whatever sys.stdout is, so the descriptor itself is redirected
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    package, load = PEERS[sys.argv[1]]
    try:
        library = importlib.import_module(package)
    except ImportError:
        answer(missing=package)
        return
    answer(version=library.__version__)
    if line := sys.stdin.readline():
        run = load(library, json.loads(line))
        answer(ready=True)
        # ends when the other side closes the pipe
        for _ in sys.stdin:
            answer(**run())


def transformers_run(library: Any, request: Request) -> Run:
    import torch

    torch.set_num_threads(request["threads"])
    job, dtype = request["job"], getattr(torch, request["dtype"])
    kind = "AutoModelForSeq2SeqLM" if request["is_pair"] else "AutoModelForCausalLM"
    auto_class = getattr(library, "AutoModel" if job == "embed" else kind)
    model = auto_class.from_pretrained(request["folder"], dtype=torch.float32 if job == "train" else dtype).eval()
    # padded on the left, as `generate` needs it; (B, S)
    width = max(map(len, request["prompts"]))
    padded = [[0] * (width - len(prompt)) + prompt for prompt in request["prompts"]]
    tokens = torch.tensor(padded)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in request["prompts"]])
    if job == "train":
        return _training(torch, model, tokens, dtype)
    if job == "embed":
        return _embedding(torch, model, tokens, mask)
    return _generation(library, torch, model, tokens, mask, request)


def _generation(library: Any, torch: Any, model: Any, tokens: Any, mask: Any, request: Request) -> Run:
    counts, times = torch.tensor(request["new"]), []

    # called after each step with all sequences: the only place where transformers tells the time of the first token
    class Clock(library.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, ids: Any, scores: Any, **rest: Any) -> Any:
            times.append(time.perf_counter())
            return counts <= len(times)  # (B,): each sequence stops at its own number of tokens

    starts = {"decoder_start_token_id": request["start"]} if request["is_pair"] else {}
    model.generation_config = library.GenerationConfig(
        do_sample=False, max_new_tokens=max(request["new"]), pad_token_id=0, **starts
    )
    # `generate` returns the prompt, or the start token of a target, before what it has generated
    begin = 1 if request["is_pair"] else tokens.shape[1]

    def run() -> dict[str, Any]:
        times.clear()
        started = time.perf_counter()
        with torch.inference_mode():
            sequences = model.generate(tokens, attention_mask=mask, stopping_criteria=[Clock()])
        ended, first = time.perf_counter(), sequences[0, begin : begin + request["new"][0]].tolist()
        return {"seconds": ended - started, "first": times[0] - started, "tokens": first}

    return run


def _training(torch: Any, model: Any, tokens: Any, dtype: Any) -> Run:
    # AdamW with the settings of our job
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> dict[str, Any]:
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"seconds": time.perf_counter() - started}

    return run


def _embedding(torch: Any, model: Any, tokens: Any, mask: Any) -> Run:
    def run() -> dict[str, Any]:
        started = time.perf_counter()
        with torch.inference_mode():
            model(input_ids=tokens, attention_mask=mask).last_hidden_state.mean(1)
        return {"seconds": time.perf_counter() - started}

    return run


def llama_cpp_run(c: Any, request: Request) -> Run:
    """Generate greedily with llama.cpp: prefill all prompts, then decode all unfinished sequences together."""
    import numpy

    silent = c.llama_log_callback(lambda level, text, user: None)
    c.llama_log_set(silent, ctypes.c_void_p(0))
    c.llama_backend_init()
    model = c.llama_model_load_from_file(request["file"].encode(), c.llama_model_default_params())
    prompts, new = request["prompts"], request["new"]
    settings = c.llama_context_default_params()
    # tokens of all sequences together; 8 to spare in each
    settings.n_ctx = len(prompts) * (max(map(len, prompts)) + max(new) + 8)
    # a source must fit into one call, because its attention is bidirectional
    settings.n_batch, settings.n_seq_max = TOKENS_AT_ONCE, len(prompts)
    settings.n_ubatch = TOKENS_AT_ONCE if request["is_pair"] else 512
    settings.n_threads = settings.n_threads_batch = request["threads"]
    context = c.llama_init_from_model(model, settings) if model else None
    if not context:
        raise RuntimeError("llama.cpp does not load this file")
    vocab_size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    def feed(entries: list[tuple[int, int, int, bool]], pass_tokens: Any = c.llama_decode) -> dict[int, int]:
        """Return the most likely next token of each sequence. `entries` are (token, position, sequence, is_last)."""
        # tokens, no embeddings, one sequence for each token
        batch = c.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, row, is_last) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = row, is_last
        if pass_tokens(context, batch) != 0:
            raise RuntimeError("llama.cpp cannot process this batch")
        if pass_tokens is c.llama_encode:
            c.llama_batch_free(batch)
            return {}
        logits = {entry[2]: c.llama_get_logits_ith(context, i) for i, entry in enumerate(entries) if entry[3]}
        best = {row: numpy.ctypeslib.as_array(row_logits, (vocab_size,)).argmax() for row, row_logits in logits.items()}
        c.llama_batch_free(batch)
        return {row: int(token) for row, token in best.items()}

    def run(silent: Any = silent) -> dict[str, Any]:  # held as long as the library may call it
        c.llama_memory_clear(c.llama_get_memory(context), True)  # without the keys of the run before
        started = time.perf_counter()
        entries = [
            (token, position, row, position == len(prompt) - 1)
            for row, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        if request["is_pair"]:
            feed(entries, c.llama_encode)
            entries = [(request["start"], 0, row, True) for row in range(len(prompts))]
        read = [1 if request["is_pair"] else len(prompt) for prompt in prompts]
        newest: dict[int, int] = {}
        for begin in range(0, len(entries), TOKENS_AT_ONCE):
            newest |= feed(entries[begin : begin + TOKENS_AT_ONCE])
        first, sequences = time.perf_counter() - started, {row: [token] for row, token in newest.items()}
        while unfinished := [row for row, text in sequences.items() if len(text) < new[row]]:
            # the newest token is at the position after what has been read and generated before it
            steps = [(sequences[row][-1], read[row] + len(sequences[row]) - 1, row, True) for row in unfinished]
            for row, token in feed(steps).items():
                sequences[row].append(token)
        return {"seconds": time.perf_counter() - started, "first": first, "tokens": sequences[0]}

    return run


PEERS: dict[str, tuple[str, Callable[[Any, Request], Run]]] = {
    "transformers": ("transformers", transformers_run),
    "llama.cpp": ("llama_cpp", llama_cpp_run),
}

if __name__ == "__main__":
    main()
