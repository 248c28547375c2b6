import { unpackText } from "./address";
import { api, type Evaluated, type EvaluateRequest, type Origin, type Problem, type Refused } from "./api";
import { catalogue } from "./state.svelte";

/** Default of `spec` in an address: the served model, or else a well-known preset. */
export function defaultSpec(): string {
  return catalogue.model ? `model:${catalogue.model.name}` : "preset:llama-3-8b";
}

/** Parse an address value: `preset:NAME`, `model:NAME`, or `yaml:` with a packed text. */
export async function originOf(value: string): Promise<Origin> {
  const [kind, name = ""] = value.split(/:(.*)/s);
  if (kind === "yaml") return { source: await unpackText(name) };
  return kind === "model" ? { model: name } : { preset: name };
}

/** The server's answer to the latest request about a specification. A new request cancels older ones. */
export class Latest<Asked, Answer extends { ok: true; problems: Problem[] }> {
  answer = $state.raw<Answer | null>(null);
  problems = $state.raw<Problem[]>([]);
  error = $state("");
  busy = $state(false);
  milliseconds = $state(0);
  #running: AbortController | null = null;
  #send: (request: Asked, signal: AbortSignal) => Promise<Answer | Refused>;

  constructor(send: (request: Asked, signal: AbortSignal) => Promise<Answer | Refused>) {
    this.#send = send;
  }

  /** Send a request. The last valid answer stays until the next one arrives. */
  async run(request: Asked): Promise<Answer | null> {
    this.#running?.abort();
    const running = (this.#running = new AbortController());
    this.busy = true;
    const started = performance.now();
    try {
      const answer = await this.#send(request, running.signal);
      if (running !== this.#running) return null;
      this.problems = answer.problems;
      this.error = "";
      if (answer.ok) this.answer = answer;
      return answer.ok ? answer : null;
    } catch (error) {
      if (running === this.#running) this.error = (error as Error).message;
      return null;
    } finally {
      if (running === this.#running) {
        this.busy = false;
        this.milliseconds = performance.now() - started;
      }
    }
  }

  /** Cancel the request that is running. */
  stop(): void {
    this.#running?.abort();
    this.#running = null;
    this.busy = false;
  }
}

/** The server's evaluation of a specification. */
export class Evaluation extends Latest<EvaluateRequest, Evaluated> {
  constructor() {
    super(api.evaluate);
  }
}
