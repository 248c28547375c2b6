/** A sampling setting. If it is not set, the model's default applies. */
export interface Setting {
  name: string;
  label: string;
  about: string;
  min?: number;
  max?: number;
  step?: number;
  start?: number;
}

export const settings: Setting[] = [
  { name: "max_tokens", label: "max new tokens", about: "maximum number of tokens to generate", min: 1, step: 1, start: 64 },
  { name: "temperature", label: "temperature", about: "0 always takes the most likely token; higher values give more varied text", min: 0, max: 2, step: 0.05 },
  { name: "top_p", label: "top p", about: "keeps the most likely tokens that together reach this probability", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "top k", about: "keeps this many of the most likely tokens; 0 keeps all", min: 0, step: 1 },
  { name: "min_p", label: "min p", about: "drops tokens below this share of the top token's probability", min: 0, max: 0.99, step: 0.01 },
  { name: "repetition_penalty", label: "repetition penalty", about: "divides the logits of tokens that already occur", min: 0.01, step: 0.05 },
  { name: "presence_penalty", label: "presence penalty", about: "subtracted from the logits of tokens that already occur", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "frequency penalty", about: "subtracted from a token's logit once per occurrence", min: -2, max: 2, step: 0.1 },
  { name: "min_tokens", label: "min new tokens", about: "minimum number of tokens to generate", min: 0, step: 1 },
  { name: "seed", label: "seed", about: "the same seed gives the same text", step: 1 },
];

/** Parse the settings in an address, which are JSON; empty if they are invalid. */
export function parseSettings(text: string): Record<string, unknown> {
  try {
    const value: unknown = text ? JSON.parse(text) : {};
    return value && typeof value === "object" && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

/** Write a request as a curl command. */
export function asCurl(origin: string, path: string, body: Record<string, unknown>): string {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${origin}${path} -H 'content-type: application/json' -d '${json}'`;
}

/** Write a request for openai's Python package. Fields that OpenAI does not have go into extra_body. */
export function asPython(origin: string, path: string, body: Record<string, unknown>): string {
  const known = ["model", "prompt", "messages", "max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs", "top_logprobs", "echo", "n", "stream"];
  const standard = Object.entries(body).filter(([name]) => known.includes(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !known.includes(name)));
  const lines = standard.map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${python(extra)},`);
  const call = path.includes("chat") ? "client.chat.completions.create" : "client.completions.create";
  return `from openai import OpenAI\n\nclient = OpenAI(base_url="${origin}/v1", api_key="none")\nanswer = ${call}(\n${lines.join("\n")}\n)\n`;
}

/** Write a JSON value as a Python literal. */
export function python(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
