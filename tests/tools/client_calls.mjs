// Call a gateway by OpenAI's unmodified client for Node, each in a few ways; print the answers as JSON.
//
// `test_openai_clients.py` runs it beside a folder `node_modules` that has the client. Its arguments are the gateway's
// base URL and the model.

import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: url, apiKey: "any", maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: "hello" }], max_tokens: 1000, temperature: 0 };
const brief = { ...asked, max_tokens: 8 };
const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] }, ok: { type: "boolean" } },
  required: ["city", "ok"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "look_up", parameters: schema } };
const tools = { tools: [tool], tool_choice: { type: "function", function: { name: "look_up" } } };
const format = { response_format: { type: "json_schema", json_schema: { name: "place", schema, strict: true } } };

async function streamed(fields) {
  const parts = { content: "", arguments: "", chunks: 0 };
  for await (const chunk of await openai.chat.completions.create({ ...fields, stream: true })) {
    const delta = chunk.choices[0]?.delta ?? {};
    parts.chunks += 1;
    parts.content += delta.content ?? "";
    parts.arguments += delta.tool_calls?.[0]?.function?.arguments ?? "";
  }
  return parts;
}

async function refused(fields) {
  try {
    await openai.chat.completions.create({ ...brief, ...fields });
  } catch (error) {
    return error.status;
  }
  return 200;
}

async function message(fields) {
  return (await openai.chat.completions.create(fields)).choices[0].message;
}

const whole = (await message(brief)).content;
const stream = await streamed(brief);
const answers = {
  whole,
  streamed: stream.content,
  chunks: stream.chunks,
  helper: (await openai.chat.completions.stream(brief).finalChatCompletion()).choices[0].message.content,
  response: (await openai.responses.create({ model, input: "hello", max_output_tokens: 8, temperature: 0 })).output_text,
  places: [
    JSON.parse((await message({ ...asked, ...tools })).tool_calls[0].function.arguments),
    JSON.parse((await streamed({ ...asked, ...tools })).arguments),
    JSON.parse((await message({ ...asked, ...format })).content),
    JSON.parse((await streamed({ ...asked, ...format })).content),
  ],
  refused: [await refused({ model: "nobody" }), await refused({ temperature: -1 })],
};
console.log(JSON.stringify(answers));
