import type { FormGroup } from "../../api";

export interface Example {
  title: string;
  change: string;
}

/** The text that models are compared on until another one is typed. */
export const TEXT =
  "The model reads a text from left to right and predicts the next word. What it predicts depends on the words before: after one dog and two dogs come three dogs, and after one cat and two cats come three";

/** Changes that a specification of these fields can take, as `archetype set` writes them. */
export function examplesOf(form: FormGroup[], numLayers: number): Example[] {
  const mixers = form.filter((group) => group.layers).map((group) => group.value.mixer as Record<string, unknown> | undefined);
  const first = mixers.find((mixer) => mixer?.kind === "attention");
  const inStack = form.some((group) => group.path.startsWith("layers["));
  if (!inStack || numLayers < 1) return [];
  const examples: Example[] = [];
  if (first) {
    const [heads, kept] = [Number(first.num_heads), Number(first.num_kv_heads ?? first.num_heads)];
    const all = mixers.every((mixer) => mixer?.kind === "attention");
    if (kept > 1 && all) examples.push({ title: "Fewer key heads", change: `layers[*].mixer.num_kv_heads=${kept % 2 ? 1 : kept / 2}` });
    if (kept < heads && all) examples.push({ title: "One key head per query head", change: `layers[*].mixer.num_kv_heads=${heads}` });
    if (all) examples.push({ title: "Sliding window in every second layer", change: "layers[::2].mixer.pattern={kind: window, size: 64}" });
    if (all) examples.push({ title: "Gated DeltaNet in every second layer", change: `layers[1::2].mixer={kind: gated_delta_net, num_heads: ${heads}}` });
  }
  if (numLayers > 1) examples.push({ title: "One layer fewer", change: `num_layers=${numLayers - 1}` });
  examples.push({ title: "One layer more", change: `num_layers=${numLayers + 1}` });
  return examples;
}
