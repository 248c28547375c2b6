import { formatHash, parseHash } from "./address";
import { api, type ModelInfo, type PresetInfo } from "./api";
import { screens } from "./screens";

/**
 * What the page shows, kept in its address: whoever opens the same address sees the same.
 *
 * Shared names: `model`, `spec` (see `specOrigin`), and the selection `layer`, `head`, `token`, `position`.
 * A screen may add names of its own.
 */
class PageState {
  #address = $state(parseHash(window.location.hash));
  #late = 0; // a timer, until the address stands in the browser's bar too

  constructor() {
    window.addEventListener("hashchange", () => {
      this.#cancel();
      this.#address = parseHash(window.location.hash);
    });
  }

  get screen(): string {
    return screens.some((one) => one.id === this.#address.screen) ? this.#address.screen : screens[0]!.id;
  }

  /** The value of a name; empty where the address has none. */
  get(name: string): string {
    return this.#address.values[name] ?? "";
  }

  /** A value as a number; null where there is none. */
  number(name: string): number | null {
    const value = this.get(name);
    return value === "" || !Number.isFinite(Number(value)) ? null : Number(value);
  }

  /** Change values; null and "" take one away. `step` adds an entry to the browser's history. */
  set(values: Record<string, string | number | boolean | null>, step = false): void {
    this.#write(this.screen, values, step);
  }

  /** Open a screen, and change values. */
  open(screen: string, values: Record<string, string | number | null> = {}): void {
    this.#write(screen, values, true);
  }

  /** The address of a screen with the present values, and others. */
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
      // it takes the browser milliseconds, and Safari refuses many in a row: after the frame, once for all changes till then
      const shown = window.location.hash;
      this.#late = window.setTimeout(() => {
        this.#late = 0;
        if (window.location.hash === shown) window.history.replaceState(null, "", hash); // else someone has gone elsewhere
      }, 50);
    }
  }

  /** Leave the browser's bar as it is; whether it was behind. */
  #cancel(): boolean {
    const isLate = this.#late !== 0;
    window.clearTimeout(this.#late);
    this.#late = 0;
    return isLate;
  }
}

export const page = new PageState();

/** The one place that all views look at; each part is null where nothing is chosen. */
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

/** What the server has: its models and the presets. */
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

  /** The model of the address, or else the first. */
  get model(): ModelInfo | null {
    return this.models.find((one) => one.name === page.get("model")) ?? this.models[0] ?? null;
  }
}

export const catalogue = new Catalogue();

/** Whether the page is dark: as the reader chose, or else as the system is. */
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
