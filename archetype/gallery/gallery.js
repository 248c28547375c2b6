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
    const state = between(points, length, 1), flops = between(points, length, 2);
    const [bandwidth, peak] = device.value.split(" ").map(Number);
    box.querySelector(".length").textContent = length.toLocaleString("en");
    box.querySelector(".state").textContent = bytes(state);
    box.querySelector(".time").textContent = seconds(Math.max((weights + state) / bandwidth, peak ? flops / peak : 0));
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
    const hash = search.value ? `#search=${encodeURIComponent(search.value)}` : "";
    if (hash || location.hash.startsWith("#search=")) history.replaceState(null, "", hash || location.pathname);
  };
  const states = () => {
    const length = lengthOf(slider, 1048576);
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
  if (location.hash.startsWith("#search=")) search.value = decodeURIComponent(location.hash.slice(8));
  filter();
  states();
}

document.querySelectorAll(".lengths").forEach(showLengths);
document.querySelectorAll("form.search").forEach(showIndex);
