import { afterEach, expect, test, vi } from "vitest";
import { ApiError, call, events, numbers, onKeyNeeded } from "./api";

const keys = new Map<string, string>();
vi.stubGlobal("window", { sessionStorage: { getItem: (name: string) => keys.get(name) ?? null, setItem: (name: string, value: string) => keys.set(name, value) } });

/** Answer requests with these responses in turn; return the requests. */
function answers(...responses: Response[]): RequestInit[] {
  const sent: RequestInit[] = [];
  vi.stubGlobal("fetch", (_path: string, request: RequestInit) => (sent.push(request), Promise.resolve(responses.shift()!)));
  return sent;
}

/** A response that arrives in these pieces. */
function stream(...pieces: Uint8Array[]): Response {
  return new Response(new ReadableStream({ start: (to) => (pieces.forEach((piece) => to.enqueue(piece)), to.close()) }));
}

async function all<T>(source: AsyncGenerator<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const event of source) found.push(event);
  return found;
}

afterEach(() => keys.clear());

test("a stream yields the same events wherever it is split, even inside a character", async () => {
  const bytes = new TextEncoder().encode(': ping\n\ndata: {"text":"é🙂"}\n\ndata: {"text":"\\n\\n"}\n\ndata: [DONE]\n\n');
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    answers(stream(bytes.slice(0, cut), bytes.slice(cut)));
    expect(await all(events("/x"))).toEqual([{ text: "é🙂" }, { text: "\n\n" }]);
  }
});

test("an error in a stream is thrown after the events before it", async () => {
  answers(stream(new TextEncoder().encode('data: {"a":1}\n\ndata: {"error":{"message":"full","code":"busy"}}\n\n')));
  const source = events("/x");
  expect((await source.next()).value).toEqual({ a: 1 });
  await expect(source.next()).rejects.toMatchObject({ message: "full", code: "busy" });
});

test("an error has the server's message, or else the status", async () => {
  answers(Response.json({ error: { message: "no such model", code: "model_not_found" } }, { status: 404 }), new Response("<html>", { status: 502 }));
  await expect(call("/x")).rejects.toEqual(new ApiError("no such model", 404, "model_not_found"));
  await expect(call("/x")).rejects.toMatchObject({ message: "the server answered 502", status: 502, code: null });
});

test("the API key is requested once, and sent from then on", async () => {
  const refused = () => Response.json({ error: { message: "wrong key", code: "invalid_api_key" } }, { status: 401 });
  const sent = answers(refused(), Response.json(1), Response.json(2));
  let asked = 0;
  onKeyNeeded(() => ((asked += 1), Promise.resolve("secret")));
  expect([await call("/x"), await call("/x", { a: 1 }), asked]).toEqual([1, 2, 1]);
  expect(sent.map((request) => (request.headers as Record<string, string>).authorization)).toEqual([undefined, "Bearer secret", "Bearer secret"]);
  expect(sent.map((request) => [request.method, request.body])).toEqual([["GET", null], ["GET", null], ["POST", '{"a":1}']]);
});

test("tensors have the shape and type in the headers", async () => {
  const headers = { "x-shape": "1,2" };
  answers(new Response(new Float32Array([0.5, -2]).buffer, { headers }), new Response(new Uint8Array([3, 255]), { headers: { ...headers, "x-dtype": "uint8" } }));
  expect(await numbers("/x")).toEqual({ shape: [1, 2], data: new Float32Array([0.5, -2]) });
  expect(await numbers("/x")).toEqual({ shape: [1, 2], data: new Uint8Array([3, 255]) });
});
