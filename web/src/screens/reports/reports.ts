import { numbers } from "../../api";

/** An effect as archetype.studies writes it: the mean with its 95% interval, and the margin of equivalence. */
export interface Effect {
  effect: [number, number | null, number | null];
  margin?: number | null;
  p?: number | null;
  /** After Holm's correction. */
  adjusted_p?: number | null;
}

export function isEffect(value: unknown): value is Effect {
  const effect = (value as Effect | null)?.effect;
  return Array.isArray(effect) && effect.length === 3 && effect.every((value) => value === null || typeof value === "number") && typeof effect[0] === "number";
}

/** Fetch a picture of a report with the user's API key, and return an object URL. */
export async function picture(name: string): Promise<string> {
  const { data } = await numbers(`/api/pictures/${encodeURIComponent(name)}`);
  const type = name.endsWith(".svg") ? "image/svg+xml" : "image/png";
  return URL.createObjectURL(new Blob([data as Uint8Array<ArrayBuffer>], { type }));
}
