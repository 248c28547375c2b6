/** Types of the server's responses; see archetype/apps/serve/. */

export interface ModelInfo {
  name: string;
  error?: string;
  kind?: "decoder" | "encoder" | "encoder_decoder" | "ngram" | "megabyte" | "vision_encoder";
  head?: string;
  prompt?: string | null; // initial prompt, if the server has one
  loaded?: boolean;
  context_length?: number;
  num_layers?: number;
  vocab_size?: number;
  generates?: boolean;
  chat?: boolean | null;
  tokenizer?: boolean | null;
}

export interface PresetInfo {
  name: string;
  family: string;
  kind: string;
  parameters: number;
  source: string;
}

export interface Origin {
  source?: string;
  preset?: string;
  model?: string;
}

export type Measure = "parameters" | "active" | "flops" | "bytes";

export interface EvaluateRequest extends Origin {
  set?: Record<string, unknown>;
  changes?: string[]; // as for `archetype set`
  batch?: number;
  length?: number;
  dtype?: string;
  device?: string;
  measure?: Measure;
  unfold?: boolean;
  aspect?: string;
  family?: boolean;
  base?: Origin;
  compare?: boolean;
}

export interface Problem {
  path: string;
  line: number;
  column: number;
  message: string;
  remedy: string;
}

export interface Paint {
  fill: string;
  edge: string;
  width: number;
  dashed: boolean;
}

export type Item =
  | { type: "area"; x: number; y: number; w: number; h: number; radius: number; id: string; says: string; paint: number }
  | { type: "line"; points: [number, number][]; arrow: [number, number][] | null; paint: number }
  | { type: "text"; x: number; y: number; text: string; size: number; anchor: "start" | "middle" | "end"; bold: boolean; paint: number };

export interface Box {
  id: string;
  label: string;
  shape: string;
  detail: string;
  kind: string;
  repeat: number;
  sets: number; // number of weight sets that the layers share; 0 if each layer has its own
  field: string;
  change: string;
  cost: Record<Measure, number>;
}

export interface Container {
  id: string;
  label: string;
  kind: string;
  lines: string[];
  repeat: number;
  field: string;
  change: string;
}

export interface Diagram {
  name: string;
  description: string;
  measure: Measure;
  unit: string;
  width: number;
  height: number;
  items: Item[];
  paints: { light: Paint; dark: Paint }[];
  boxes: Box[];
  containers: Container[];
  legend: { letter: string; value: number; meaning: string }[];
}

export interface Sums {
  parameters: { total: number; embedding: number; active: number };
  flops: Record<"forward" | "prefill" | "decode" | "train" | "train_recomputed", number>;
  state: { bytes_per_token: number; bytes: number };
  memory: Record<string, number>;
}

export interface Module {
  module: string;
  layers: number;
  parameters: number;
  active: number;
  forward: number;
  prefill: number;
  decode: number;
  formulas: Record<string, string>;
}

export interface CostReport extends Sums {
  batch: number;
  length: number;
  dtype: string;
  formulas: Record<string, string>;
  symbols: Record<string, { value: number; meaning: string }>;
  modules: Module[];
}

export interface PhaseTime {
  phase: string;
  seconds: number;
  tokens_per_second: number;
  unit: string;
  units_per_second: number;
  bound: string;
}

export interface Times {
  device: string;
  source: string;
  phases: PhaseTime[];
  too_large: { phase: string; memory: number; available: number }[];
  even_routing: boolean;
}

export interface FormGroup {
  path: string;
  definition: string;
  layers: number;
  value: Record<string, unknown>;
}

export interface Evaluated {
  ok: true;
  source: string;
  problems: Problem[];
  name: string;
  kind: string;
  fingerprint: string;
  num_layers: number;
  context_length: number;
  cost: CostReport;
  fit: { memory: string; use: string; batch: number | null; length: number | null }[];
  times: Times | null;
  form: FormGroup[];
  diff: { path: string; a: unknown; b: unknown }[];
  family?: string | null; // that it can be exported as, if requested
  base: (Sums & { name: string }) | null;
  diagram: Diagram;
  parts: Record<string, { kind: string; yaml: string; about: string }>;
}

export interface Refused {
  ok: false;
  source?: string;
  problems: Problem[];
}

export interface TransplantRequest {
  model: string;
  source: string;
  layers?: string;
  ways?: string[];
  compare?: boolean;
  text?: string;
}

export type How = "kept" | "cut" | "grown" | "merged" | "copied" | "new";
export type Start = "same" | "rounded" | "changed";

export interface Taken {
  how: How;
  sources: string[];
  note: string;
}

/** Comparison of a new model with the donor of its weights. */
export interface Proof {
  num_tokens: number;
  start: Start;
  difference: number;
  divergence: number;
  agreement: number;
  loss_before: number;
  loss_after: number;
  layers: { layer: number; origin: number; distance: number }[];
}

export interface TransplantReport {
  changes: { path: string; before: unknown; after: unknown }[];
  tensors: Record<string, Taken>;
  promise: Start;
  promises: Record<string, { start: Start; why: string }>;
  proof: Proof | null;
  costs: Record<string, { before: number; after: number }>;
}

export interface NextTokens {
  tokens: string[];
  before: (number | null)[];
  after: (number | null)[];
}

export interface ComparedRow {
  tokens: string[];
  kl: (number | null)[];
  next: NextTokens[];
}

export interface Transplanted {
  ok: true;
  problems: Problem[];
  name: string;
  command: string;
  sizes: Record<string, number>; // entries of each new tensor
  donated: Record<string, number>; // those of them that are the donor's
  report: TransplantReport;
  rows: ComparedRow[]; // of the text that both models read
}

/** An error response, with the server's message. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null,
  ) {
    super(message);
  }
}

let askForKey: () => Promise<string> = () => Promise.reject(new Error("no key"));

/** Set the function that asks the user for the server's API key. */
export function onKeyNeeded(ask: () => Promise<string>): void {
  askForKey = ask;
}

async function send(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  for (;;) {
    const headers: Record<string, string> = {};
    const key = window.sessionStorage.getItem("key");
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const method = body === undefined ? "GET" : "POST";
    const response = await fetch(path, { method, headers, body: body === undefined ? null : JSON.stringify(body), signal: signal ?? null });
    if (response.ok) return response;
    const error = await response.json().then(
      (data) => data.error,
      () => null,
    );
    if (error?.code !== "invalid_api_key") {
      throw new ApiError(error?.message ?? `the server answered ${response.status}`, response.status, error?.code ?? null);
    }
    window.sessionStorage.setItem("key", await askForKey());
  }
}

/** GET a path, or POST a body to it, and parse the JSON of the response. */
export async function call<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return (await send(path, body, signal)).json() as Promise<T>;
}

/** GET a tensor. Its shape is in the header x-shape. */
export async function numbers(path: string, signal?: AbortSignal): Promise<{ shape: number[]; data: Float32Array | Uint8Array }> {
  const response = await send(path, undefined, signal);
  const shape = (response.headers.get("x-shape") ?? "").split(",").map(Number);
  const buffer = await response.arrayBuffer();
  return { shape, data: response.headers.get("x-dtype") === "uint8" ? new Uint8Array(buffer) : new Float32Array(buffer) };
}

/** Yield the events of a stream as they arrive, until it ends or is aborted. */
export async function* events<T>(path: string, body?: unknown, signal?: AbortSignal): AsyncGenerator<T> {
  const response = await send(path, body, signal);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const pieces = text.split("\n\n");
      text = pieces.pop()!;
      for (const data of pieces.flatMap(eventData)) {
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, 200, event.error.code);
        yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** Return the data of a server-sent event; empty for a comment or for the end mark [DONE]. */
export function eventData(event: string): string[] {
  const data = event.split("\n").filter((line) => line.startsWith("data:"));
  const text = data.map((line) => line.slice(5).trimStart()).join("\n");
  return text && text !== "[DONE]" ? [text] : [];
}

export const api = {
  models: () => call<{ models: ModelInfo[] }>("/api/models"),
  presets: () => call<{ presets: PresetInfo[]; devices: string[] }>("/api/presets"),
  schema: () => call<Record<string, unknown>>("/api/spec/schema"),
  positions: (body: Origin & { length?: number; dtype?: string }, signal?: AbortSignal) =>
    call<Positions | { ok: false; problems: Problem[] }>("/api/spec/position", body, signal),
  evaluate: (body: EvaluateRequest, signal?: AbortSignal) => call<Evaluated | Refused>("/api/spec/evaluate", body, signal),
  transplant: (body: TransplantRequest, signal?: AbortSignal) => call<Transplanted | Refused>("/api/transplant", body, signal),
};

export interface Waves {
  points: number[];
  angles: number[];
  waves: { pair: number; angle: number; wavelength: number; cos: number[] }[];
}

export type LayerPosition =
  | ({ kind: "rotary"; dim: number; theta: number; attention_factor: number; curves: { kind: string; own: boolean; scaling: Record<string, unknown>; angles: number[]; decay: number[] }[] } & Waves)
  | { kind: "alibi"; slopes: number[] }
  | { kind: "relative_bias"; num_buckets: number; ahead: number[]; buckets: number[] };

export interface Pattern {
  kind: string;
  spec: Record<string, unknown>;
  places: number[];
  rows: string[];
  pairs: number;
  computed: number;
  cache_length: number;
}

export interface LayerKind {
  path: string;
  kind: string;
  layers: number[];
  causal: boolean;
  position: LayerPosition | null;
  pattern: Pattern | null;
}

export interface Positions {
  ok: true;
  problems: Problem[];
  name: string;
  kind: string;
  length: number;
  context_length: number;
  most: number | null;
  embedding: ({ kind: "sinusoidal"; offset: number } & Waves) | { kind: "learned"; offset: number; positions: number } | null;
  layers: LayerKind[];
  state: { lengths: number[]; bytes: number[]; per_token: number; weights: number };
}
