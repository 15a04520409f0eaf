// The list of runs.

import { get } from "./api.js";
import { badge, classOf, h, say, table } from "./dom.js";
import { NOTHING, age, metric, usd } from "./format.js";

const EVERY_MS = 5000, MOST = 8;
const chosen = new Set();
const settings = { text: "", state: "", by: "created", down: true };

const COLUMNS = [
  { name: "run", by: "id", cell: (run) => h("a", { id: `to-${run.id}`, href: `#/runs/${run.id}` }, run.id) },
  { name: "state", by: "state", cell: (run) => badge(run.state) },
  { name: "age", by: "created", number: true, cell: (run) => age(run.created) },
  { name: "owner", by: "owner", wide: true, cell: (run) => run.owner ?? NOTHING },
  { name: "winner", by: "winner", wide: true, cell: (run) => run.winner ?? NOTHING },
  { name: "metric", by: "value", number: true, cell: (run) => run.value == null ? NOTHING : `${run.metric} ${metric(run.value)}` },
  { name: "cost", by: "cost_usd", number: true, cell: (run) => usd(run.cost_usd) },
  { name: "compare", cell: (run) => pick(run) },
];

/** Shows the page until `signal` is aborted. */
export async function show(place, _, signal) {
  let runs = [], shown = "";
  const count = h("p", { class: "soft" });
  const link = h("a", { href: "#/compare" }, "Compare the chosen runs");
  const listed = h("div");
  const filter = h("input", { type: "search", id: "filter", value: settings.text, oninput: () => { settings.text = filter.value; draw(); } });
  const states = h("select", { id: "state", onchange: () => { settings.state = states.value; draw(); } },
    ["", "running", "completed", "failed", "interrupted", "died"].map((state) => h("option", { value: state, selected: state === settings.state }, state || "any state")));

  function draw() {
    const wanted = settings.text.toLowerCase();
    const found = runs.filter((run) => (!settings.state || run.state === settings.state) && `${run.id} ${run.owner ?? ""} ${run.winner ?? ""}`.toLowerCase().includes(wanted)).sort(order);
    count.textContent = `${found.length} of ${runs.length} runs`;
    link.hidden = chosen.size < 2;
    link.href = `#/compare?${[...chosen].map((id) => `run=${id}`).join("&")}`;
    const focused = document.activeElement?.id;
    listed.replaceChildren(found.length ? table("Runs", COLUMNS, found, COLUMNS.map(head)) : h("p", {}, runs.length ? "No run fits the filter." : "No run is in this storage; winnow run JOB begins one."));
    if (focused) document.getElementById(focused)?.focus();
  }

  function head(column) {
    if (!column.by) return h("th", { scope: "col" }, column.name);
    const isBy = settings.by === column.by;
    const sort = () => { settings.down = isBy ? !settings.down : true; settings.by = column.by; draw(); };
    return h("th", { scope: "col", class: classOf(column), "aria-sort": isBy ? (settings.down === (column.by !== "created") ? "descending" : "ascending") : null },
      h("button", { type: "button", id: `by-${column.by}`, onclick: sort }, column.name));
  }

  place.append(h("h1", { tabindex: -1 }, "Runs"),
    h("div", { class: "row" }, h("label", { for: "filter", class: "unseen" }, "Filter by run, owner or winner"), filter, h("label", { for: "state", class: "unseen" }, "State"), states, count, link), listed);
  filter.placeholder = "run, owner or winner";
  place.addEventListener("chosen", draw, { signal });
  while (!signal.aborted) {
    try {
      const text = document.hidden && shown ? shown : JSON.stringify(await get("runs", signal));
      if (text !== shown) {
        shown = text;
        runs = JSON.parse(text);
        draw();
      }
    } catch (error) {
      if (signal.aborted || !shown || error.status === 401) throw error;
      count.textContent = `${runs.length} runs as of a while ago; trying again: ${error.message}`;
      shown = "again";
    }
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}

function order(one, other) {
  const [a, b] = [one[settings.by], other[settings.by]];
  if (a == null || b == null) return (a == null) - (b == null);
  const sign = a < b ? -1 : a > b ? 1 : 0;
  return settings.down ? -sign : sign;
}

function pick(run) {
  const box = h("input", { type: "checkbox", id: `pick-${run.id}`, "aria-label": `Compare ${run.id}`, onchange: () => {
    if (box.checked && chosen.size === MOST) {
      box.checked = false;
      say(`${MOST} runs are chosen already`);
      return;
    }
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    box.dispatchEvent(new Event("chosen", { bubbles: true }));
  } });
  box.checked = chosen.has(run.id);
  return box;
}
