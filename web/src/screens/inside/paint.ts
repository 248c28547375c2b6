import { palette as table, type PaletteName } from "../../palette";

export type Scale = "linear" | "log";

export interface Painting {
  low: number;
  high: number;
  scale?: Scale;
  palette?: PaletteName;
  upwards?: boolean;
}

const LOG_START = 1e-4; // share of the highest value at which a logarithmic scale begins
const TRANSPARENT = 0; // pixel of a missing value

/** Return the index of a value's color, as in matplotlib: the range is split into 256 equal parts. */
export function entryOf(value: number, { low, high, scale = "linear" }: Painting): number {
  return entry(value, low, high - low || 1, scale === "log");
}

function entry(value: number, low: number, range: number, isLog: boolean): number {
  let share = (value - low) / range;
  if (isLog) share = share <= LOG_START ? 0 : 1 - Math.log(share) / Math.log(LOG_START);
  return Math.trunc(Math.max(0, Math.min(255, share * 256)));
}

/** Paint a matrix with one pixel per cell, the first row at the top, or at the bottom with `upwards`. */
export function paint(values: ArrayLike<number>, rows: number, columns: number, how: Painting): ImageData {
  const [range, isLog] = [how.high - how.low || 1, how.scale === "log"]; // computed once, as there may be a million cells
  const picture = new ImageData(Math.max(1, columns), Math.max(1, rows));
  // the four bytes of a pixel as one integer
  const [pixels, colours] = [picture.data, table(how.palette ?? "viridis", false)].map((bytes) => new Uint32Array(bytes.buffer));
  for (let row = 0; row < rows; row += 1) {
    const from = columns * (how.upwards ? rows - 1 - row : row);
    for (let column = 0; column < columns; column += 1) {
      const value = values[from + column]!;
      pixels![row * columns + column] = Number.isFinite(value) ? colours![entry(value, how.low, range, isLog)]! : TRANSPARENT;
    }
  }
  return picture;
}

/** Return the pixel of each byte in the server's maps: 0 is a masked pair, 1 to `high` are weights. */
export function byteColours(high: number): Uint32Array {
  const bytes = Float32Array.from({ length: 256 }, (_, byte) => (byte ? byte - 1 : NaN));
  return new Uint32Array(paint(bytes, 1, 256, { low: 0, high: high - 1 }).data.buffer);
}

/** Return a color of the palette as CSS, and whether white text is easier to read on it than black (WCAG 2.2). */
export function colourOf(value: number, how: Painting): { background: string; light: boolean } {
  const colours = table(how.palette ?? "viridis", false);
  const [red, green, blue] = colours.subarray(4 * entryOf(value, how)) as unknown as [number, number, number];
  const [r, g, b] = [red, green, blue].map((channel) => (channel <= 10 ? channel / 3294 : ((channel / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  return { background: `rgb(${red} ${green} ${blue})`, light: 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 };
}

/** Return the minimum and maximum of the finite values. */
export function bounds(values: Iterable<number | null>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

/** Concatenate rows; missing values become NaN. */
export function flat(rows: (number | null)[][]): Float64Array {
  const width = rows[0]?.length ?? 0;
  const values = new Float64Array(rows.length * width);
  rows.forEach((row, index) => row.forEach((value, column) => (values[index * width + column] = value ?? NaN)));
  return values;
}
