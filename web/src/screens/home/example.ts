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

/** An answer: `share` is the length of its bar from 0 to 1, `shown` the number next to it. */
export interface Answer {
  name: string;
  share: number;
  shown: string;
}

export const MAX_TOKENS = 48; // to generate
const SAMPLING = { temperature: 0.7, seed: 1 };
const TOP = 5; // answers to show

/** Return an example of what a model can do. */
export function exampleOf(model: ModelInfo): Example {
  if (model.kind === "vision_encoder") return { task: "picture", title: "Classify this image", label: "Image", input: disc() };
  if (model.kind === "encoder_decoder" && model.generates) return { task: "translate", title: "Generate from this source", label: "Source", input: "A cat sat on the mat." };
  if (model.generates) return { task: "write", title: "Continue this prompt", label: "Prompt", input: model.prompt ?? "The cat sat on the" };
  if (model.head === "classification") return { task: "classify", title: "Classify this text", label: "Text", input: "What a wonderful day." };
  if (model.head?.startsWith("masked")) return { task: "fill", title: "Fill in the masked token", label: "Text with [MASK]", input: "The cat sat on the [MASK]." };
  return { task: "embed", title: "Embed this text", label: "Text", input: "The cat sat on the mat." };
}

/** Run an example: yield pieces of the generated text as they arrive, or the most likely answers. */
export async function* run(model: ModelInfo, task: Task, input: string, signal: AbortSignal): AsyncGenerator<string | Answer[]> {
  const target = { model: model.name };
  if (task === "write" || task === "translate") {
    const prompt = model.tokenizer === false ? [1, 2, 3] : input;
    const body = { ...target, prompt, max_tokens: MAX_TOKENS, ...SAMPLING, stream: true };
    for await (const chunk of events<{ choices: { text?: string }[] }>("/v1/completions", body, signal)) yield chunk.choices[0]?.text ?? "";
  } else if (task === "fill") {
    const { slots } = await call<{ slots: { token: string; probability: number }[][] }>("/api/fill", { ...target, text: input, top: TOP }, signal);
    yield (slots[0] ?? []).map((prediction) => ({ name: visible(prediction.token), share: prediction.probability, shown: percent(prediction.probability) }));
  } else if (task === "embed") {
    const { data } = await call<{ data: { embedding: number[] }[] }>("/v1/embeddings", { ...target, input }, signal);
    const vector = data[0]!.embedding;
    const largest = Math.max(...vector.map(Math.abs));
    yield vector.slice(0, TOP).map((value, index) => ({ name: `dimension ${index} of ${vector.length}`, share: Math.abs(value) / largest, shown: value.toFixed(4) }));
  } else {
    const body = task === "picture" ? [{ type: "image_url", image_url: { url: input } }] : input;
    const { data } = await call<{ data: { label: string; probs: number[] }[] }>("/v1/classify", { ...target, input: body }, signal);
    const order = data[0]!.probs.map((share, at) => ({ share, at })).sort((a, b) => b.share - a.share);
    yield order.slice(0, TOP).map(({ share, at }, rank) => ({ name: rank || data[0]!.label === String(at) ? `class ${at}` : data[0]!.label, share, shown: percent(share) }));
  }
}
