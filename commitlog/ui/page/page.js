// Asks for looks again and again, and shows the last one as tables and all of them as plots.

import { plot } from "./plot.js";

const KEPT = 600;
const LINES_MAX = 6;
const looks = [];
let next = null; // the question whose answer follows the one that is shown

const element = (id) => document.getElementById(id);
const count = (value) => Math.round(value).toLocaleString("en");
const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

function bytes(value) {
  for (const [least, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (value >= least) return `${number(value / least, 1)} ${unit}`;
  return `${Math.round(value)} B`;
}

function duration(us) {
  if (us === null) return "–";
  for (const [least, unit, name] of [[3.6e9, 3.6e9, "h"], [1e8, 6e7, "min"], [1e6, 1e6, "s"], [1e3, 1e3, "ms"]])
    if (us >= least) return `${number(us / unit, us / unit < 10 ? 1 : 0)} ${name}`;
  return `${Math.round(us)} µs`;
}

// Fills a table. A column is [head, cell of a row, class]. Texts come from the log: never as HTML.
function fill(id, columns, rows, isBad = () => false) {
  const table = element(id);
  const head = document.createElement("tr");
  for (const [title, , kind] of columns) head.append(made("th", title, kind));
  const body = rows.map((row) => {
    const line = document.createElement("tr");
    if (isBad(row)) line.className = "bad";
    for (const [, cell, kind] of columns) line.append(made("td", cell(row), kind));
    return line;
  });
  table.replaceChildren(...(rows.length ? [head, ...body] : [made("td", "none", "faint")]));
}

function made(tag, content, kind) {
  const node = document.createElement(tag);
  node.append(content);
  if (kind) node.className = kind;
  return node;
}

function show(look) {
  const { store, health, space } = look;
  document.title = `${health.status}: ${store.path}`;
  element("status").textContent = health.status;
  element("status").className = `status ${health.status}`;
  element("path").textContent = store.path;
  element("state").textContent = `${store.state}, generation ${store.generation}`;
  element("rate").textContent = `${count(look.messages_per_second)} messages/s, ${bytes(look.bytes_per_second)}/s`;
  const memory = space.pool === null ? "" : `; shared memory ${bytes(space.shared_memory_free)} free, this store ${bytes(space.pool)}`;
  element("space").textContent = `disk ${bytes(space.disk_free)} free${memory}`;
  problems(health.reasons.map((reason) => [reason.severity, `${reason.text}: ${reason.way_out}`]));
  fill("lanes", [
    ["lane", (lane) => lane.lane, "text"],
    ["producer", (lane) => lane.producer || "–"],
    ["messages/s", (lane) => count(lane.messages_per_second)],
    ["bytes/s", (lane) => bytes(lane.bytes_per_second)],
    ["uncommitted", (lane) => bytes(lane.uncommitted)],
    ["unflushed", (lane) => bytes(lane.unflushed)],
    ["undispatched", (lane) => bytes(lane.undispatched)],
    ["buffers free", (lane) => lane.available_buffers ?? "–"],
    ["blocked for", (lane) => duration(lane.blocked_ms === null ? null : lane.blocked_ms * 1000)],
    ["fault", (lane) => Object.entries(lane.faults).map(([stage, name]) => `${stage}:${name}`).join(" ") || "–", "text"],
  ], look.lanes, (lane) => lane.blocked_ms !== null || Object.keys(lane.faults).length > 0);
  fill("stages", [
    ["stage", (stage) => stage.stage, "text"],
    ["pid", (stage) => stage.pid || "–"],
    ["CPU", (stage) => (stage.cpu === null ? "–" : `${number(stage.cpu * 100, 1)} %`)],
    ["memory", (stage) => (stage.resident_bytes === null ? "–" : bytes(stage.resident_bytes))],
    ["heartbeat", (stage) => `${duration(stage.silent_ms * 1000)} ago`],
    ["rounds/s", (stage) => number(stage.rounds_per_second, 1)],
    ["actions/s", (stage) => number(stage.actions_per_second, 1)],
    ["p50", (stage) => duration(stage.p50_us)],
    ["p99", (stage) => duration(stage.p99_us)],
    ["restarts", (stage) => stage.restarts],
  ], look.stages, (stage) => !stage.pid);
  fill("topics", [
    ["topic", (topic) => link(topic.topic), "text"],
    ["messages", (topic) => count(topic.messages)],
    ["flushed/s", (topic) => count(topic.messages_per_second)],
    ["lanes", (topic) => topic.lanes.join(", "), "text"],
  ], look.topics);
  fill("readers", [
    ["reader", (reader) => reader.reader, "text"],
    ["behind", (reader) => count(reader.behind)],
    ["read/s", (reader) => (reader.messages_per_second === null ? "–" : count(reader.messages_per_second))],
    ["in use", (reader) => (reader.running ? "yes" : "no")],
    ["moved", (reader) => `${duration(reader.still_ms * 1000)} ago`],
  ], look.readers, (reader) => reader.warning);
  fill("replicas", [
    ["replica", (replica) => replica.name, "text"],
    ["state", (replica) => replica.state, "text"],
    ["lanes in sync", (replica) => `${replica.in_sync} of ${replica.lanes}`],
    ["behind", (replica) => bytes(replica.behind_bytes)],
    ["behind for", (replica) => duration(replica.behind_ms * 1000)],
    ["bytes/s", (replica) => bytes(replica.bytes_per_second)],
  ], look.replicas, (replica) => replica.state !== "connected");
  fill("forwarders", [
    ["forwarder", (forwarder) => forwarder.name, "text"],
    ["to", (forwarder) => forwarder.target, "text"],
    ["state", (forwarder) => forwarder.state, "text"],
    ["behind", (forwarder) => count(forwarder.behind_messages)],
    ["behind for", (forwarder) => duration(forwarder.behind_ms * 1000)],
    ["messages/s", (forwarder) => count(forwarder.messages_per_second)],
    ["errors", (forwarder) => count(forwarder.errors)],
    ["last error", (forwarder) => forwarder.last_error || "–", "text"],
  ], look.forwarders, (forwarder) => forwarder.state === "waiting");
  for (const id of ["replicas", "forwarders"]) element(id).parentElement.hidden = !look[id].length;
  const names = look.topics.map((topic) => topic.topic);
  if (names.length !== element("names").children.length)
    element("names").replaceChildren(...names.map((name) => new Option(name)));
}

function problems(list) {
  element("problems").replaceChildren(...list.map(([severity, text]) => made("li", text, severity)));
}

function link(topic) {
  const anchor = made("a", topic);
  anchor.href = `#${new URLSearchParams({ topic, start: "last 50" })}`;
  return anchor;
}

function draw() {
  const good = looks.filter((look) => !look.error);
  if (!good.length) return;
  const times = good.map((look) => look.time_ms);
  const sum = (look, name) => look.lanes.reduce((all, lane) => all + lane[name], 0);
  const of = (name, value) => ({ name, values: good.map(value) });
  plot(element("plot-rate"), times, [of("accepted", (look) => look.messages_per_second)], count);
  plot(element("plot-lag"), times, ["uncommitted", "unflushed", "undispatched"].map((name) => of(name, (look) => sum(look, name))), bytes);
  const flusher = (look) => look.stages.find((stage) => stage.stage === "flusher");
  plot(element("plot-sync"), times, ["p50_us", "p99_us"].map((name) => of(name.slice(0, 3), (look) => flusher(look)?.[name] ?? null)), duration);
  const last = good[good.length - 1];
  const readers = last.readers.toSorted((a, b) => b.behind - a.behind).slice(0, LINES_MAX).map((reader) => reader.reader);
  plot(element("plot-readers"), times, readers.map((name) => of(name, (look) => look.readers.find((reader) => reader.reader === name)?.behind ?? null)), count);
}

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const text = await answer.text();
  if (!answer.headers.get("Content-Type")?.includes("json")) throw new Error(text.trim());
  const found = JSON.parse(text);
  if (found.error) throw new Error(found.error);
  return found;
}

async function follow() {
  for (;;) {
    try {
      const last = looks.length ? looks[looks.length - 1].number : 0;
      const found = await ask("/api/looks", { after: last });
      looks.push(...found.looks);
      looks.splice(0, looks.length - KEPT);
      const look = looks[looks.length - 1];
      if (look?.error) problems([["down", look.error]]);
      else if (look) show(look);
      draw();
    } catch (error) {
      element("status").textContent = "not connected";
      element("status").className = "status down";
      problems([["down", `the page's server does not answer: ${error.message}`]]);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

// ---- messages ---------------------------------------------------------------------------------

async function showMessages() {
  const question = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!question.topic) return;
  const form = element("ask").elements;
  for (const name of ["topic", "start", "partition"]) form[name].value = question[name] ?? "";
  element("next").hidden = true;
  let found = [];
  try {
    found = (await ask("/api/messages", question)).messages;
    element("answer").textContent = found.length ? "" : "no messages from there on";
  } catch (error) {
    element("answer").textContent = error.message;
  }
  fill("found", [
    ["partition", (message) => message.partition],
    ["offset", (message) => count(message.offset)],
    ["stored", (message) => new Date(message.timestamp).toISOString(), "text"],
    ["key", (message) => message.key ?? "–", "text"],
    ["headers", (message) => Object.entries(message.headers).map(([name, value]) => `${name}=${value}`).join(" "), "text"],
    ["value", valueOf, "value"],
  ], found);
  if (found.length && question.partition) {
    next = { ...question, start: found[found.length - 1].offset + 1 };
    element("next").hidden = false;
  }
}

function valueOf(message) {
  const value = message.value ?? `base64: ${message.value_base64}`;
  return message.bytes > 4096 ? `${value} … ${bytes(message.bytes)}` : value;
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const asked = new URLSearchParams(new FormData(event.target));
  if (!asked.get("partition")) asked.delete("partition");
  if (location.hash === `#${asked}`) showMessages();
  location.hash = asked;
});
element("next").addEventListener("click", () => (location.hash = new URLSearchParams(next)));
addEventListener("hashchange", showMessages);
addEventListener("resize", draw);
showMessages();
follow();
