// npm clients against a real server: `node cases.mjs CLIENT`; one JSON line for each case, as cases.py prints.
import OpenAI from "openai";
import { z } from "zod";
import { generateText, generateObject, streamText, tool, stepCountIs, jsonSchema } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { zodResponseFormat } from "openai/helpers/zod";

const URL_ = process.env.OPENAI_BASE_URL;
const KEY = process.env.OPENAI_API_KEY;
const LIMITED = process.env.LIMITED_KEY;
const MODEL = "clerk", HELLO = "Where has the carpet? Vat Wolf. I see 2460 in the mail that you sent.";
const ASK = "Please help me. Where has the carpet? Vat Wolf. One moment. I see 2460 in the mail that you sent. Let me check.";
const SHIPPED = '{"price": 208, "days": 44, "state": "moving", "charges": 1, "eta": 7}';
const parameters = {
  type: "object",
  properties: { order: { type: "string", maxLength: 8 } },
  required: ["order"],
  additionalProperties: false,
};
const TOOL = { type: "function", function: { name: "look_up", description: "Look an order up.", parameters } };
const Order = z.object({ number: z.number().int(), urgent: z.boolean() });
const user = (content) => ({ role: "user", content });
const assert = (value, text = "assertion") => {
  if (!value) throw new Error(text);
};

async function busy(work) {
  const schema = { type: "string", minLength: 500, maxLength: 520 };
  const body = {
    model: MODEL, stream: true, max_tokens: 600, messages: [user("x")],
    response_format: { type: "json_schema", json_schema: { name: "long", schema } },
  };
  const headers = { authorization: `Bearer ${LIMITED}`, "content-type": "application/json" };
  const held = await fetch(`${URL_}/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  const reader = held.body.getReader();
  await reader.read();
  const drained = (async () => {
    while (!(await reader.read()).done);
  })();
  await work();
  await drained;
}

const chat = (fields, options) =>
  new OpenAI({ maxRetries: 0, ...options }).chat.completions.create({ model: MODEL, ...fields });

async function openaiLoop(append, ask) {
  const messages = [user(ASK)];
  const reply = await ask(messages);
  assert(reply.tool_calls?.length, JSON.stringify(reply));
  messages.push(append(reply));
  for (const call of reply.tool_calls) messages.push({ role: "tool", tool_call_id: call.id, content: SHIPPED });
  assert((await ask(messages)).content);
}

const whole = async (messages) => (await chat({ messages, tools: [TOOL] })).choices[0].message;
const two = [{ role: "system", content: "Be brief." }, { role: "system", content: "Be kind." }];

const openaiCases = {
  plain: async () => assert((await chat({ messages: [user(HELLO)] })).choices[0].finish_reason),
  stream: async () => {
    let text = "";
    for await (const chunk of await chat({ messages: [user(HELLO)], stream: true }))
      text += chunk.choices[0]?.finish_reason ?? "";
    assert(text);
  },
  "tool loop": () => openaiLoop((reply) => reply, whole),
  "streamed tool loop": () =>
    openaiLoop(
      (reply) => reply,
      (messages) =>
        new OpenAI().chat.completions.stream({ model: MODEL, messages, tools: [TOOL] }).finalMessage(),
    ),
  history: async () => {
    await openaiLoop((reply) => ({ ...reply }), whole);
    const runner = new OpenAI().chat.completions.runTools({
      model: MODEL,
      messages: [user(ASK)],
      tools: [{ type: "function", function: { ...TOOL.function, parse: JSON.parse, function: () => SHIPPED } }],
    });
    assert(await runner.finalContent());
  },
  "structured output": async () => {
    const reply = await new OpenAI().chat.completions.parse({
      model: MODEL, messages: [user(ASK)], max_tokens: 100, response_format: zodResponseFormat(Order, "order"),
    });
    assert(Order.parse(reply.choices[0].message.parsed));
  },
  "two system prompts": async () => assert((await chat({ messages: [...two, user(HELLO)] })).choices),
  names: async () => assert((await chat({ messages: [{ ...user(HELLO), name: "Ann" }] })).choices),
  "one call at a time": async () =>
    assert((await chat({ messages: [user(ASK)], tools: [TOOL], parallel_tool_calls: false })).choices),
  cancel: async () => {
    const stream = await chat({ messages: [user(HELLO)], stream: true });
    for await (const _ of stream) break;
    stream.controller.abort();
  },
  429: () =>
    busy(async () =>
      assert((await chat({ messages: [user(HELLO)] }, { apiKey: LIMITED, maxRetries: 30 })).choices)),
};

const model = (apiKey = KEY) =>
  createOpenAICompatible({ name: "grpo", baseURL: URL_, apiKey, supportsStructuredOutputs: true, includeUsage: true })(
    MODEL,
  );
const tools = {
  look_up: tool({
    description: "Look an order up.", inputSchema: jsonSchema(parameters), execute: async () => SHIPPED,
  }),
};
const ai = { maxRetries: 0 };

const aiCases = {
  plain: async () => assert((await generateText({ ...ai, model: model(), prompt: HELLO, tools })).finishReason),
  stream: async () => {
    let text = "";
    for await (const part of streamText({ ...ai, model: model(), prompt: HELLO, tools }).fullStream) text += part.type;
    assert(text);
  },
  "tool loop": async () => {
    const result = await generateText({ ...ai, model: model(), prompt: ASK, tools, stopWhen: stepCountIs(4) });
    assert(result.steps.length > 1 && result.text);
  },
  "streamed tool loop": async () => {
    const result = streamText({ ...ai, model: model(), prompt: ASK, tools, stopWhen: stepCountIs(4) });
    await result.consumeStream();
    assert((await result.steps).length > 1 && (await result.text));
  },
  history: async () => {
    const first = await generateText({ ...ai, model: model(), prompt: ASK, tools, stopWhen: stepCountIs(4) });
    const messages = [user(ASK), ...first.response.messages, user(HELLO)];
    assert((await generateText({ ...ai, model: model(), messages, tools })).text !== undefined);
  },
  "structured output": async () => {
    const result = await generateObject({ ...ai, model: model(), schema: Order, prompt: ASK, maxOutputTokens: 100 });
    assert(Order.parse(result.object));
    const called = await generateText({
      ...ai, model: model(), prompt: HELLO, tools, toolChoice: "required", maxOutputTokens: 60,
    });
    assert(called.toolCalls.length);
  },
  "two system prompts": async () =>
    assert((await generateText({
      ...ai, model: model(), messages: [...two, user(HELLO)], allowSystemInMessages: true,
    })).text !== undefined),
  "one call at a time": async () =>
    assert((await generateText({
      ...ai, model: model(), prompt: ASK, tools, providerOptions: { grpo: { parallel_tool_calls: false } },
    })).toolCalls.length <= 1),
  cancel: async () => {
    const controller = new AbortController();
    const result = streamText({
      ...ai, model: model(), prompt: HELLO, abortSignal: controller.signal, onError: () => {},
    });
    for await (const _ of result.textStream) {
      controller.abort();
      break;
    }
  },
  429: () =>
    busy(async () =>
      assert((await generateText({ model: model(LIMITED), prompt: HELLO, tools, maxRetries: 30 })).finishReason)),
};

const client = process.argv[2];
for (const [what, work] of Object.entries(client === "AI SDK" ? aiCases : openaiCases)) {
  let result = "works";
  try {
    await work();
  } catch (error) {
    result = String(error?.responseBody ?? error?.error?.message ?? error?.message ?? error).replace(/\s+/g, " ").slice(0, 300);
  }
  console.log(`{"client": ${JSON.stringify(client)}, "what": ${JSON.stringify(what)}, "result": ${JSON.stringify(result)}}`);
}
