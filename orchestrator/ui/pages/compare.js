// Runs side by side.

import { get } from "./api.js";
import { parallel } from "./charts.js";
import { badge, card, h, table } from "./dom.js";
import { NOTHING, duration, metric, usd } from "./format.js";

const MOST_AXES = 12;

export async function show(place, _, signal, query) {
  const ids = query.getAll("run");
  place.append(h("h1", { tabindex: -1 }, "Compare"));
  if (ids.length < 2) {
    place.append(h("p", {}, "Choose 2 to 8 runs in the ", h("a", { href: "#/runs" }, "list of runs"), "."));
    return;
  }
  const found = await get(`compare?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`, signal);
  const names = found.runs.map((run) => run.id), time = found.runs.map((run) => run.time_s), cost = found.runs.map((run) => run.cost_usd);
  const metrics = Object.entries(found.metrics), fields = Object.entries(found.fields);
  const known = (pairs) => pairs.map(([name, values]) => ({ name, values })).filter(({ values }) => values.some((value) => value != null));
  const results = known([["time, s", time], ["cost, $", cost], ...metrics]).slice(0, MOST_AXES), all = known(fields);
  const shown = [...all.slice(0, MOST_AXES - results.length), ...results], left = all.length - (shown.length - results.length);
  const rows = [
    ["state", found.runs.map((run) => badge(run.state))], ["owner", found.runs.map((run) => run.owner ?? NOTHING)], ["winner", found.runs.map((run) => run.winner ?? NOTHING)],
    ...metrics.map(([name, values]) => [name, values.map(metric)]), ["time", time.map(duration)], ["cost", cost.map(usd)],
    ...fields.map(([name, values]) => [name, values.map((value) => value == null ? NOTHING : String(value))])];
  const columns = [{ name: "", cell: ([name]) => name }, ...names.map((name, at) => ({ name: h("a", { href: `#/runs/${name}` }, name), cell: ([, values]) => values[at] }))];
  if (shown.length > 1) {
    place.append(card("Parallel coordinates", left > 0 && h("p", { class: "soft" }, `${left} further fields are in the table`), parallel(shown, names)));
  }
  place.append(card("What differs", table("What differs between the runs", columns, rows)));
}
