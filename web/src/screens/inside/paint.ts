import { palette as table, type PaletteName } from "../../palette";

export type Scale = "linear" | "log";

export interface Painting {
  low: number;
  high: number;
  scale?: Scale;
  palette?: PaletteName;
  upwards?: boolean;
}

const LEAST = 1e-4; // of the highest number: where the logarithm's colours begin
const NOTHING = 0; // the pixel of what is no number: transparent, so that it looks as the paper

/** The place of a number among 256 colours, as matplotlib finds it: of 256 equal shares of the range. */
export function entryOf(value: number, { low, high, scale = "linear" }: Painting): number {
  return entry(value, low, high - low || 1, scale === "log");
}

function entry(value: number, low: number, range: number, isLog: boolean): number {
  let share = (value - low) / range;
  if (isLog) share = share <= LEAST ? 0 : 1 - Math.log(share) / Math.log(LEAST);
  return Math.trunc(Math.max(0, Math.min(255, share * 256)));
}

/** A matrix as a picture, a pixel for each cell, the first row above or below. */
export function paint(values: ArrayLike<number>, rows: number, columns: number, how: Painting): ImageData {
  const [range, isLog] = [how.high - how.low || 1, how.scale === "log"]; // once, for there may be a million cells
  const picture = new ImageData(Math.max(1, columns), Math.max(1, rows));
  // a pixel's four bytes as one number
  const [pixels, colours] = [picture.data, table(how.palette ?? "viridis", false)].map((bytes) => new Uint32Array(bytes.buffer));
  for (let row = 0; row < rows; row += 1) {
    const from = columns * (how.upwards ? rows - 1 - row : row);
    for (let column = 0; column < columns; column += 1) {
      const value = values[from + column]!;
      pixels![row * columns + column] = Number.isFinite(value) ? colours![entry(value, how.low, range, isLog)]! : NOTHING;
    }
  }
  return picture;
}

/** The pixel of each byte of the server's maps: 0 is a pair that is not allowed, from 1 to `high` are weights. */
export function byteColours(high: number): Uint32Array {
  const bytes = Float32Array.from({ length: 256 }, (_, byte) => (byte ? byte - 1 : NaN));
  return new Uint32Array(paint(bytes, 1, 256, { low: 0, high: high - 1 }).data.buffer);
}

/** A colour of the palette as CSS, and whether white is easier to read on it than black (WCAG 2.2). */
export function colourOf(value: number, how: Painting): { background: string; light: boolean } {
  const colours = table(how.palette ?? "viridis", false);
  const [red, green, blue] = colours.subarray(4 * entryOf(value, how)) as unknown as [number, number, number];
  const [r, g, b] = [red, green, blue].map((one) => (one <= 10 ? one / 3294 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  return { background: `rgb(${red} ${green} ${blue})`, light: 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 };
}

/** The least and the greatest of finite numbers. */
export function bounds(values: Iterable<number | null>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

/** Rows of numbers one after the other; what is no number is NaN. */
export function flat(rows: (number | null)[][]): Float64Array {
  const width = rows[0]?.length ?? 0;
  const values = new Float64Array(rows.length * width);
  rows.forEach((row, index) => row.forEach((value, column) => (values[index * width + column] = value ?? NaN)));
  return values;
}
