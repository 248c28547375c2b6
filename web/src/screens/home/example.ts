import { call, events, type ModelInfo } from "../../api";
import { disc } from "../../disc";
import { percent, visible } from "../../format";

export type Task = "write" | "translate" | "fill" | "classify" | "picture" | "embed";

export interface Example {
  task: Task;
  title: string;
  label: string;
  input: string;
}

/** An answer with its share of 1; `shown` is its number as text. */
export interface Answer {
  name: string;
  share: number;
  shown: string;
}

export const MOST = 48; // tokens that it writes
const SAMPLING = { temperature: 0.7, seed: 1 };
const BEST = 5; // answers that are shown

/** The example of a model, by what it can do. */
export function exampleOf(model: ModelInfo): Example {
  if (model.kind === "vision_encoder") return { task: "picture", title: "Classify this image", label: "Image", input: disc() };
  if (model.kind === "encoder_decoder" && model.generates) return { task: "translate", title: "Generate from this source", label: "Source", input: "A cat sat on the mat." };
  if (model.generates) return { task: "write", title: "Continue this prompt", label: "Prompt", input: model.prompt ?? "The cat sat on the" };
  if (model.head === "classification") return { task: "classify", title: "Classify this text", label: "Text", input: "What a wonderful day." };
  if (model.head?.startsWith("masked")) return { task: "fill", title: "Fill in the masked token", label: "Text with [MASK]", input: "The cat sat on the [MASK]." };
  return { task: "embed", title: "Embed this text", label: "Text", input: "The cat sat on the mat." };
}

/** Run an example: pieces of the text that is written, as they come, or the likeliest answers. */
export async function* run(model: ModelInfo, task: Task, input: string, signal: AbortSignal): AsyncGenerator<string | Answer[]> {
  const named = { model: model.name };
  if (task === "write" || task === "translate") {
    const prompt = model.tokenizer === false ? [1, 2, 3] : input;
    const body = { ...named, prompt, max_tokens: MOST, ...SAMPLING, stream: true };
    for await (const chunk of events<{ choices: { text?: string }[] }>("/v1/completions", body, signal)) yield chunk.choices[0]?.text ?? "";
  } else if (task === "fill") {
    const { slots } = await call<{ slots: { token: string; probability: number }[][] }>("/api/fill", { ...named, text: input, top: BEST }, signal);
    yield (slots[0] ?? []).map((one) => ({ name: visible(one.token), share: one.probability, shown: percent(one.probability) }));
  } else if (task === "embed") {
    const { data } = await call<{ data: { embedding: number[] }[] }>("/v1/embeddings", { ...named, input }, signal);
    const vector = data[0]!.embedding;
    const most = Math.max(...vector.map(Math.abs));
    yield vector.slice(0, BEST).map((value, index) => ({ name: `feature ${index} of ${vector.length}`, share: Math.abs(value) / most, shown: value.toFixed(4) }));
  } else {
    const body = task === "picture" ? [{ type: "image_url", image_url: { url: input } }] : input;
    const { data } = await call<{ data: { label: string; probs: number[] }[] }>("/v1/classify", { ...named, input: body }, signal);
    const order = data[0]!.probs.map((share, at) => ({ share, at })).sort((a, b) => b.share - a.share);
    yield order.slice(0, BEST).map(({ share, at }, place) => ({ name: place || data[0]!.label === String(at) ? `class ${at}` : data[0]!.label, share, shown: percent(share) }));
  }
}
