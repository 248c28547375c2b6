import { formatHash, parseHash } from "./address";
import { api, type ModelInfo, type PresetInfo } from "./api";
import { screens } from "./screens";

/**
 * The state of the web UI, stored in its address: the same address shows the same page.
 *
 * Shared names: `model`, `spec` (see `originOf`), and the selection `layer`, `head`, `token`, `position`.
 * A screen may add other names.
 */
class PageState {
  #address = $state(parseHash(window.location.hash));
  #late = 0; // timer of a pending update of the browser's address bar

  constructor() {
    window.addEventListener("hashchange", () => {
      this.#cancel();
      this.#address = parseHash(window.location.hash);
    });
  }

  get screen(): string {
    return screens.some((screen) => screen.id === this.#address.screen) ? this.#address.screen : screens[0]!.id;
  }

  /** The value of a name; empty if the address has none. */
  get(name: string): string {
    return this.#address.values[name] ?? "";
  }

  /** A value as a number; null if there is none. */
  number(name: string): number | null {
    const value = this.get(name);
    return value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  }

  /** Change values; null and "" remove a value. `step` adds an entry to the browser's history. */
  set(values: Record<string, string | number | boolean | null>, step = false): void {
    this.#write(this.screen, values, step);
  }

  /** Open a screen, and change values. */
  open(screen: string, values: Record<string, string | number | null> = {}): void {
    this.#write(screen, values, true);
  }

  /** Return the address of a screen with the current values, updated with others. */
  link(screen: string, values: Record<string, string> = {}): string {
    return formatHash({ screen, values: { ...this.#address.values, ...values } });
  }

  #write(screen: string, values: Record<string, string | number | boolean | null>, step: boolean): void {
    const all = { ...this.#address.values };
    for (const [name, value] of Object.entries(values)) all[name] = value === null || value === false ? "" : String(value);
    const address = { screen, values: Object.fromEntries(Object.entries(all).filter(([, value]) => value !== "")) };
    const [before, hash] = [formatHash(this.#address), formatHash(address)];
    if (hash === before) return;
    this.#address = address;
    const isLate = this.#cancel();
    if (step) {
      if (isLate) window.history.replaceState(null, "", before);
      window.history.pushState(null, "", hash);
    } else {
      // replaceState takes milliseconds, and Safari refuses many calls in a row, so changes are collected
      const shown = window.location.hash;
      this.#late = window.setTimeout(() => {
        this.#late = 0;
        if (window.location.hash === shown) window.history.replaceState(null, "", hash); // else the user has navigated away
      }, 50);
    }
  }

  /** Cancel a pending update of the address bar; return whether there was one. */
  #cancel(): boolean {
    const isLate = this.#late !== 0;
    window.clearTimeout(this.#late);
    this.#late = 0;
    return isLate;
  }
}

export const page = new PageState();

/** The selection that all views share; each field is null if nothing is selected. */
export const selection = {
  get layer() {
    return page.number("layer");
  },
  get head() {
    return page.number("head");
  },
  get token() {
    return page.number("token");
  },
  get position() {
    return page.number("position");
  },
  select(values: Partial<Record<"layer" | "head" | "token" | "position", number | null>>): void {
    page.set(values);
  },
};

/** The server's models and the presets. */
class Catalogue {
  models = $state<ModelInfo[]>([]);
  presets = $state<PresetInfo[]>([]);
  devices = $state<string[]>([]);
  ready = $state(false);
  error = $state("");

  async load(): Promise<void> {
    try {
      const [models, presets] = await Promise.all([api.models(), api.presets()]);
      this.models = models.models;
      this.presets = presets.presets;
      this.devices = presets.devices;
      this.ready = true;
    } catch (error) {
      this.error = (error as Error).message;
    }
  }

  /** The model in the address, or else the first. */
  get model(): ModelInfo | null {
    return this.models.find((candidate) => candidate.name === page.get("model")) ?? this.models[0] ?? null;
  }
}

export const catalogue = new Catalogue();

/** Whether the page is dark: the user's choice, or else the system's setting. */
class Theme {
  #system = window.matchMedia("(prefers-color-scheme: dark)");
  #chosen = $state<string | null>(window.localStorage.getItem("theme"));
  #systemIsDark = $state(this.#system.matches);

  constructor() {
    this.#system.addEventListener("change", (event) => (this.#systemIsDark = event.matches));
  }

  get dark(): boolean {
    return this.#chosen ? this.#chosen === "dark" : this.#systemIsDark;
  }

  toggle(): void {
    this.#chosen = this.dark ? "light" : "dark";
    window.localStorage.setItem("theme", this.#chosen);
  }
}

export const theme = new Theme();
