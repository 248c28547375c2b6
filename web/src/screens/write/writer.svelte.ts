import { call, events } from "../../api";

/** A token of the prompt or of the generated text. */
export interface Piece {
  text: string;
  id: number | null;
  logprob: number | null;
  top: [string, number][];
  written: boolean; // generated, not part of the prompt
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

/** Tokens that are drawn together, so that a long text is not compared and laid out at every step. Adding a token creates a new object. */
export interface Block {
  start: number; // index of its first token
  pieces: Piece[];
}

// a block ends at the first line break after BLOCK tokens, or after LONGEST_BLOCK tokens
const BLOCK = 128, LONGEST_BLOCK = 1024;

/** Return the tokens of a chunk's choice. The tokens of an echoed prompt arrive first, in one chunk. */
export function piecesOf(choice: Choice, offset: number, written: boolean): Piece[] {
  const { logprobs } = choice;
  if (logprobs?.content) {
    return logprobs.content.map((token, at) => ({
      text: at === 0 && logprobs.content!.length === 1 ? (choice.delta?.content ?? token.token) : token.token,
      id: choice.token_ids?.[at] ?? null,
      logprob: token.logprob,
      top: token.top_logprobs.map((other): [string, number] => [other.token, other.logprob]),
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

/** Bound the entropy, in nats, of a distribution whose most likely tokens are known: the rest is concentrated, or uniform over all other tokens. */
export function entropyBounds(logprobs: number[], vocabSize: number): [number, number] {
  const known = -logprobs.reduce((sum, logprob) => sum + Math.exp(logprob) * logprob, 0);
  const rest = Math.max(0, 1 - logprobs.reduce((sum, logprob) => sum + Math.exp(logprob), 0));
  if (rest < 1e-9) return [known, known];
  const others = Math.max(1, vocabSize - logprobs.length);
  const largest = Math.min(rest, Math.exp(Math.min(...logprobs)));
  const low = -rest * Math.log(largest); // no other token is more likely than the least likely known one
  return [known + low, known - rest * Math.log(rest / others)];
}

/** Count the generated tokens that two texts share, and return the first that differ; null until both have one. */
export function agreement(a: Piece[], b: Piece[]): { count: number; left: Piece | null; right: Piece | null } | null {
  const [left, right] = [a, b].map((pieces) => pieces.filter((piece) => piece.written)) as [Piece[], Piece[]];
  if (!left.length || !right.length) return null;
  const first = left.findIndex((piece, at) => piece.text !== right[at]?.text);
  const count = first < 0 ? left.length : first;
  return { count, left: left[count] ?? null, right: right[count] ?? null };
}

/** A running generation: its tokens as they arrive, and its speed. */
export class Writer {
  blocks = $state.raw<Block[]>([]);
  running = $state(false);
  error = $state("");
  finish = $state<string | null>(null);
  usage = $state.raw<Chunk["usage"]>(null);
  firstToken = $state<number | null>(null); // seconds
  speed = $state<number | null>(null); // tokens per second, after the first token
  numRead = $state(0); // number of prompt tokens
  #pending: Piece[] = [];
  #stop: AbortController | null = null;
  #frame = 0;

  get pieces(): Piece[] {
    return this.blocks.flatMap((block) => block.pieces);
  }

  get text(): string {
    return this.pieces.map((piece) => piece.text).join("");
  }

  /** All token ids in order; null if one is unknown. */
  get ids(): number[] | null {
    const ids = this.pieces.map((piece) => piece.id);
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

  /** Generate a text, which replaces the previous one. */
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

/** Return the token id of a text; null if the text is not a single token. */
export async function idOf(model: string, text: string): Promise<number | null> {
  const answer = await call<{ tokens: number[] }>("/tokenize", { model, prompt: text, add_special_tokens: false });
  return answer.tokens.length === 1 ? answer.tokens[0]! : null;
}
