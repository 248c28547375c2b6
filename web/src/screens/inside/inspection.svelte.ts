import { call, numbers } from "../../api";
import { catalogue, page } from "../../state.svelte";

/** Responses about an inspected text; see archetype/apps/serve/inspections.py. */
export interface Token {
  id: number | null;
  text: string;
  name: string;
  bytes: number[];
}

export interface Norms {
  layers: string[];
  residual: number[][];
  shares: Record<string, (number | null)[][]>;
  [part: string]: unknown;
}

export interface AttentionPart {
  layer: string;
  heads: number;
  queries: "tokens" | "source_tokens";
  keys: "tokens" | "source_tokens";
  shape: [number, number];
}

export type Score = "entropy" | "distance" | "previous" | "first" | "induction";

export type Head = { layer: string; head: number } & Record<Score, number | null>;

export interface Inspected {
  id: string;
  model: string;
  kind: string;
  tokens: Token[];
  source_tokens: Token[];
  views: string[];
  norms: Norms | null;
  source_norms: Norms | null;
  attention: AttentionPart[];
  heads: Head[];
  expires: number;
}

export interface Lens {
  layers: string[];
  tokens: string[];
  answers: string[][][];
  ids: number[][][];
  logp: number[][][];
  rank: number[][];
  kl: number[][];
  entropy: number[][];
}

export interface Mixture {
  path: string;
  num_experts: number;
  chosen: number[][];
  weights: number[][];
  load: number[];
  entropy: number[];
}

export interface RecurrentSeries {
  path: string;
  name: string;
  values: (number | null)[];
}

/** Output of a box of the diagram at one position; `name` is the name of the activation. */
export interface Station {
  box: string;
  layer: number | null;
  name: string;
  shape: number[];
  rms: number | null;
}

export interface Choice {
  chosen: number;
  left: number; // tokens that remain after the sampling settings
  size: number;
  rows: { id: number; name: string; logit: number; probability: number; left: number }[];
}

export interface Matrix {
  shape: number[];
  data: Float32Array | Uint8Array;
}

/** The model's input, as stored in the address. */
export interface Reading {
  model?: string;
  text?: string;
  ids?: number[];
  source?: string;
  target?: string;
  image?: string;
  generate?: number;
}

const EXAMPLE = "The cat sat on the mat. The cat sat on the";

/** The inspection that all views of this screen show, with a cache of its responses. */
class Inspection {
  answer = $state.raw<Inspected | null>(null);
  error = $state("");
  busy = $state(false);
  #asked = "";
  #again = "";
  #running: AbortController | null = null;
  #fetched = new Map<string, Promise<unknown>>();

  /** Inspect an input, unless it is the current one. */
  async read(reading: Reading, again = false): Promise<void> {
    const asked = JSON.stringify(reading);
    if (asked === this.#asked && !again) return;
    this.#asked = asked;
    this.#running?.abort();
    const running = (this.#running = new AbortController());
    this.busy = true;
    this.error = "";
    try {
      const answer = await call<Inspected>("/api/inspect", reading, running.signal);
      this.#fetched.clear();
      this.answer = answer;
    } catch (error) {
      if (running !== this.#running) return;
      this.error = (error as Error).message;
      this.answer = null;
    } finally {
      if (running === this.#running) this.busy = false;
    }
  }

  /** Return the largest logit difference between the traced pass and a plain pass, which the server runs for this. */
  async difference(): Promise<number> {
    return (await this.#fetch("exact", call<{ max_logit_diff: number }>)).max_logit_diff;
  }

  lens(k: number, position: number | null = null): Promise<Lens> {
    return this.#fetch(`lens?k=${k}${position === null ? "" : `&position=${position}`}`, call<Lens>);
  }

  heads(): Promise<Matrix> {
    return this.#fetch("heads", numbers);
  }

  map(layer: string, head: number, stage: string): Promise<Matrix> {
    return this.#fetch(`attention?layer=${encodeURIComponent(layer)}&head=${head}&stage=${stage}&max=2048`, numbers);
  }

  async experts(): Promise<Mixture[]> {
    return (await this.#fetch("experts", call<{ mixtures: Mixture[] }>)).mixtures;
  }

  async recurrent(): Promise<RecurrentSeries[]> {
    return (await this.#fetch("recurrent", call<{ series: RecurrentSeries[] }>)).series;
  }

  async way(query: string): Promise<Station[]> {
    return (await this.#fetch(`way?${query}`, call<{ stations: Station[] }>)).stations;
  }

  station(query: string, number: number): Promise<Matrix> {
    return this.#fetch(`station?${query}&number=${number}`, numbers);
  }

  choice(query: string, settings: string): Promise<Choice> {
    return this.#fetch(`choice?${query}&${settings}`, call<Choice>);
  }

  /** Fetch a response of this inspection once. If the server has dropped the inspection, inspect the input again. */
  #fetch<T>(path: string, get: (path: string) => Promise<T>): Promise<T> {
    const known = this.#fetched.get(path);
    if (known) return known as Promise<T>;
    const promise = get(`/api/inspect/${this.answer!.id}/${path}`).catch((error: Error & { code?: string }) => {
      this.#fetched.delete(path);
      if (error.code === "inspection_not_found" && this.#again !== this.#asked) {
        this.#again = this.#asked; // only once, because an inspection that the server drops at once would be repeated forever
        void this.read(JSON.parse(this.#asked) as Reading, true);
      }
      throw error;
    });
    this.#fetched.set(path, promise);
    if (this.#fetched.size > 64) this.#fetched.delete(this.#fetched.keys().next().value!);
    return promise;
  }
}

export const inspection = new Inspection();

/** Return the model's input from the address. */
export function readingOf(): Reading {
  const model = catalogue.model;
  const reading: Reading = model ? { model: model.name } : {};
  const generate = page.number("generate");
  if (generate) reading.generate = generate;
  if (model?.kind === "vision_encoder" || (!model?.kind && page.get("image"))) return { ...reading, image: page.get("image") };
  const target = page.get("target");
  if (model?.kind === "encoder_decoder" || (!model?.kind && target)) {
    return { ...reading, source: page.get("text") || EXAMPLE, ...(target ? { target } : {}) };
  }
  const ids = page.get("ids");
  if (ids) return { ...reading, ids: ids.split(",").map(Number) };
  if (model?.tokenizer === false) return { ...reading, ids: [1, 2, 3, 1, 2, 3, 1, 2] };
  return { ...reading, text: page.get("text") || EXAMPLE };
}

/** Return the line of Python that computes a view. */
export function pythonLine(view: string): string {
  return `${python("inspect")}.${view}`;
}

/** Return the line of Python that computes an activation at a position. */
export function pythonOf(name: string, position: number): string {
  const [part, last] = [name.replace(/\.[a-z]+$/, ""), name.slice(name.lastIndexOf(".") + 1)];
  if (last === "weights") return pythonLine(`attention("${part}", 0).weights[${position}]`);
  if (name.includes(".state.")) return pythonLine("recurrent()");
  return name === "logits" ? pythonLine(`trace.logits[0, ${position}]`) : `${python("trace")}.record("${name}").run()["${name}"]`;
}

function python(verb: string): string {
  const reading = readingOf();
  const text = JSON.stringify(reading.source ?? reading.text ?? reading.ids ?? "image");
  const target = reading.target ? `, ${JSON.stringify(reading.target)}` : "";
  return `archetype.load(${JSON.stringify(reading.model ?? "")}).${verb}(${text}${target})`;
}
