import type { Station } from "./inspection.svelte";

/** How many layers the longest stack has. */
export function layersOf(stations: Station[]): number {
  return 1 + Math.max(-1, ...stations.map((one) => one.layer ?? -1));
}

/** What the address calls a station: its box, and which of several of this box in the layer it is. */
export function partOf(stations: Station[], number: number): string {
  const { box, layer } = stations[number]!;
  const before = stations.slice(0, number).filter((one) => one.box === box && one.layer === layer).length;
  return before ? `${box}#${before}` : box;
}

/** The station that an address names; of another layer, where this one has none; the first, where there is no such box. */
export function stationAt(stations: Station[], part: string, layer: number | null): number {
  const [box, nth = "0"] = part.split("#");
  const own = stations.flatMap((one, number) => (one.box === box ? [number] : []));
  const here = own.filter((number) => [null, layer ?? 0].includes(stations[number]!.layer));
  return here[Number(nth)] ?? here[0] ?? own[0] ?? 0;
}

/** For each box that has a number in a layer the share of its logarithm between the least and the greatest of all layers. */
export function tintsOf(stations: Station[], layer: number): { shares: Map<string, number>; low: number; high: number } {
  const sizes = stations.flatMap((one) => (one.rms ? [one.rms] : []));
  const [low, high] = sizes.length ? [Math.min(...sizes), Math.max(...sizes)] : [1, 1];
  const shares = new Map<string, number>();
  for (const one of stations) {
    if (one.layer !== null && one.layer !== layer) continue;
    shares.set(one.box, !one.rms ? 0 : high === low ? 1 : 0.08 + 0.92 * (Math.log(one.rms / low) / Math.log(high / low)));
  }
  return { shares, low, high };
}

/** Numbers of any shape as rows and columns: the last axis across; one long row is folded. */
export function asRows(shape: number[]): [number, number] {
  const count = shape.reduce((product, size) => product * size, 1);
  if (shape.length > 1 && shape.at(-1)! > 1) return [count / shape.at(-1)!, shape.at(-1)!];
  const across = Math.min(count, count > 512 ? 64 : 32);
  return [Math.ceil(count / across), across];
}
