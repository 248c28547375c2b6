import { expect, test } from "vitest";
import { bounds, colourOf, entryOf, flat } from "./paint";

test("a value maps to one of 256 equal parts of the range, and values outside are clamped", () => {
  const range = { low: -1, high: 1 };
  expect([-5, -1, -0.9922, 0, 0.9921, 1, 5].map((value) => entryOf(value, range))).toEqual([0, 0, 0, 128, 254, 255, 255]);
  expect(entryOf(3, { low: 3, high: 3 })).toBe(0);
});

test("a logarithmic scale spans four decades below the highest value", () => {
  const how = { low: 0, high: 1, scale: "log" } as const;
  expect([0, 1e-5, 1e-4, 1e-2, 1].map((value) => entryOf(value, how))).toEqual([0, 0, 0, 128, 255]);
});

test("text is white on dark colors and black on light ones", () => {
  const how = { low: 0, high: 1 };
  expect(colourOf(0, how)).toEqual({ background: "rgb(68 1 84)", light: true });
  expect(colourOf(1, how)).toEqual({ background: "rgb(253 231 37)", light: false });
});

test("bounds ignore values that are not finite", () => {
  expect(bounds([NaN, 3, null, -2, Infinity])).toEqual([-2, 3]);
  expect(bounds([null, NaN])).toEqual([0, 1]);
});

test("rows are concatenated, with NaN for missing values", () => {
  expect([...flat([[1, null], [3, 4]])]).toEqual([1, NaN, 3, 4]);
  expect(flat([])).toHaveLength(0);
});
