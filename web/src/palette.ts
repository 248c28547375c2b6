import { interpolateCividis, interpolatePuOr, interpolateViridis } from "d3-scale-chromatic";

export type PaletteName = "viridis" | "cividis" | "signed" | "mask";

const tables = new Map<string, Uint8ClampedArray>();

/** 256 RGBA colors, from the lowest value to the highest. */
export function palette(name: PaletteName, dark: boolean): Uint8ClampedArray {
  const key = name === "mask" ? `mask ${dark}` : name;
  const known = tables.get(key);
  if (known) return known;
  const table = new Uint8ClampedArray(256 * 4);
  for (let entry = 0; entry < 256; entry += 1) {
    table.set([...colour(name, entry / 255, dark), 255], 4 * entry);
  }
  tables.set(key, table);
  return table;
}

function colour(name: string, share: number, dark: boolean): number[] {
  if (name === "mask") {
    const [none, full] = dark ? [[32, 37, 45], [123, 166, 230]] : [[238, 241, 245], [61, 111, 184]];
    return none!.map((low, channel) => low + share * (full![channel]! - low));
  }
  const text = (name === "cividis" ? interpolateCividis : name === "signed" ? interpolatePuOr : interpolateViridis)(share);
  return text.startsWith("#") ? [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)) : text.match(/\d+/g)!.map(Number);
}
