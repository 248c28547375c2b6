import { beforeEach, expect, test, vi } from "vitest";
import { Writer } from "./writer.svelte";

beforeEach(() => {
  vi.stubGlobal("window", { sessionStorage: { getItem: () => null } });
  vi.stubGlobal("requestAnimationFrame", () => 1); // no frame is drawn, so all tokens are shown at the end
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
});

function chunk(tokens: string[], ids: number[], offset: number, finish: string | null = null): string {
  const starts = tokens.map((_, at) => offset + tokens.slice(0, at).join("").length);
  const logprobs = { tokens, token_logprobs: tokens.map(() => -1), top_logprobs: tokens.map((text) => ({ [text]: -1 })), text_offset: starts };
  return `data: ${JSON.stringify({ choices: [{ index: 0, text: tokens.join(""), token_ids: ids, finish_reason: finish, logprobs }] })}\n\n`;
}

function answer(...parts: string[]): void {
  const usage = `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 2, completion_tokens: 2 } })}\n\n`;
  vi.stubGlobal("fetch", () => Promise.resolve(new Response([...parts, usage].join(""))));
}

test("tokens of an echoed prompt are told apart from generated tokens", async () => {
  answer(chunk(["on", "ce"], [1, 2], 0), chunk([" a"], [3], 4), chunk([" b"], [4], 6, "length"));
  const writer = new Writer();
  await writer.write("/v1/completions", { echo: true });
  expect([writer.text, writer.numRead, writer.ids, writer.finish, writer.error, writer.running]).toEqual(["once a b", 2, [1, 2, 3, 4], "length", "", false]);
  expect(writer.pieces.map((piece) => piece.written)).toEqual([false, false, true, true]);
  expect(writer.usage).toEqual({ prompt_tokens: 2, completion_tokens: 2 });
});

test("a long text is split into blocks at line breaks, without losing a token", async () => {
  const tokens = Array.from({ length: 700 }, (_, at) => (at % 50 === 49 ? "\n" : String(at % 10)));
  answer(...tokens.map((token, at) => chunk([token], [at], at)));
  const writer = new Writer();
  await writer.write("/v1/completions", {});
  expect(writer.text).toBe(tokens.join(""));
  expect(writer.blocks.map((block) => [block.start, block.pieces.length])).toEqual([[0, 150], [150, 150], [300, 150], [450, 150], [600, 100]]);
});

test("an error ends a text, and the next text replaces it", async () => {
  answer(chunk(["a"], [1], 0), 'data: {"error":{"message":"no memory","code":null}}\n\n');
  const writer = new Writer();
  await writer.write("/v1/completions", {});
  expect([writer.text, writer.error, writer.finish]).toEqual(["a", "no memory", null]);
  answer(chunk(["b"], [2], 0, "stop"));
  await writer.write("/v1/completions", {});
  expect([writer.text, writer.error, writer.finish]).toEqual(["b", "", "stop"]);
});
