import type { Evaluated, ModelInfo } from "../../api";
import { bytes, exact, short } from "../../format";

const READS: Record<string, string> = {
  decoder: "It reads a text from left to right and predicts the next token.",
  encoder: "It reads a whole text at once, in both directions.",
  encoder_decoder: "It reads a whole source text at once and generates a target text token by token.",
  ngram: "It predicts the next token from the last few with a feed-forward network.",
  megabyte: "It reads bytes in patches: a large model runs over the patches, and a small one generates the bytes of each patch.",
  vision_encoder: "It splits an image into patches and processes all of them at once, as tokens.",
};
const MIXERS: Record<string, string> = {
  attention: "attention", latent: "latent attention", mamba: "Mamba", mamba2: "Mamba-2", lstm: "LSTM", gru: "GRU", rnn: "RNN",
};
const HEADS: Record<string, string> = {
  masked_language_model: "It fills in masked tokens.",
  classification: "It classifies its input.",
};

interface Kind {
  name: string;
  layers: number;
}

/** Kinds of mixers, with the number of layers of each. */
export function mixers(answer: Evaluated): Kind[] {
  const counts = new Map<string, number>();
  for (const group of answer.form) {
    const kind = (group.value.mixer as { kind?: string } | undefined)?.kind;
    if (kind && kind !== "none") counts.set(kind, (counts.get(kind) ?? 0) + group.layers);
  }
  return [...counts].map(([name, layers]) => ({ name, layers }));
}

/** Describe a model in a few sentences. */
export function describe(answer: Evaluated, model: ModelInfo): string[] {
  const { parameters, flops, state, memory, dtype } = answer.cost;
  const kinds = mixers(answer);
  const words = kinds.map((mixer) => `${MIXERS[mixer.name] ?? mixer.name.replaceAll("_", " ")}${kinds.length > 1 ? ` in ${mixer.layers}` : ""}`);
  const width = answer.form[0]?.value.d_model ?? "";
  const layers = answer.num_layers ? `${exact(answer.num_layers)} layers${width ? ` of width ${exact(Number(width))}` : ""}${words.length ? `, with ${words.join(" and ")}` : ""}` : "no layers";
  const active = parameters.active === parameters.total ? "" : ` (${short(parameters.active)} active per token)`;
  const sentences = [
    READS[answer.kind] ?? "",
    HEADS[model.head ?? ""] ?? "",
    `It has ${short(parameters.total)} parameters${active} in ${layers}.`,
    `In ${dtype} its weights take ${bytes(memory.weights ?? 0)}.`,
  ];
  if (state.bytes > 0) {
    const grows = state.bytes_per_token ? `${bytes(state.bytes_per_token)} of KV cache` : `no additional memory: its state stays at ${bytes(state.bytes)}`;
    sentences.push(`Each additional token costs ${short(flops.decode)} FLOPs and ${grows}.`);
  } else sentences.push(`One forward pass costs ${short(flops.forward)} FLOPs.`);
  return sentences.filter(Boolean);
}
