const DECIMAL: [number, string][] = [[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"]];
const BINARY: [number, string][] = [[2 ** 50, "PiB"], [2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 6 }); // creating one takes longer than formatting a thousand numbers

/** 28311552 as 28,311,552. */
export function exact(number: number): string {
  return grouped.format(number);
}

/** 28311552 as 28.3 M, as Python's diagram writes it. */
export function short(number: number): string {
  for (const [factor, prefix] of DECIMAL) if (number >= factor) return `${threeDigits(number / factor)} ${prefix}`;
  return number < 1e5 ? exact(Math.round(number)) : `${exact(Math.round(number / 1e3))} K`;
}

/** 28311552 as 27 MiB. */
export function bytes(number: number): string {
  for (const [factor, unit] of BINARY) if (number >= factor) return `${threeDigits(number / factor)} ${unit}`;
  return `${Math.round(number)} B`;
}

/** A time in seconds as ms, s, min or h. */
export function seconds(number: number): string {
  const units: [number, string][] = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
  for (const [factor, unit] of units) if (number >= factor) return `${threeDigits(number / factor)} ${unit}`;
  return `${threeDigits(number / 1e-9)} ns`;
}

/** Three significant digits: 27.04 as 27, 1.2345 as 1.23; integer digits are never dropped. */
export function threeDigits(number: number): string {
  if (Math.abs(number) >= 999.5) return exact(Math.round(number));
  const text = String(Number(number.toPrecision(3)));
  return text.replace(/e([+-])(\d)$/, "e$10$2");
}

/** A share as a percentage with one decimal. */
export function percent(share: number): string {
  const text = (100 * share).toFixed(1);
  return `${text === "-0.0" ? "0.0" : text}%`;
}

/** A relative change with its sign: +12.5%, −3.0%; empty if the values are equal. */
export function change(before: number, after: number): string {
  if (before === after) return "";
  if (before === 0) return "new";
  const share = (100 * (after - before)) / before;
  return `${share > 0 ? "+" : "−"}${Math.abs(share) < 0.05 ? "<0.1" : Math.abs(share).toFixed(1)}%`;
}

/** A token with visible symbols for white space and control characters. */
export function visible(text: string): string {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "·").replace(/[\u0000-\u001f\u007f]/g, "�") || "∅";
}
