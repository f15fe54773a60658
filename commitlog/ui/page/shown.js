// What both views need: numbers as text, nodes, tables, and questions to the server.

export const element = (id) => document.getElementById(id);
export const count = (value) => Math.round(value).toLocaleString("en");
export const number = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });

export function bytes(value) {
  for (const [least, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (value >= least) return `${number(value / least, 1)} ${unit}`;
  return `${Math.round(value)} B`;
}

export function duration(us) {
  if (us === null) return "–";
  for (const [least, unit, name] of [[3.6e9, 3.6e9, "h"], [1e8, 6e7, "min"], [1e6, 1e6, "s"], [1e3, 1e3, "ms"]])
    if (us >= least) return `${number(us / unit, us / unit < 10 ? 1 : 0)} ${name}`;
  return `${Math.round(us)} µs`;
}

// A node with a text or a node in it. Texts come from the log, so from anybody: never as HTML.
export function made(tag, content, kind) {
  const node = document.createElement(tag);
  node.append(content);
  if (kind) node.className = kind;
  return node;
}

export function heads(columns) {
  const line = document.createElement("tr");
  for (const [title, , kind] of columns) line.append(made("th", title, kind));
  return line;
}

export function line(columns, row) {
  const made_line = document.createElement("tr");
  for (const [title, cell, kind] of columns) {
    const node = made("td", cell(row), kind);
    node.dataset.head = title;
    made_line.append(node);
  }
  return made_line;
}

// Fills a table. A column is [head, cell of a row, class].
export function fill(id, columns, rows, isBad = () => false) {
  const body = rows.map((row) => {
    const made_line = line(columns, row);
    if (isBad(row)) made_line.className = "bad";
    return made_line;
  });
  element(id).replaceChildren(...(rows.length ? [heads(columns), ...body] : [made("td", "none", "faint")]));
}

// The answer to a question. Throws what the server says is wrong.
export async function answer(path, query, signal) {
  const found = await fetch(`${path}?${new URLSearchParams(query)}`, { signal });
  if (found.ok) return found;
  const text = (await found.text()).trim();
  throw new Error(found.headers.get("Content-Type")?.includes("json") ? JSON.parse(text).error : text);
}

// What the address says after its #: store, topic, start, partition, search, follow.
export const asked = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// The same place with some words changed; null takes a word away.
export function place(changes) {
  const words = Object.entries({ store: asked().store ?? null, ...changes });
  return `#${new URLSearchParams(words.filter(([, value]) => value !== null))}`;
}
