import type { Component } from "svelte";

/** A screen of the web UI: its name in the address, its title in the header, its keyboard shortcut and its component. */
export interface Screen {
  id: string;
  title: string;
  key: string;
  about: string;
  load: () => Promise<{ default: Component }>;
}

/** All screens in the order of the header. Each is loaded when it is first opened. */
export const screens: Screen[] = [
  {
    id: "home",
    title: "Home",
    key: "h",
    about: "What the model is, an example, and next steps",
    load: () => import("./screens/home/Home.svelte"),
  },
  {
    id: "spec",
    title: "Spec",
    key: "s",
    about: "Edit an architecture and see its cost at once",
    load: () => import("./screens/spec/Spec.svelte"),
  },
  {
    id: "architecture",
    title: "Architecture",
    key: "a",
    about: "The model as a diagram, with the cost of each part",
    load: () => import("./screens/architecture/Architecture.svelte"),
  },
  {
    id: "transplant",
    title: "Transplant",
    key: "t",
    about: "Change the model's architecture, and see which weights survive and how far its predictions move",
    load: () => import("./screens/transplant/Transplant.svelte"),
  },
  {
    id: "position",
    title: "Position",
    key: "p",
    about: "How the model encodes positions, and which tokens attend to which",
    load: () => import("./screens/position/Position.svelte"),
  },
  {
    id: "write",
    title: "Write",
    key: "w",
    about: "Generate text and see how likely each token was",
    load: () => import("./screens/write/Write.svelte"),
  },
  {
    id: "inside",
    title: "Inside",
    key: "i",
    about: "Attention, logit lens, residual stream, experts and recurrent states of a text",
    load: () => import("./screens/inside/Inside.svelte"),
  },
  {
    id: "state",
    title: "KV cache",
    key: "m",
    about: "Memory used in decoding: by length for several models, and as allocated now",
    load: () => import("./screens/state/State.svelte"),
  },
  {
    id: "runs",
    title: "Runs",
    key: "r",
    about: "Curves and samples of training runs, live",
    load: () => import("./screens/runs/Runs.svelte"),
  },
  {
    id: "reports",
    title: "Reports",
    key: "e",
    about: "Results of studies, with intervals and verdicts",
    load: () => import("./screens/reports/Reports.svelte"),
  },
];
