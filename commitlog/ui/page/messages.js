// The view of messages: asks for those of a topic, and shows them as they come.

import { folded, parsed, shown, textOf } from "./folded.js";
import { answer, asked, bytes, count, element, heads, line, made, place } from "./shown.js";

const ROWS_MAX = 500; // of the table, while it follows
let running = null; // what ends the question that is asked now
let next = null; // the question whose answer follows the one that is shown

const OFTEN = [
  ["partition", ({ message }) => String(message.partition)],
  ["offset", ({ message }) => link(count(message.offset), { partition: message.partition, start: message.offset })],
  ["stored", ({ message }) => link(time(message), { start: time(message) }), "text"],
];
const SOMETIMES = [
  ["key", ({ message }) => message.key !== null, ({ message }) => part(message, "key")],
  ["tags", ({ message }) => message.tags !== null, ({ message }) => part(message, "tags")],
  ["headers", ({ message }) => Object.keys(message.headers).length > 0, ({ message }) => headers(message)],
];

const time = (message) => new Date(message.timestamp).toISOString();

function link(text, to) {
  const anchor = made("a", text);
  anchor.href = place({ topic: asked().topic, ...to });
  return anchor;
}

// The whole message, of which the answer has only the beginning.
async function whole(message) {
  const { store, topic, search = "" } = asked();
  const query = { topic, search, partition: message.partition, offset: message.offset, ...(store && { store }) };
  return (await (await answer("/api/message", query)).json()).message;
}

function part(message, name) {
  const text = message[name] ?? "–", cut = message.cut.includes(name);
  return shown(text, text.length, cut ? async () => (await whole(message))[name] : null);
}

function headers(message) {
  const text = (found) => Object.entries(found).map(([name, value]) => `${name}=${value}`).join(" ");
  const now = text(message.headers);
  return shown(now, now.length, message.cut.includes("headers") ? async () => text((await whole(message)).headers) : null);
}

function value(message) {
  const text = (found) => found.value ?? `base64: ${found.value_base64}`;
  const node = shown(text(message), message.bytes, message.cut.includes("value") ? async () => text(await whole(message)) : null);
  if (!message.no_rows) return node;
  const both = made("span", made("span", `${message.no_rows} `, "down"));
  both.append(node);
  return both;
}

function column(row, name) {
  const { message, index } = row, found = row.columns[name];
  if (found === undefined) return "";
  if (message.cut.includes(`${index} ${name}`)) {
    const all = async () => text(parsed((await whole(message)).rows[index])[name]);
    return shown(text(found), found.length, all);
  }
  return typeof found === "string" ? shown(found) : folded(found);
}

const text = (found) => (typeof found === "string" ? found : textOf(found));

// The table of what was found. It gets a column when the first row needs it.
class Found {
  constructor(isNewestFirst) {
    this.isNewestFirst = isNewestFirst;
    this.rows = [];
    this.names = new Set();
    this.last = {};
    element("found").replaceChildren();
  }

  add(messages) {
    const rows = messages.flatMap(rowsOf);
    const before = this.names.size;
    for (const row of rows) {
      for (const [name, isThere] of SOMETIMES) if (isThere(row)) this.names.add(name);
      for (const name of Object.keys(row.columns)) this.names.add(`column ${name}`);
      if (!row.message.rows || row.index < 0) this.names.add("value");
    }
    this.rows = this.isNewestFirst ? [...rows.reverse(), ...this.rows].slice(0, ROWS_MAX) : [...this.rows, ...rows];
    if (this.names.size > before) {
      this.draw();
      return;
    }
    const columns = this.columns(), table = element("found");
    const lines = rows.map((row) => line(columns, row));
    if (this.isNewestFirst) table.firstChild?.after(...lines);
    else table.append(...lines);
    while (table.children.length > this.rows.length + 1) table.lastChild.remove();
  }

  columns() {
    const some = SOMETIMES.filter(([name]) => this.names.has(name)).map(([name, , cell]) => [name, cell, "value"]);
    const own = [...this.names].filter((name) => name.startsWith("column ")).map((name) => name.slice(7));
    const columns = [...OFTEN, ...some, ...own.map((name) => [name, (row) => column(row, name), "value"])];
    return this.names.has("value") ? [...columns, ["value", (row) => (row.message.rows ? this.rest(row) : value(row.message)), "value"]] : columns;
  }

  // Below the first rows of a message: a way to all of them.
  rest({ message, index }) {
    if (index >= 0) return "";
    const more = made("button", `show all ${count(message.row_count)} rows`, "more");
    more.type = "button";
    more.addEventListener("click", async () => {
      more.disabled = true;
      try {
        const rows = rowsOf(await whole(message));
        if (rows[rows.length - 1].index < 0) rows.pop(); // more than the server shows: `commitlog cat --rows` has them
        const at = this.rows.findIndex((row) => isOf(row, message)), kept = this.rows.filter((row) => !isOf(row, message));
        this.rows = [...kept.slice(0, at), ...rows, ...kept.slice(at)];
        this.draw();
      } catch (error) {
        more.replaceWith(made("span", error.message, "down"));
      }
    });
    return more;
  }

  draw() {
    const columns = this.columns();
    element("found").replaceChildren(heads(columns), ...this.rows.map((row) => line(columns, row)));
  }
}

function rowsOf(message) {
  if (!message.rows) return [{ message, columns: {}, index: 0 }];
  const rows = message.rows.map((row, index) => ({ message, columns: parsed(row), index }));
  return message.row_count > rows.length ? [...rows, { message, columns: {}, index: -1 }] : rows;
}

const isOf = (row, { partition, offset }) => row.message.partition === partition && row.message.offset === offset;

// Asks what the address says, and shows the lines of the answer as they come.
export async function showMessages() {
  running?.abort();
  const question = asked();
  for (const name of ["topic", "start", "partition", "search"]) element("ask").elements[name].value = question[name] ?? "";
  element("ask").elements.follow.checked = question.follow === "yes";
  element("next").hidden = element("linked").hidden = true;
  element("stop").hidden = !question.topic;
  if (!question.topic) return;
  const ends = (running = new AbortController()), found = new Found(question.follow === "yes");
  const say = (said) => (element("answer").textContent = said);
  say("…");
  try {
    const streamed = await answer("/api/messages", question, ends.signal);
    let seen = null;
    for await (const lines of linesOf(streamed.body)) {
      if (ends !== running) return;
      const messages = lines.filter((one) => one.message).map((one) => one.message);
      if (messages.length) {
        found.add(messages);
        seen = messages[messages.length - 1];
      }
      for (const said of lines) {
        if (said.error) throw new Error(said.error);
        if (said.looked_at !== undefined) say(looked(said, question, found));
      }
    }
    if (seen && question.partition && !question.search) {
      next = { ...question, start: seen.offset + 1 };
      element("next").hidden = false;
    }
  } catch (error) {
    if (ends !== running) return;
    say(error.name === "AbortError" ? "stopped" : error.message);
  }
  element("stop").hidden = true;
}

function looked(said, question, found) {
  if (!said.end) return `${count(said.looked_at)} messages looked at${question.follow ? ", follows; the newest is first" : "…"}`;
  if (question.search) return `${count(said.found)} found in ${count(said.looked_at)} messages`;
  return found.rows.length ? "" : "no messages from there on";
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield lines.map((one) => JSON.parse(one));
  }
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value));
  const to = place(words);
  if (location.hash === to) showMessages();
  location.hash = to;
});
element("next").addEventListener("click", () => (location.hash = place(next)));
element("stop").addEventListener("click", () => running?.abort());
export const leave = () => running?.abort();
