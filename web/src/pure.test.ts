import { describe, expect, test } from "vitest";
import { formatHash, packText, parseHash, unpackText } from "./address";
import { eventData } from "./api";
import { bytes, change, exact, percent, seconds, short, visible } from "./format";
import { palette } from "./palette";
import { band } from "./parts/band";
import { picked } from "./parts/picked";
import { asRows, partOf, stationAt, tintsOf } from "./screens/inside/way";
import { shape, switched, type Schema } from "./screens/spec/schema";
import { asCurl, asPython, parseSettings, python } from "./screens/write/sampling";
import { agreement, entropyBounds, piecesOf, type Piece } from "./screens/write/writer.svelte";

describe("numbers are formatted as in Python", () => {
  test.each([
    [0, "0"], [999, "999"], [99_999, "99,999"], [100_000, "100 K"], [999_499, "999 K"], [28_311_552, "28.3 M"],
    [8_030_261_248, "8.03 G"], [999_600_000, "1,000 M"], [1.23e25, "12.3 Y"],
  ])("short(%d) is %s", (number, text) => expect(short(number)).toBe(text));
  test.each([[0, "0 B"], [1023, "1023 B"], [131_072, "128 KiB"], [28_311_552, "27 MiB"], [2 ** 30 * 1.5, "1.5 GiB"]])(
    "bytes(%d) is %s",
    (number, text) => expect(bytes(number)).toBe(text),
  );
  test("other formats", () => {
    expect(exact(1234567.5)).toBe("1,234,567.5");
    expect(seconds(0.0048)).toBe("4.8 ms");
    expect(seconds(7200)).toBe("2 h");
    expect([percent(0.1234), percent(-0.0001)]).toEqual(["12.3%", "0.0%"]);
    expect([change(8, 2), change(2, 8), change(3, 3), change(0, 1), change(1e6, 1e6 + 1)]).toEqual(["−75.0%", "+300.0%", "", "new", "+<0.1%"]);
    expect(visible(" a\n\t\u0000")).toBe("·a⏎⇥�");
    expect(visible("")).toBe("∅");
  });
});

describe("the address", () => {
  test("survives a round trip", () => {
    const address = { screen: "spec", values: { spec: "yaml:a?b&c=d#é", layer: "3" } };
    expect(parseHash(formatHash(address))).toEqual(address);
    expect(parseHash("")).toEqual({ screen: "", values: {} });
    expect(formatHash({ screen: "write", values: { token: "" } })).toBe("#/write");
  });
  test("holds a long text", async () => {
    const text = "kind: decoder\nname: ünïcode 🙂\n".repeat(50);
    const packed = await packText(text);
    expect(packed).toMatch(/^[\w-]+$/);
    expect(packed.length).toBeLessThan(text.length / 4);
    expect(await unpackText(packed)).toBe(text);
  });
});

test("comments and the end mark of a stream are not events", () => {
  expect(eventData(": ping")).toEqual([]);
  expect(eventData("data: [DONE]")).toEqual([]);
  expect(eventData('data: {"a":1}')).toEqual(['{"a":1}']);
  expect(eventData("event: x\ndata: 1\ndata: 2")).toEqual(["1\n2"]);
});

describe("the input element of a field", () => {
  const part = (kind: string, properties: Record<string, Schema> = {}, required: string[] = []): Schema => ({
    properties: { kind: { const: kind, type: "string" }, ...properties }, required, description: kind,
  });
  const size: Schema = { type: "integer", exclusiveMinimum: 0, maximum: 100 };
  const definitions = { Rotary: part("rotary", { theta: { type: "number", default: 1e4 } }), Window: part("window", { size }, ["size"]) };
  const union: Schema = { anyOf: [{ oneOf: [{ $ref: "#/$defs/Rotary" }, { $ref: "#/$defs/Window" }] }, { enum: ["rotary"] }, { type: "null" }] };
  test("unions, numbers, flags and optional fields", () => {
    const field = shape(union, definitions);
    expect(field.optional).toBe(true);
    expect(field.control.type === "union" && field.control.members.map((member) => member.kind)).toEqual(["rotary", "window"]);
    expect(shape({ anyOf: [size, { type: "null" }] }, definitions)).toEqual({ control: { type: "number", integer: true, min: 1, max: 100 }, optional: true, about: "" });
    expect(shape({ type: "boolean", description: "whether" }, {})).toEqual({ control: { type: "flag" }, optional: false, about: "whether" });
    expect(shape({ enum: ["a", "b"] }, {}).control).toEqual({ type: "choice", options: ["a", "b"] });
  });
  test("another kind keeps fields with the same name, and gets initial values for other required fields", () => {
    const member = { kind: "window", schema: definitions.Window };
    expect(switched(member, { kind: "x", size: 7, other: 1 }, definitions)).toEqual({ kind: "window", size: 7 });
    expect(switched(member, null, definitions)).toEqual({ kind: "window", size: 256 });
  });
});

describe("tokens of a stream", () => {
  test("of completions, with an echoed prompt", () => {
    const logprobs = { tokens: ["a", "🙂", "b"], token_logprobs: [null, -1, -2], top_logprobs: [null, { "🙂": -1, x: -0.5 }, null], text_offset: [0, 1, 2] };
    const pieces = piecesOf({ index: 0, text: "a🙂b", token_ids: [1, 2, 3], finish_reason: null, logprobs }, 0, false);
    expect(pieces.map((piece) => [piece.text, piece.id, piece.logprob, piece.written])).toEqual([["a", 1, null, false], ["🙂", 2, -1, false], ["b", 3, -2, false]]);
    expect(pieces[1]!.top).toEqual([["x", -0.5], ["🙂", -1]]);
  });
  test("of one step, with an offset from the start of the text", () => {
    const logprobs = { tokens: ["c"], token_logprobs: [-1], top_logprobs: [{ c: -1 }], text_offset: [17] };
    expect(piecesOf({ index: 0, text: "c", token_ids: [9], finish_reason: null, logprobs }, 17, true)[0]).toMatchObject({ text: "c", id: 9, written: true });
  });
  test("of chats", () => {
    const content = [{ token: "hi", logprob: -0.1, bytes: [], top_logprobs: [{ token: "hi", logprob: -0.1 }] }];
    const pieces = piecesOf({ index: 0, delta: { content: "hi" }, token_ids: [4], finish_reason: null, logprobs: { content } }, 0, true);
    expect(pieces).toEqual([{ text: "hi", id: 4, logprob: -0.1, top: [["hi", -0.1]], written: true }]);
  });
  test("the entropy is known, or lies within its bounds", () => {
    const half = Math.log(0.5);
    expect(entropyBounds([half, half], 100)).toEqual([Math.log(2), Math.log(2)]);
    const all = [0.5, 0.2, 0.1, 0.1, 0.06, 0.04];
    const entropy = -all.reduce((sum, p) => sum + p * Math.log(p), 0);
    const [low, high] = entropyBounds(all.slice(0, 3).map(Math.log), all.length);
    expect(low).toBeLessThanOrEqual(entropy);
    expect(high).toBeGreaterThanOrEqual(entropy);
  });
});

test("the first difference of two texts is found among the generated tokens", () => {
  const piece = (text: string, written: boolean): Piece => ({ text, id: null, logprob: -1, top: [], written });
  const [a, b, c, read] = [piece("a", true), piece("b", true), piece("c", true), piece("a", false)];
  expect(agreement([read, read], [read, a])).toBe(null);
  expect(agreement([read, a, b], [read, read, a, c])).toEqual({ count: 1, left: b, right: c });
  expect(agreement([a, b], [a, b])).toEqual({ count: 2, left: null, right: null });
  expect(agreement([a], [a, b])).toEqual({ count: 1, left: null, right: b });
});

test("a request as curl and Python code", () => {
  const body = { model: "m", prompt: "it's", max_tokens: 3, top_k: 5, ignore_eos: true };
  expect(asCurl("http://h", "/v1/completions", body)).toContain("it'\\''s");
  const text = asPython("http://h", "/v1/completions", body);
  expect(text).toContain('client.completions.create(\n    model="m",');
  expect(text).toContain('extra_body={"top_k": 5, "ignore_eos": True}');
  expect(python([null, false, 1.5, { a: ["b"] }])).toBe('[None, False, 1.5, {"a": ["b"]}]');
  expect(parseSettings('{"temperature":0}')).toEqual({ temperature: 0 });
  expect(parseSettings("[1") ).toEqual({});
});

test("palettes have distinct colors from end to end", () => {
  for (const name of ["viridis", "cividis", "mask"] as const) {
    const table = palette(name, false);
    expect(table.length).toBe(1024);
    expect(new Set(Array.from({ length: 256 }, (_, at) => table.slice(4 * at, 4 * at + 3).join())).size).toBeGreaterThan(100);
  }
});

describe("the path of a token", () => {
  const station = (box: string, layer: number | null, rms = 1) => ({ box, layer, name: `${box} ${layer}`, shape: [4], rms });
  const stations = [station("in", null, 0.01), station("q", 0), station("m", 0), station("m", 0, 10), station("q", 1, 100), station("out", null)];
  test("a station is named by its box, with a number if there are several", () => {
    for (let number = 0; number < stations.length; number += 1) {
      expect(stationAt(stations, partOf(stations, number), stations[number]!.layer)).toBe(number);
    }
    expect([stationAt(stations, "q", null), stationAt(stations, "m", 1), stationAt(stations, "", 1)]).toEqual([1, 2, 0]);
  });
  test("tints of a layer's boxes are logarithmic", () => {
    const { shares, low, high } = tintsOf(stations, 1);
    expect([low, high, shares.get("q"), shares.has("m")]).toEqual([0.01, 100, 1, false]);
    expect(tintsOf(stations, 0).shares.get("q")).toBeCloseTo(0.54);
  });
  test("shapes are displayed as rows and columns", () => {
    expect([asRows([64]), asRows([4, 16]), asRows([2, 3, 5]), asRows([2048]), asRows([3])]).toEqual([[2, 32], [4, 16], [6, 5], [32, 64], [1, 3]]);
  });
});

test("a search keeps entries with all its words in name or family", () => {
  const presets = [["gpt2", "gpt2"], ["mamba-130m", "mamba"], ["falcon-mamba-7b", "falcon"]].map(([name, family]) => ({ name: name!, family: family!, kind: "decoder", parameters: 1, source: "" }));
  const values = (search: string) => picked([{ name: "mine" }], presets, search, "", "nothing").flatMap((group) => group.options.map((option) => option.value));
  expect(values("")).toEqual(["", "model:mine", "preset:gpt2", "preset:mamba-130m", "preset:falcon-mamba-7b"]);
  expect(values("mamba")).toEqual(["preset:mamba-130m", "preset:falcon-mamba-7b"]);
  expect(values("Mamba 7b")).toEqual(["preset:falcon-mamba-7b"]);
});

test("an oscillating curve has a mean, and a band that contains every value", () => {
  const y = Array.from({ length: 40 }, (_, at) => 1 / (1 + at) + (at % 2 ? 0.1 : -0.1));
  const { mean, low, high } = band(y, 4);
  expect([mean[0], low[0], high[0], mean.at(-1)]).toEqual([y[0], y[0], y[0], y.at(-1)]);
  expect(mean[10]).toBeCloseTo(y.slice(6, 15).reduce((sum, value) => sum + value, 0) / 9);
  expect(y.every((value, at) => low[at]! <= value && value <= high[at]!)).toBe(true);
  const turns = (values: number[]) => values.slice(6, -6).filter((value, at) => Math.abs(values[at + 7]! - value) > 0.1).length;
  expect([turns(y) > 20, turns(mean)]).toEqual([true, 0]);
});
