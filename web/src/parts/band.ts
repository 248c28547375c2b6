/** Moving mean of an oscillating curve, with the minimum and maximum of each window. */
export interface Band {
  mean: number[];
  low: number[];
  high: number[];
}

/** Compute the band of a curve. A window includes `half` values on either side, fewer near the ends so that it stays symmetric. */
export function band(y: number[], half: number): Band {
  const result: Band = { mean: [], low: [], high: [] };
  y.forEach((_, at) => {
    const reach = Math.min(half, at, y.length - 1 - at);
    const window = y.slice(at - reach, at + reach + 1);
    result.mean.push(window.reduce((sum, value) => sum + value, 0) / window.length);
    result.low.push(Math.min(...window));
    result.high.push(Math.max(...window));
  });
  return result;
}
