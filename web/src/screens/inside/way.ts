import type { Station } from "./inspection.svelte";

/** Return the number of layers of the longest stack. */
export function layersOf(stations: Station[]): number {
  return 1 + Math.max(-1, ...stations.map((station) => station.layer ?? -1));
}

/** Return a station's name in the address: its box, with a number if the box has several stations in the layer. */
export function partOf(stations: Station[], number: number): string {
  const { box, layer } = stations[number]!;
  const before = stations.slice(0, number).filter((station) => station.box === box && station.layer === layer).length;
  return before ? `${box}#${before}` : box;
}

/** Find the station that an address names. Fall back to the box in another layer, then to the first station. */
export function stationAt(stations: Station[], part: string, layer: number | null): number {
  const [box, nth = "0"] = part.split("#");
  const ofBox = stations.flatMap((station, number) => (station.box === box ? [number] : []));
  const here = ofBox.filter((number) => [null, layer ?? 0].includes(stations[number]!.layer));
  return here[Number(nth)] ?? here[0] ?? ofBox[0] ?? 0;
}

/** Return the tint of each box in a layer: the logarithm of its root mean square, scaled to the range over all layers. */
export function tintsOf(stations: Station[], layer: number): { shares: Map<string, number>; low: number; high: number } {
  const sizes = stations.flatMap((station) => (station.rms ? [station.rms] : []));
  const [low, high] = sizes.length ? [Math.min(...sizes), Math.max(...sizes)] : [1, 1];
  const shares = new Map<string, number>();
  for (const station of stations) {
    if (station.layer !== null && station.layer !== layer) continue;
    shares.set(station.box, !station.rms ? 0 : high === low ? 1 : 0.08 + 0.92 * (Math.log(station.rms / low) / Math.log(high / low)));
  }
  return { shares, low, high };
}

/** Return the rows and columns that display a shape: the last axis across, and a vector wrapped into rows. */
export function asRows(shape: number[]): [number, number] {
  const count = shape.reduce((product, size) => product * size, 1);
  if (shape.length > 1 && shape.at(-1)! > 1) return [count / shape.at(-1)!, shape.at(-1)!];
  const across = Math.min(count, count > 512 ? 64 : 32);
  return [Math.ceil(count / across), across];
}
