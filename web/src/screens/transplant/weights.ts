import type { How, Start, Transplanted } from "../../api";

export const HOWS: How[] = ["kept", "cut", "grown", "merged", "copied", "new"];
export const STARTS: Record<Start, string> = { same: "bit-identical", rounded: "equal up to rounding", changed: "changed" };

/** Tensors whose names differ in numbers only, and that have the same origin. */
export interface Group {
  name: string;
  how: How;
  note: string;
  source: string;
  tensors: number;
  size: number;
}

/** A name with * for each number: blocks.3.mixer.q.weight as blocks.*.mixer.q.weight. */
export function pattern(name: string): string {
  return name.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");
}

/** An expression for the names of the tensors inside a box of the diagram; * in its name stands for all layers. */
function inside(box: string): RegExp {
  return new RegExp(`^${box.replace(/[.+?^${}()|[\]\\*]/g, "\\$&").replaceAll("\\*", "[^.]+")}(\\.|$)`);
}

/** The new model's tensors, in its order: all, or those of a box. */
export function groupsOf({ report, sizes }: Transplanted, box = ""): Group[] {
  const groups = new Map<string, Group>();
  for (const [name, size] of Object.entries(sizes)) {
    if (box && !inside(box).test(name)) continue;
    const { how, note, sources } = report.tensors[name]!;
    const [shown, source] = [pattern(name), sources.map(pattern).join(", ")];
    const key = JSON.stringify([shown, how, note, source]);
    const group = groups.get(key) ?? { name: shown, how, note, source: source === shown ? "" : source, tensors: 0, size: 0 };
    groups.set(key, { ...group, tensors: group.tensors + 1, size: group.size + size });
  }
  return [...groups.values()];
}

/** Number of tensors and weights by what became of them; without the kinds that do not occur. */
export function sumsOf(groups: Group[]): { how: How; tensors: number; size: number }[] {
  return HOWS.map((how) => {
    const of = groups.filter((group) => group.how === how);
    return { how, tensors: of.reduce((sum, group) => sum + group.tensors, 0), size: of.reduce((sum, group) => sum + group.size, 0) };
  }).filter((sum) => sum.tensors);
}

/** The share of the new model's weights that are the donor's. */
export function shareOf({ sizes, donated }: Transplanted): number {
  const sum = (numbers: Record<string, number>) => Object.values(numbers).reduce((total, number) => total + number, 0);
  return sum(donated) / Math.max(1, sum(sizes));
}

/** Why the output may differ, the worst first, with the places where. */
export function reasonsOf({ report }: Transplanted): { start: Start; why: string; places: { name: string; count: number }[] }[] {
  const reasons = new Map<string, { start: Start; why: string; places: Map<string, number> }>();
  for (const [place, { start, why }] of Object.entries(report.promises)) {
    if (!why) continue;
    const key = `${start} ${why}`;
    const reason = reasons.get(key) ?? { start, why, places: new Map<string, number>() };
    reason.places.set(pattern(place), (reason.places.get(pattern(place)) ?? 0) + 1);
    reasons.set(key, reason);
  }
  const order = Object.keys(STARTS);
  const worst = [...reasons.values()].sort((a, b) => order.indexOf(b.start) - order.indexOf(a.start));
  return worst.map(({ start, why, places }) => ({ start, why, places: [...places].map(([name, count]) => ({ name, count })) }));
}

/** The share of each box's weights that are not the donor's, for the boxes of a diagram that have weights. */
export function tintsOf({ sizes, donated }: Transplanted, boxes: string[]): Map<string, number> {
  const tints = new Map<string, number>();
  for (const box of boxes) {
    const names = inside(box);
    let [size, own] = [0, 0];
    for (const [name, entries] of Object.entries(sizes)) {
      if (names.test(name)) [size, own] = [size + entries, own + (donated[name] ?? 0)];
    }
    if (size) tints.set(box, 1 - own / size);
  }
  return tints;
}

/** Strength of a token's tint, from 0 to 5, by the KL divergence at its position. */
export function strength(kl: number | null | undefined): number {
  if (kl === null || kl === undefined) return 0;
  return [0.01, 0.05, 0.2, 0.8, 2.5].filter((bound) => kl >= bound).length;
}
