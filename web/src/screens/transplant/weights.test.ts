import { expect, test } from "vitest";
import type { FormGroup, Taken, Transplanted } from "../../api";
import { examplesOf } from "./examples";
import { groupsOf, pattern, reasonsOf, shareOf, strength, sumsOf, tintsOf } from "./weights";

const taken = (how: Taken["how"], sources: string[] = [], note = ""): Taken => ({ how, sources, note });
const answer = {
  sizes: { "embedding.token.weight": 100, "blocks.0.mixer.q.weight": 40, "blocks.1.mixer.q.weight": 40, "blocks.1.mixer.o.weight": 20 },
  donated: { "embedding.token.weight": 100, "blocks.0.mixer.q.weight": 40, "blocks.1.mixer.q.weight": 10, "blocks.1.mixer.o.weight": 0 },
  report: {
    tensors: {
      "embedding.token.weight": taken("kept", ["embedding.token.weight"]),
      "blocks.0.mixer.q.weight": taken("kept", ["blocks.0.mixer.q.weight"]),
      "blocks.1.mixer.q.weight": taken("grown", ["blocks.3.mixer.q.weight"], "4 new H, as initialized"),
      "blocks.1.mixer.o.weight": taken("new", [], "as initialized"),
    },
    promises: {
      "blocks.0.mixer": { start: "rounded", why: "equal heads" },
      "blocks.1.mixer": { start: "changed", why: "num_heads differs" },
      "blocks.2.mixer": { start: "changed", why: "num_heads differs" },
      embedding: { start: "same", why: "" },
    },
  },
} as unknown as Transplanted;

test("tensors that differ in the number of their layer are one group", () => {
  expect(pattern("blocks.12.mixer.parts.0.q.weight")).toBe("blocks.*.mixer.parts.*.q.weight");
  const groups = groupsOf(answer);
  expect(groups.map(({ name, how, tensors, size }) => [name, how, tensors, size])).toEqual([
    ["embedding.token.weight", "kept", 1, 100], ["blocks.*.mixer.q.weight", "kept", 1, 40],
    ["blocks.*.mixer.q.weight", "grown", 1, 40], ["blocks.*.mixer.o.weight", "new", 1, 20],
  ]);
  expect(groups.map((group) => group.source)).toEqual(["", "", "", ""]);
  expect(groupsOf(answer, "blocks.*.mixer.q").map(({ tensors }) => tensors)).toEqual([1, 1]);
  expect(groupsOf(answer, "blocks.*.mix")).toEqual([]);
  expect(sumsOf(groups)).toEqual([
    { how: "kept", tensors: 2, size: 140 }, { how: "grown", tensors: 1, size: 40 }, { how: "new", tensors: 1, size: 20 },
  ]);
  expect(shareOf(answer)).toBe(0.75);
});

test("reasons are given once, the worst first", () => {
  expect(reasonsOf(answer)).toEqual([
    { start: "changed", why: "num_heads differs", places: [{ name: "blocks.*.mixer", count: 2 }] },
    { start: "rounded", why: "equal heads", places: [{ name: "blocks.*.mixer", count: 1 }] },
  ]);
});

test("a box is tinted by its share of new weights, over all of its layers", () => {
  const tints = tintsOf(answer, ["blocks.*.mixer.q", "blocks.*.mixer.o", "blocks.*.mixer.k", "blocks.1.mixer.q", "embedding"]);
  expect([...tints]).toEqual([["blocks.*.mixer.q", 0.375], ["blocks.*.mixer.o", 1], ["blocks.1.mixer.q", 0.75], ["embedding", 0]]);
});

test("tokens are tinted by how far their prediction moved", () => {
  expect([null, 0, 0.01, 0.3, 9].map(strength)).toEqual([0, 0, 1, 3, 5]);
});

test("examples are changes that the specification can take", () => {
  const layers = (value: Record<string, unknown>) => ({ path: "layers[*]", definition: "Block", layers: 4, value }) as FormGroup;
  const changes = (mixer: Record<string, unknown>, count = 4) => examplesOf([layers({ mixer })], count).map((example) => example.change);
  expect(changes({ kind: "attention", num_heads: 8, num_kv_heads: 2 })).toEqual([
    "layers[*].mixer.num_kv_heads=1", "layers[*].mixer.num_kv_heads=8", "layers[::2].mixer.pattern={kind: window, size: 64}",
    "layers[1::2].mixer={kind: gated_delta_net, num_heads: 8}", "num_layers=3", "num_layers=5",
  ]);
  expect(changes({ kind: "attention", num_heads: 8, num_kv_heads: null })[0]).toBe("layers[*].mixer.num_kv_heads=4");
  expect(changes({ kind: "mamba" }, 1)).toEqual(["num_layers=2"]);
  expect(examplesOf([{ path: "encoder.layers[*]", definition: "Block", layers: 4, value: {} }], 8)).toEqual([]);
});
