// Texts of messages: a long one is cut until somebody wants all of it, and JSON folds.

import { bytes, count, made } from "./shown.js";

const SHOWN = 300; // characters of a text
const CHILDREN = 200; // of an object or a list
const BRIEF = 80; // characters of an object or a list that is folded

// A number as it was written: JavaScript's own would round it.
class Digits {
  constructor(text) {
    this.text = text;
  }
}

export function parsed(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" ? new Digits(context?.source ?? String(value)) : value);
}

// A node that shows a text. `size` is that of the whole, in bytes; `whole` asks for it.
export function shown(text, size = text.length, whole = null) {
  if (!whole) {
    const value = asJson(text);
    if (value) return folded(value);
    if (text.length <= SHOWN) return made("span", text);
  }
  const box = document.createElement("span");
  const more = made("button", `show all ${bytes(size)}`, "more");
  more.type = "button";
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      const all = whole ? await whole() : text, value = asJson(all);
      box.replaceChildren(value ? folded(value) : made("span", all, "whole"));
    } catch (error) {
      box.replaceChildren(made("span", error.message, "down"));
    }
  });
  box.append(made("span", `${text.slice(0, SHOWN)}…`), more);
  return box;
}

function asJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return parsed(text);
  } catch {
    return null; // a text that only begins like JSON
  }
}

// A value of JSON as a node. What is in an object or a list is made when it is opened.
export function folded(value) {
  if (value instanceof Digits) return made("span", value.text);
  if (typeof value === "string") return shown(JSON.stringify(value));
  if (value === null || typeof value !== "object") return made("span", String(value));
  const isList = Array.isArray(value), entries = Object.entries(value);
  const brief = textOf(value, BRIEF);
  if (!entries.length) return made("span", brief);
  const details = document.createElement("details");
  const size = isList ? `[${count(entries.length)}] ` : "";
  details.append(made("summary", `${size}${brief.length > BRIEF ? `${brief.slice(0, BRIEF)}…` : brief}`));
  details.addEventListener("toggle", () => {
    if (details.children.length > 1) return;
    for (const [name, part] of entries.slice(0, CHILDREN)) {
      const item = made("div", made("span", `${name}: `, "faint"));
      item.append(folded(part));
      details.append(item);
    }
    if (entries.length > CHILDREN) details.append(made("div", `${count(entries.length - CHILDREN)} more`, "faint"));
  });
  return details;
}

// A value of JSON as text. It may end as soon as it has more than `most` characters.
export function textOf(value, most = Infinity) {
  if (value instanceof Digits) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value), names = Object.keys(value);
  let text = isList ? "[" : "{";
  for (const [index, name] of names.entries()) {
    if (text.length > most) break;
    text += `${index ? ", " : ""}${isList ? "" : `${JSON.stringify(name)}: `}${textOf(value[name], most - text.length)}`;
  }
  return text + (isList ? "]" : "}");
}
