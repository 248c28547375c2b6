"use strict";
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${value >= 999.5 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`; // never 1.01e+3
};
const seconds = (value) => (value < 1e-3 ? `${(value * 1e6).toPrecision(3)} µs` : value < 1 ? `${(value * 1e3).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);
// the value of a column between two points; beyond the last, which is the longest context, null
const between = (points, length, column) => {
  const after = points.findIndex((point) => point[0] >= length);
  if (after < 0) return null;
  const right = points[after], left = points[Math.max(after - 1, 0)];
  if (right[0] === left[0]) return right[column];
  return left[column] + ((length - left[0]) / (right[0] - left[0])) * (right[column] - left[column]);
};
const addressed = () => new URLSearchParams(location.hash.slice(1)); // of #search=...&compare=...
const lengthOf = (slider, longest) => Math.round(128 * (longest / 128) ** (slider.value / 1000));

function showLengths(section) {
  const { points, weights } = JSON.parse(section.querySelector(".points").textContent);
  const box = section.querySelector(".slider"), slider = box.querySelector("input"), device = box.querySelector("select");
  const longest = points.at(-1)[0], least = Math.log(points[0][1] + 1), most = Math.log(points.at(-1)[1] + 1);
  const x = (length) => 10 + (620 * Math.log(length / 128)) / Math.log(longest / 128 || 2);
  const y = (state) => 150 - (130 * (Math.log(state + 1) - least)) / (most - least || 1); // both axes are logarithmic
  const steps = Array.from({ length: 101 }, (_, step) => 128 * (longest / 128) ** (step / 100));
  const path = steps.map((length, step) => `${step ? "L" : "M"}${x(length).toFixed(1)},${y(between(points, Math.min(length, longest), 1)).toFixed(1)}`);
  box.querySelector("path").setAttribute("d", path.join(""));
  const show = () => {
    const length = Math.min(lengthOf(slider, longest), longest);
    const [state, flops, read] = [1, 2, 3].map((column) => between(points, length, column));
    const [bandwidth, peak] = device.value.split(" ").map(Number);
    box.querySelector(".length").textContent = length.toLocaleString("en");
    box.querySelector(".state").textContent = bytes(state);
    box.querySelector(".time").textContent = seconds(Math.max((weights + read) / bandwidth, peak ? flops / peak : 0));
    const dot = box.querySelector("circle");
    dot.setAttribute("cx", x(length));
    dot.setAttribute("cy", y(state));
  };
  slider.addEventListener("input", show);
  device.addEventListener("change", show);
  box.hidden = false;
  show();
}

// `name=value`, `name>number` and `name<number` look at fields, whose names may be cut off at the left; other words at the text
function matches(words, item, fields) {
  const text = item.textContent.toLowerCase();
  return words.every((word) => {
    const condition = /^([\w.[\]*]+)(=|>|<)(.+)$/.exec(word);
    if (!condition) return text.includes(word);
    const [, path, sign, wanted] = condition, name = path.replace(/\[[^\]]*\]/g, "").replace(/^layers\./, "");
    const values = Object.entries(fields).filter(([field]) => field === name || field.endsWith(`.${name}`)).flatMap(([, all]) => all);
    if (sign === "=") return values.some((value) => String(value).toLowerCase() === wanted);
    return values.some((value) => (sign === ">" ? Number(value) > Number(wanted) : Number(value) < Number(wanted)));
  });
}

function showIndex(form) {
  const { names, models } = JSON.parse(document.querySelector("#models").textContent);
  const [search, slider] = form.querySelectorAll("input");
  const items = [...document.querySelectorAll(".cards li")].map((item) => {
    const [fields, points] = models[item.dataset.id];
    return { item, points, fields: Object.fromEntries(fields.map(([name, ...values]) => [names[name], values])) };
  });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { item, fields } of items) {
      item.hidden = !matches(words, item, fields);
      count += item.hidden ? 0 : 1;
    }
    form.querySelector(".count").textContent = words.length ? `${count} of ${items.length}` : "";
    remember("search", search.value);
  };
  const states = () => {
    const length = 128 * 2 ** slider.value;
    form.querySelector("output").textContent = `${length.toLocaleString("en")} tokens`;
    for (const { item, points } of items) {
      if (!points.length) continue;
      const state = between(points, length, 1);
      item.querySelector(".state").textContent = state === null ? `only ${points.at(-1)[0].toLocaleString("en")} tokens` : `${bytes(state)} of state`;
    }
  };
  search.addEventListener("input", filter);
  slider.addEventListener("input", states);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  search.value = addressed().get("search") || "";
  filter();
  states();
  showComparison(document.querySelector(".compare"), items);
}

// keeps a value in the address, so that a link shows the same
function remember(name, value) {
  const values = addressed();
  if (!value && !values.get(name)) return;
  if (value) values.set(name, value);
  else values.delete(name);
  const hash = ["search", "compare"].filter((key) => values.get(key)).map((key) => `${key}=${encodeURIComponent(values.get(key))}`);
  history.replaceState(null, "", hash.length ? `#${hash.join("&")}` : location.pathname + location.search);
}

const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 21 });
const shown = (name, values) => {
  if (!values || values.every((value) => value === "none")) return "–";
  const each = values.slice(0, 4).map((value) => (typeof value !== "number" ? value : name === "state" ? bytes(value) : number.format(value)));
  return each.join(", ") + (values.length > 4 ? ", ..." : "");
};

// the fields that differ between the cards whose buttons are pressed, in the order in which they were pressed
function showComparison(box, items) {
  const head = box.querySelector("thead"), body = box.querySelector("tbody"), chosen = [];
  const cells = (row, tag, texts) => texts.map((text) => { const cell = row.appendChild(document.createElement(tag)); cell.textContent = text; return cell; });
  const show = () => {
    const names = new Set(chosen.flatMap(({ fields }) => Object.keys(fields)));
    box.querySelector("code").textContent = `archetype cost ${chosen.map(({ item }) => item.dataset.id).join(" ")} --compare`;
    head.replaceChildren(document.createElement("tr"));
    body.replaceChildren();
    cells(head.firstChild, "th", ["", ...chosen.map(({ item }) => item.querySelector("a").textContent)]);
    for (const name of names) {
      const texts = chosen.map(({ fields }) => shown(name, fields[name]));
      if (new Set(texts).size === 1 || name === "type") continue;
      const row = body.appendChild(document.createElement("tr"));
      cells(row, "th", [name.replace(/[._]/g, "$&\u200b")]); // where a line may break
      cells(row, "td", texts).forEach((cell, at) => cell.classList.toggle("changed", at > 0 && texts[at] !== texts[at - 1]));
    }
    for (const { item, button } of items) button?.setAttribute("aria-pressed", chosen.some((one) => one.item === item));
    box.hidden = chosen.length < 2;
    remember("compare", chosen.map(({ item }) => item.dataset.id).join(","));
  };
  for (const one of items.filter(({ points }) => points.length)) {
    one.button = document.createElement("button");
    one.button.textContent = "compare";
    one.button.setAttribute("aria-label", `compare ${one.item.querySelector("a").textContent}`);
    one.button.addEventListener("click", () => {
      if (chosen.includes(one)) chosen.splice(chosen.indexOf(one), 1);
      else chosen.push(one);
      show();
    });
    one.item.querySelector("p").before(one.button);
  }
  box.querySelector("button").addEventListener("click", () => { chosen.length = 0; show(); });
  for (const id of (addressed().get("compare") || "").split(",")) chosen.push(...items.filter((one) => one.button && one.item.dataset.id === id));
  show();
}

document.querySelectorAll(".lengths").forEach(showLengths);
document.querySelectorAll("form.search").forEach(showIndex);
