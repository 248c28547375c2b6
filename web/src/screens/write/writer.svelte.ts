import { call, events } from "../../api";

/** A token as it was read or written. */
export interface Piece {
  text: string;
  id: number | null;
  logprob: number | null;
  top: [string, number][];
  written: boolean; // by the model, not read
}

export interface Choice {
  index: number;
  text?: string;
  delta?: { content?: string };
  token_ids?: number[];
  finish_reason: string | null;
  logprobs: {
    tokens?: string[];
    token_logprobs?: (number | null)[];
    top_logprobs?: (Record<string, number> | null)[];
    text_offset?: number[];
    content?: { token: string; logprob: number; bytes: number[]; top_logprobs: { token: string; logprob: number }[] }[];
  } | null;
}

export interface Chunk {
  choices: Choice[];
  usage?: { prompt_tokens: number; completion_tokens: number } | null;
}

/** Tokens that are drawn together, so that a long text is neither compared nor laid out at every step; another object when one is added. */
export interface Block {
  start: number; // index of its first token
  pieces: Piece[];
}

// a block ends with the first line that ends after so many tokens, or, where none does, after the most
const BLOCK = 128, LONGEST_BLOCK = 1024;

/** The tokens of one choice of a chunk; those of an echoed prompt come first, all in one chunk. */
export function piecesOf(choice: Choice, offset: number, written: boolean): Piece[] {
  const { logprobs } = choice;
  if (logprobs?.content) {
    return logprobs.content.map((one, at) => ({
      text: at === 0 && logprobs.content!.length === 1 ? (choice.delta?.content ?? one.token) : one.token,
      id: choice.token_ids?.[at] ?? null,
      logprob: one.logprob,
      top: one.top_logprobs.map((other): [string, number] => [other.token, other.logprob]),
      written,
    }));
  }
  const text = choice.text ?? choice.delta?.content ?? "";
  if (!logprobs?.tokens) return text ? [{ text, id: choice.token_ids?.[0] ?? null, logprob: null, top: [], written }] : [];
  const starts = logprobs.text_offset!.map((start) => start - offset);
  return logprobs.tokens.map((_, at) => ({
    text: [...text].slice(starts[at], starts[at + 1] ?? undefined).join(""),
    id: choice.token_ids?.[at] ?? null,
    logprob: logprobs.token_logprobs![at] ?? null,
    top: Object.entries(logprobs.top_logprobs![at] ?? {}).sort((a, b) => b[1] - a[1]),
    written,
  }));
}

/** Bounds of the entropy in nats of a distribution of which the likeliest tokens are known: the rest is one token, or all others alike. */
export function entropyBounds(logprobs: number[], vocabSize: number): [number, number] {
  const known = -logprobs.reduce((sum, one) => sum + Math.exp(one) * one, 0);
  const rest = Math.max(0, 1 - logprobs.reduce((sum, one) => sum + Math.exp(one), 0));
  if (rest < 1e-9) return [known, known];
  const others = Math.max(1, vocabSize - logprobs.length);
  const largest = Math.min(rest, Math.exp(Math.min(...logprobs)));
  const low = -rest * Math.log(largest); // no other token is likelier than the last that is known
  return [known + low, known - rest * Math.log(rest / others)];
}

/** How many of the tokens that two wrote are the same, and the first that differ; null before both have one. */
export function agreement(a: Piece[], b: Piece[]): { count: number; left: Piece | null; right: Piece | null } | null {
  const [left, right] = [a, b].map((pieces) => pieces.filter((one) => one.written)) as [Piece[], Piece[]];
  if (!left.length || !right.length) return null;
  const first = left.findIndex((one, at) => one.text !== right[at]?.text);
  const count = first < 0 ? left.length : first;
  return { count, left: left[count] ?? null, right: right[count] ?? null };
}

/** A model that writes: its tokens as they come, and how fast. */
export class Writer {
  blocks = $state.raw<Block[]>([]);
  running = $state(false);
  error = $state("");
  finish = $state<string | null>(null);
  usage = $state.raw<Chunk["usage"]>(null);
  firstToken = $state<number | null>(null); // seconds
  speed = $state<number | null>(null); // tokens a second, after the first
  numRead = $state(0); // tokens that were read, before those that are written
  #pending: Piece[] = [];
  #stop: AbortController | null = null;
  #frame = 0;

  get pieces(): Piece[] {
    return this.blocks.flatMap((block) => block.pieces);
  }

  get text(): string {
    return this.pieces.map((one) => one.text).join("");
  }

  /** All ids, in order; null where one is not known. */
  get ids(): number[] | null {
    const ids = this.pieces.map((one) => one.id);
    return ids.every((id) => id !== null) ? (ids as number[]) : null;
  }

  clear(): void {
    this.stop();
    this.blocks = [];
    this.error = "";
    this.finish = null;
    this.usage = null;
    this.firstToken = this.speed = null;
    this.numRead = 0;
  }

  stop(): void {
    this.#stop?.abort();
  }

  /** Let the model write; what was there before is replaced. */
  async write(path: string, body: Record<string, unknown>): Promise<void> {
    this.clear();
    const stop = (this.#stop = new AbortController());
    this.running = true;
    const started = performance.now();
    let first = 0;
    let count = 0;
    let offset = 0;
    let isEcho = body.echo === true;
    try {
      const stream = { ...body, stream: true, stream_options: { include_usage: true }, return_token_ids: true };
      for await (const chunk of events<Chunk>(path, stream, stop.signal)) {
        if (chunk.usage) this.usage = chunk.usage;
        const choice = chunk.choices[0];
        if (!choice) continue;
        const pieces = piecesOf(choice, offset, !isEcho);
        offset += [...(choice.text ?? "")].length;
        if (choice.finish_reason) this.finish = choice.finish_reason;
        if (!isEcho && pieces.length) {
          const now = performance.now();
          count += pieces.length;
          if (!first) {
            first = now;
            this.firstToken = (now - started) / 1000;
          } else this.speed = (count - 1) / ((now - first) / 1000);
        }
        if (isEcho) this.numRead = pieces.length;
        isEcho = false;
        this.#add(pieces);
      }
    } catch (error) {
      if (!stop.signal.aborted) this.error = (error as Error).message;
      else this.finish = "stopped";
    } finally {
      this.#flush();
      if (this.#stop === stop) this.running = false;
    }
  }

  #add(pieces: Piece[]): void {
    this.#pending.push(...pieces);
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  #flush(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.#pending.length) return;
    const blocks = this.blocks.slice();
    let last = blocks.pop() ?? { start: 0, pieces: [] };
    last = { ...last, pieces: last.pieces.slice() };
    for (const piece of this.#pending) {
      const { length } = last.pieces;
      if (length >= LONGEST_BLOCK || (length >= BLOCK && last.pieces.at(-1)!.text.endsWith("\n"))) {
        blocks.push(last);
        last = { start: last.start + length, pieces: [] };
      }
      last.pieces.push(piece);
    }
    blocks.push(last);
    this.#pending = [];
    this.blocks = blocks;
  }
}

/** The id of a token's text, where the text is one token. */
export async function idOf(model: string, text: string): Promise<number | null> {
  const answer = await call<{ tokens: number[] }>("/tokenize", { model, prompt: text, add_special_tokens: false });
  return answer.tokens.length === 1 ? answer.tokens[0]! : null;
}
