// Asks for looks again and again, and shows the last one as tables and all of them as plots.

import { leave, showMessages } from "./messages.js";
import { plot } from "./plot.js";
import { answer, asked, bytes, count, duration, element, fill, made, number, place } from "./shown.js";

const KEPT = 600;
const LINES_MAX = 6;
let looks = [];
let address = ""; // that of this page, with its token

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
  problems(health.reasons.map((reason) => [reason.severity, `${reason.text}; ${reason.way_out}:`, reason.command]));
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
  element("problems").replaceChildren(...list.map(([severity, text, command]) => {
    const item = made("li", text, severity);
    if (command) item.append(" ", made("code", command));
    return item;
  }));
}

function link(topic) {
  const anchor = made("a", topic);
  anchor.href = place({ topic, start: "last 50" });
  return anchor;
}

function draw() {
  const good = looks.filter((look) => !look.error);
  if (!good.length || element("overview").hidden) return;
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

// The stores of this page, each with how it is.
function showStores(stores) {
  const here = asked().store ?? stores[0].name;
  element("stores").hidden = stores.length < 2;
  element("stores").replaceChildren(...stores.map((store) => {
    const anchor = made("a", store.name);
    anchor.href = `#${new URLSearchParams({ store: store.name })}`;
    anchor.title = store.path;
    if (store.name === here) anchor.setAttribute("aria-current", "page");
    anchor.append(" ", made("span", store.status, store.status));
    return anchor;
  }));
}

async function follow() {
  for (;;) {
    const { store } = asked();
    try {
      const last = looks.length ? looks[looks.length - 1].number : 0;
      const found = await (await answer("/api/looks", { after: last, ...(store && { store }) })).json();
      address = found.address;
      showStores(found.stores);
      if (store !== asked().store) continue;
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

let shownStore = asked().store;

// Shows the view that the address names.
function go() {
  const { store, topic } = asked(), hasMessages = topic !== undefined;
  if (store !== shownStore) {
    looks = [];
    shownStore = store;
  }
  element("overview").hidden = hasMessages;
  element("messages").hidden = !hasMessages;
  for (const [id, to, isHere] of [["to-overview", {}, !hasMessages], ["to-messages", { topic: topic ?? "" }, hasMessages]]) {
    element(id).href = place(to);
    if (isHere) element(id).setAttribute("aria-current", "page");
    else element(id).removeAttribute("aria-current");
  }
  if (hasMessages) showMessages();
  else {
    leave();
    draw();
  }
}

element("link").addEventListener("click", () => {
  const box = element("linked").querySelector("input");
  box.value = `${address}${location.hash}`;
  element("linked").hidden = false;
  box.select();
});
addEventListener("hashchange", go);
addEventListener("resize", draw);
go();
follow();
