import { call } from "../../api";

/** Responses about training runs; see archetype/apps/serve/runs.py. */
export interface RunRow {
  name: string;
  updated: number;
  training: boolean;
  problem?: string;
  spec?: string;
  kind?: string;
  parameters?: number;
  step?: number;
  steps?: number | null;
  loss?: number | null;
  best_validation_loss?: number | null;
  per_second?: number | null;
  changes?: Record<string, unknown>;
}

export interface Buckets {
  x: number[];
  min: (number | null)[];
  max: (number | null)[];
  mean: (number | null)[];
  ema: (number | null)[];
}

export interface Curves {
  name: string;
  version: number;
  next: number;
  training: boolean;
  x: string;
  names: string[];
  series: Record<string, Buckets>;
  samples: { step: number; text: string }[];
  peak_flops: number;
}

export interface Details {
  name: string;
  recipe: string;
  spec: string;
  environment: Record<string, unknown>;
}

export const AXES: Record<string, string> = { step: "steps", tokens: "tokens", flops: "FLOPs", seconds: "training seconds" };
export const COLOURS = ["#2f6fd0", "#d0672f", "#2f9e62", "#9a57c8", "#c43d66", "#1f9bb0", "#8a7a1c", "#6b6f7a", "#b8489c", "#4a8a1f"];
const POINTS = 400; // maximum per curve

/** Curves of the selected runs, updated while the runs are training. */
export class RunCurves {
  of = $state.raw<Record<string, Curves>>({});
  error = $state("");
  #settings = "";

  /** Fetch new points of each run, or all points if the axis or the smoothing has changed. */
  async refresh(names: string[], x: string, smoothing: number): Promise<void> {
    const settings = `${x} ${smoothing}`;
    const known = settings === this.#settings ? this.of : {};
    this.#settings = settings;
    try {
      const pairs = await Promise.all(names.map(async (name) => [name, await this.#newest(name, known[name], x, smoothing)] as const));
      if (settings !== this.#settings) return;
      if (pairs.some(([name, curves]) => curves !== this.of[name]) || pairs.length !== Object.keys(this.of).length) this.of = Object.fromEntries(pairs);
      this.error = "";
    } catch (problem) {
      this.error = (problem as Error).message;
    }
  }

  async #newest(name: string, known: Curves | undefined, x: string, smoothing: number): Promise<Curves> {
    const path = `/api/runs/${name.split("/").map(encodeURIComponent).join("/")}/metrics?points=${POINTS}&x=${x}&smoothing=${smoothing}`;
    if (!known) return call<Curves>(path);
    const added = await call<Curves>(`${path}&after=${known.next}`);
    if (added.version !== known.version) return call<Curves>(path);
    const count = Object.values(added.series).reduce((sum, buckets) => sum + buckets.x.length, 0);
    if (!count && !added.samples.length && added.training === known.training) return known;
    const series = { ...known.series };
    for (const [key, buckets] of Object.entries(added.series)) {
      const before = series[key];
      series[key] = before
        ? { x: [...before.x, ...buckets.x], min: [...before.min, ...buckets.min], max: [...before.max, ...buckets.max], mean: [...before.mean, ...buckets.mean], ema: [...before.ema, ...buckets.ema] }
        : buckets;
      if (series[key]!.x.length > 2 * POINTS) return call<Curves>(path);
    }
    return { ...added, series, samples: [...known.samples, ...added.samples] };
  }
}
