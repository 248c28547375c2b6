import { packText } from "../../address";
import { api, type EvaluateRequest, type Origin } from "../../api";
import { defaultSpec, Evaluation, originOf } from "../../specification.svelte";
import { page } from "../../state.svelte";
import type { Schema } from "./schema";

const DEBOUNCE = 25; // ms, during rapid changes; a new request cancels the previous one
const BURST = 1000; // ms of typing that count as one change for undo

type Settings = Omit<EvaluateRequest, keyof Origin | "set" | "changes" | "base">;

/**
 * The specification in the address as a text that is edited, with its evaluation by the server. Create it while a
 * component is initialized.
 */
export class Draft {
  readonly evaluation = new Evaluation();
  text = $state("");
  schema = $state.raw<Schema | null>(null);
  #former = $state.raw<string[]>([]);
  #written = ""; // the address value that the text was read from or written to
  #edited = -Infinity; // time of the last keystroke
  #asked = ""; // the settings of the last request
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isGone = false; // derived values must not be read after the screen is closed
  #settings: () => Settings;
  #base: () => string;

  /** The specification in the address, and the one that the edits started from. */
  readonly value = $derived(page.get("spec") || defaultSpec());
  readonly start = $derived(page.get("start") || (this.value.startsWith("yaml:") ? "" : this.value));
  readonly canUndo = $derived(this.#former.length > 0);

  /** `base` returns the specification that the totals are compared with, as in an address: by default, the start. */
  constructor(settings: () => Settings, base?: () => string) {
    this.#settings = settings;
    this.#base = base ?? (() => this.start);
    void api.schema().then((result) => (this.schema = result as Schema));
    $effect(() => {
      const wanted = this.value, before = this.#asked;
      this.#asked = JSON.stringify([this.#settings(), this.#base()]);
      if (wanted !== this.#written) {
        this.#written = wanted;
        void originOf(wanted).then((origin) => this.#ask(origin));
      } else if (this.#asked !== before) this.#schedule();
    });
    $effect(() => () => {
      this.#isGone = true;
      clearTimeout(this.#timer);
    });
  }

  /** Replace the text by what the user has typed. */
  edit(changed: string): void {
    const now = performance.now();
    if (now - this.#edited > BURST) this.#former = [...this.#former.slice(-200), this.text];
    const wait = now - this.#edited > 4 * DEBOUNCE ? 0 : DEBOUNCE;
    this.#edited = now;
    this.text = changed;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (void this.#ask({ source: this.text }), void this.#remember()), wait);
  }

  /** Set a field; the server returns the new text. */
  set(path: string, value: unknown): void {
    void this.#ask({ source: this.text, set: { [path]: value } });
  }

  /** Apply assignments path=value, as `archetype set` takes them. */
  change(changes: string[]): void {
    void this.#ask({ source: this.text, changes });
  }

  undo(): void {
    const last = this.#former.at(-1);
    if (last === undefined) return;
    this.#former = this.#former.slice(0, -1);
    this.#edited = -Infinity;
    this.text = last;
    void this.#remember();
    void this.#ask({ source: this.text });
  }

  /** Start from another specification. */
  choose(spec: string): void {
    this.#former = [];
    page.set({ spec, start: null, length: null, part: null }, true);
  }

  download(): void {
    const link = document.createElement("a");
    const id = this.schema?.$id;
    const line = id && !this.text.startsWith("# yaml-language-server:") ? `# yaml-language-server: $schema=${id}\n` : "";
    link.href = URL.createObjectURL(new Blob([line, this.text], { type: "application/yaml" }));
    link.download = `${this.evaluation.answer?.name.replace(/[^\w.-]+/g, "-") || "specification"}.yaml`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  /** Evaluate a specification. If the server returns another text and the user is not typing, show that text. */
  async #ask(origin: EvaluateRequest): Promise<void> {
    if (this.#isGone) return;
    const [shown, from, now] = [this.text, this.#base(), this.#settings()];
    const base = from ? { base: await originOf(from) } : {};
    const result = await this.evaluation.run({ ...origin, ...now, ...base });
    if (!this.#isGone && result && result.source !== this.text && this.text === shown) {
      const isChange = "set" in origin || "changes" in origin;
      if (isChange) this.#former = [...this.#former, this.text];
      this.text = result.source;
      if (isChange) await this.#remember();
    }
  }

  #schedule(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#ask({ source: this.text }), DEBOUNCE);
  }

  /** Store the text in the address. */
  async #remember(): Promise<void> {
    const from = this.start;
    this.#written = `yaml:${await packText(this.text)}`;
    page.set({ spec: this.#written, start: from });
  }
}
