// Elements, whose text is always set as text and never parsed.

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element; properties that begin with `on` are listeners, the others attributes. */
export function h(name, properties = {}, ...children) {
  return filled(document.createElement(name), properties, children);
}

/** Returns an SVG element. */
export function svg(name, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, name), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Returns a table that scrolls on its own; a column is {name, cell, number, wide, sort}. */
export function table(label, columns, rows, head = columns.map((column) => h("th", { scope: "col", class: classOf(column) }, column.name))) {
  const body = rows.map((row) =>
    h("tr", {}, columns.map((column, at) =>
      h(at === 0 ? "th" : "td", { class: classOf(column), scope: at === 0 ? "row" : null }, column.cell(row)))));
  const made = h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, made);
}

export function classOf(column) {
  return [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null;
}

/** Returns a list of names and values. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value != null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Returns a section with a heading. */
export function card(title, ...children) {
  return h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);
}

/** Returns a badge with a state. */
export function badge(state) {
  return h("span", { class: `state ${/^[A-Za-z_]+$/.test(state) ? state : ""}` }, state);
}

/** Returns a bar with a text, such as a share of devices. */
export function meter(label, value, most, text) {
  return h("span", { class: "meter" }, h("progress", { max: most, value: Math.min(value, most), "aria-label": label }), ` ${text}`);
}

/** Reads a text to those who do not see the page. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
