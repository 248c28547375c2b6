import { expect, test, vi } from "vitest";
import { RunCurves, type Buckets, type Curves } from "./runs.svelte";

function curves(x: number[], others: Partial<Curves> = {}): Curves {
  const buckets: Buckets = { x, min: x, max: x, mean: x, ema: x };
  return { name: "a", version: 1, next: x.length ? x.at(-1)! + 1 : 0, training: true, x: "step", names: ["loss"], series: x.length ? { loss: buckets } : {}, samples: [], peak_flops: 0, ...others };
}

/** Answer requests in turn; returns their paths. */
function answers(...found: (Curves | null)[]): string[] {
  const paths: string[] = [];
  vi.stubGlobal("window", { sessionStorage: { getItem: () => null } });
  vi.stubGlobal("fetch", (path: string) => {
    paths.push(path);
    const next = found.shift()!;
    return Promise.resolve(next ? Response.json(next) : Response.json({ error: { message: "gone" } }, { status: 404 }));
  });
  return paths;
}

test("only new points are fetched, and appended", async () => {
  const runs = new RunCurves();
  const paths = answers(curves([1, 2], { samples: [{ step: 2, text: "a" }] }), curves([3], { samples: [{ step: 3, text: "b" }] }), curves([], { next: 4 }));
  await runs.refresh(["a b/c"], "step", 0.9);
  await runs.refresh(["a b/c"], "step", 0.9);
  expect(paths.map((path) => path.replace(/.*\/runs/, ""))).toEqual(["/a%20b/c/metrics?points=400&x=step&smoothing=0.9", "/a%20b/c/metrics?points=400&x=step&smoothing=0.9&after=3"]);
  const both = runs.of["a b/c"]!;
  expect([both.series.loss!.x, both.samples.map((sample) => sample.text)]).toEqual([[1, 2, 3], ["a", "b"]]);
  const before = runs.of;
  await runs.refresh(["a b/c"], "step", 0.9);
  expect(runs.of).toBe(before); // without new points nothing is redrawn
});

test("everything is fetched again for another axis, and after a run restarts", async () => {
  const runs = new RunCurves();
  const paths = answers(curves([1, 2]), curves([10]), curves([], { version: 2, next: 0 }), curves([1], { version: 2 }));
  await runs.refresh(["a"], "step", 0);
  await runs.refresh(["a"], "flops", 0);
  await runs.refresh(["a"], "flops", 0);
  expect(paths.map((path) => path.includes("after="))).toEqual([false, false, true, false]);
  expect(runs.of.a!.series.loss!.x).toEqual([1]);
});

test("an error is shown, and the curves stay", async () => {
  const runs = new RunCurves();
  answers(curves([1]), null);
  await runs.refresh(["a"], "step", 0);
  await runs.refresh(["a"], "step", 0);
  expect([runs.error, runs.of.a!.series.loss!.x]).toEqual(["gone", [1]]);
});
