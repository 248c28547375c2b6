// What openai-node gets from a server. It reads the questions of tests/clients/test_clients.py as JSON and writes
// what the client got.
import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const questions = JSON.parse(readFileSync(0, "utf8"));
const { model, prompt, messages, schema, key: apiKey, url: baseURL } = questions;
const client = new OpenAI({ apiKey, baseURL, maxRetries: 0 });

// The class, status and code of the error that a question ends with.
async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return [error.constructor.name, error.status, error.code];
  }
  return [];
}

const completion = await client.completions.create({
  model, prompt, max_tokens: 8, temperature: 0, logprobs: 1, echo: true,
});
const chat = [];
for await (const chunk of await client.chat.completions.create({
  model, messages, max_tokens: 12, temperature: 0, stream: true,
})) chat.push(chunk.choices[0].delta.content ?? "");
const constrained = await client.chat.completions.create({
  model, messages, response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
});
const models = [];
for await (const one of client.models.list()) models.push(one.id);
const { data } = await client.embeddings.create({ model, input: prompt });
const answers = {
  version: VERSION,
  models,
  text: completion.choices[0].text,
  logprobs: completion.choices[0].logprobs.token_logprobs,
  chat,
  json: constrained.choices[0].message.content,
  embedding: data[0].embedding,
  refused: {
    "too long": await refusal(() => client.completions.create({ model, prompt: questions.too_long })),
    model: await refusal(() => client.completions.create({ model: "other", prompt })),
    key: await refusal(() => new OpenAI({ apiKey: "wrong", baseURL, maxRetries: 0 }).models.list()),
  },
};
const { extra_body, ...long } = questions.long;
const stream = await client.completions.create({ model, prompt, stream: true, ...long, ...extra_body });
for await (const chunk of stream) break; // leaves, which closes the connection
process.stdout.write(JSON.stringify(answers));
