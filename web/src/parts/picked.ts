import type { ModelInfo, PresetInfo } from "../api";

export interface Option {
  value: string;
  name: string;
  parameters?: number;
}

export interface Group {
  name: string;
  options: Option[];
}

/** Models and presets that match a search, grouped by family. Each word must occur in the name or the family. */
export function picked(models: ModelInfo[], presets: PresetInfo[], search: string, edited = "", none = ""): Group[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text: string) => words.every((word) => text.toLowerCase().includes(word));
  const groups: Group[] = [];
  if (none && !words.length) groups.push({ name: "none", options: [{ value: "", name: none }] });
  if (edited && !words.length) groups.push({ name: "edited", options: [{ value: edited, name: "your edits" }] });
  groups.push({ name: "served models", options: models.filter((model) => fits(model.name)).map(({ name }) => ({ value: `model:${name}`, name })) });
  const families = new Map<string, Option[]>();
  for (const { name, family, parameters } of presets) {
    if (fits(`${name} ${family}`)) families.set(family, [...(families.get(family) ?? []), { value: `preset:${name}`, name, parameters }]);
  }
  for (const [name, options] of families) groups.push({ name, options });
  return groups.filter((group) => group.options.length);
}
