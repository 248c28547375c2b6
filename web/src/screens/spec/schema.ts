/** The subset of JSON Schema that specifications use. */
export interface Schema {
  $id?: string;
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string;
  const?: unknown;
  enum?: unknown[];
  default?: unknown;
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  items?: Schema;
  minimum?: number;
  exclusiveMinimum?: number;
  maximum?: number;
}

/** Input element of a field. */
export type Control =
  | { type: "union"; members: { kind: string; schema: Schema }[] }
  | { type: "choice"; options: (string | number)[] }
  | { type: "number"; integer: boolean; min?: number; max?: number }
  | { type: "flag" }
  | { type: "text" }
  | { type: "object"; schema: Schema }
  | { type: "none" };

/** Input element of a field, and whether the field is optional (null). */
export interface FieldShape {
  control: Control;
  optional: boolean;
  about: string;
}

export function resolve(schema: Schema, definitions: Record<string, Schema>): Schema {
  if (!schema.$ref) return schema;
  const { $ref, ...rest } = schema;
  return { ...resolve(definitions[$ref.split("/").at(-1)!] ?? {}, definitions), ...rest };
}

function kindOf(schema: Schema): string | null {
  const kind = schema.properties?.kind?.const;
  return typeof kind === "string" ? kind : null;
}

/** Return the input element of a field. A union of parts is a choice by kind. */
export function shape(schema: Schema, definitions: Record<string, Schema>): FieldShape {
  const resolved = resolve(schema, definitions);
  const about = resolved.description ?? "";
  const branches = flatten(resolved, definitions);
  const optional = branches.some((branch) => branch.type === "null");
  const others = branches.filter((branch) => branch.type !== "null");
  const parts = others.filter((branch) => kindOf(branch) !== null);
  if (parts.length) {
    return { control: { type: "union", members: parts.map((part) => ({ kind: kindOf(part)!, schema: part })) }, optional, about };
  }
  const fields = others.find((branch) => branch.properties);
  if (fields) return { control: { type: "object", schema: fields }, optional, about };
  return { control: plain(others[0] ?? {}), optional, about };
}

function flatten(schema: Schema, definitions: Record<string, Schema>): Schema[] {
  const inner = schema.oneOf ?? schema.anyOf;
  return inner ? inner.flatMap((branch) => flatten(resolve(branch, definitions), definitions)) : [schema];
}

function plain(schema: Schema): Control {
  if (schema.enum) return { type: "choice", options: schema.enum as (string | number)[] };
  switch (schema.type) {
    case "integer":
    case "number": {
      const isInteger = schema.type === "integer";
      const min = schema.minimum ?? (schema.exclusiveMinimum !== undefined && isInteger ? schema.exclusiveMinimum + 1 : undefined);
      return { type: "number", integer: isInteger, ...(min === undefined ? {} : { min }), ...(schema.maximum === undefined ? {} : { max: schema.maximum }) };
    }
    case "boolean":
      return { type: "flag" };
    case "string":
      return { type: "text" };
    default:
      return { type: "none" };
  }
}

/** Initial values of required numbers that have no default. */
const STARTS: Record<string, number> = {
  size: 256, d_ff: 1024, num_heads: 8, num_experts: 8, experts_per_token: 2, factor: 4, original_context_length: 4096,
  low_frequency_factor: 1, high_frequency_factor: 4, state_size: 16, stride: 64, block_size: 64, head_dim: 64,
  kv_lora_rank: 128, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64, hidden_size: 256, q_lora_rank: 256,
};

/** Switch a part to another kind: keep values of fields with the same name, and fill other required fields with initial values. */
export function switched(member: { kind: string; schema: Schema }, former: unknown, definitions: Record<string, Schema>): Record<string, unknown> {
  const before = (former && typeof former === "object" ? former : {}) as Record<string, unknown>;
  const value: Record<string, unknown> = { kind: member.kind };
  for (const name of member.schema.required ?? []) {
    if (name === "kind") continue;
    const { control } = shape(member.schema.properties?.[name] ?? {}, definitions);
    if (before[name] !== undefined && before[name] !== null) value[name] = before[name];
    else if (control.type === "number") value[name] = STARTS[name] ?? Math.max(control.min ?? 1, 1);
    else if (control.type === "choice") value[name] = control.options[0];
    else if (control.type === "flag") value[name] = false;
    else if (control.type === "union") value[name] = switched(control.members[0]!, undefined, definitions);
  }
  return value;
}

/** Write a field name as words: num_kv_heads as num kv heads. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}
