import { expect, test } from "vitest";
import type { Evaluated, ModelInfo } from "../../api";
import { describe, mixers } from "./describe";
import { exampleOf } from "./example";

function evaluated(kind: string, groups: [string, number][], cost: { active?: number; state?: number; perToken?: number } = {}): Evaluated {
  return {
    kind,
    num_layers: groups.reduce((sum, [, layers]) => sum + layers, 0),
    form: [{ path: "", layers: 0, value: { d_model: 1024 } }, ...groups.map(([mixer, layers]) => ({ path: "layers", layers, value: { mixer: { kind: mixer } } }))],
    cost: {
      parameters: { total: 8_030_261_248, active: cost.active ?? 8_030_261_248 }, flops: { forward: 2e12, decode: 16e9 }, dtype: "bfloat16",
      state: { bytes: cost.state ?? 0, bytes_per_token: cost.perToken ?? 0 }, memory: { weights: 2 ** 34 },
    },
  } as unknown as Evaluated;
}

test("a decoder is described with its layers, its active parameters and its cache", () => {
  const answer = evaluated("decoder", [["attention", 8], ["none", 1], ["mamba", 24], ["attention", 4]], { active: 2e9, state: 2 ** 20, perToken: 131_072 });
  expect(mixers(answer)).toEqual([{ name: "attention", layers: 12 }, { name: "mamba", layers: 24 }]);
  expect(describe(answer, { name: "m" }).join(" ")).toBe(
    "It reads a text from left to right and predicts the next token. It has 8.03 G parameters (2 G active per token) in 37 layers of width 1,024, " +
      "with attention in 12 and Mamba in 24. In bfloat16 its weights take 16 GiB. Each additional token costs 16 G FLOPs and 128 KiB of KV cache.",
  );
});

test("a recurrent state does not grow, and an encoder has none", () => {
  expect(describe(evaluated("decoder", [["lstm", 2]], { state: 4096 }), { name: "m" }).at(-1)).toBe("Each additional token costs 16 G FLOPs and no additional memory: its state stays at 4 KiB.");
  const encoder = describe(evaluated("encoder", [["attention", 12]]), { name: "m", head: "masked_language_model" });
  expect([encoder[1], encoder.at(-1)]).toEqual(["It fills in masked tokens.", "One forward pass costs 2 T FLOPs."]);
});

test("the example is what the model can do", () => {
  const task = (model: Partial<ModelInfo>) => exampleOf({ name: "m", ...model }).task;
  expect([
    task({ kind: "decoder", generates: true }), task({ kind: "encoder_decoder", generates: true }), task({ kind: "encoder", head: "masked_language_model" }),
    task({ kind: "encoder", head: "classification" }), task({ kind: "encoder" }),
  ]).toEqual(["write", "translate", "fill", "classify", "embed"]);
  expect(exampleOf({ name: "m", generates: true, prompt: "Attention is" }).input).toBe("Attention is");
});
