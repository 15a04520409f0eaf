// One run: what it says, its curves, its plan, what it found and what it costs.

import { action } from "./actions.js";
import { get, streamWhileSeen } from "./api.js";
import { Curves, scatter } from "./charts.js";
import { badge, card, facts, h, say, table } from "./dom.js";
import { NOTHING, age, duration, interval, metric, metrics, number, params, usd, when } from "./format.js";

const REREAD_MS = 5000, MOST_LINES = 5000;

/** Shows the page until `signal` is aborted. */
export async function show(place, [id], signal) {
  const top = h("div"), below = h("div"), log = new Log();
  const loss = new Curves("Loss of the training", "optimizer step", "loss");
  const scores = new Curves("Metrics of the training", "optimizer step", "metric");
  const trials = new Curves("Trials", "optimizer step", "metric");
  for (const curves of [loss, scores, trials]) signal.addEventListener("abort", () => curves.close());
  let drawn = "";

  async function read() {
    const run = await get(`runs/${id}`, signal);
    const text = JSON.stringify({ ...run, spent: run.summary.state === "running" ? run.stages : run.spent });
    top.replaceChildren(...head(run, read));
    if (text === drawn) return;
    drawn = text;
    loss.set(run.curves.losses.length ? [{ name: "loss", points: run.curves.losses }] : []);
    scores.set(Object.entries(run.curves.metrics).map(([name, points]) => ({ name, points })));
    trials.set(run.trials.filter((trial) => trial.history.length).map((trial) => ({ name: `${params(trial.params)} · ${trial.id}`, points: trial.history })));
    const open = new Set([...below.querySelectorAll("details[open]")].map((each) => each.id));
    below.replaceChildren(...body(run));
    for (const each of below.querySelectorAll("details")) each.open = open.has(each.id);
  }

  place.append(h("h1", { tabindex: -1 }, id), top, h("div", { class: "halves" }, loss.element, scores.element), trials.element, below, log.element);
  await read();
  let read_at = Date.now(), waiting;
  signal.addEventListener("abort", () => clearTimeout(waiting));
  function soon() {
    clearTimeout(waiting);
    waiting = setTimeout(() => { read_at = Date.now(); read().catch((error) => { if (!signal.aborted && (!error.status || error.status >= 500)) soon(); }); }, Math.max(0, read_at + REREAD_MS - Date.now()));
  }
  let state;
  while (!signal.aborted) {
    try {
      await streamWhileSeen(`runs/${id}/events?after=${log.next}`, signal, (event, data) => {
        if (event === "lines") log.add(data);
        if (event === "problem") log.add({ next: log.next, lines: [{ time: new Date().toISOString(), stage: "", text: data.error }] });
        if (event === "state") {
          if (state && state !== data.state) say(`run ${id}: ${data.state}`);
          state = data.state;
        }
        soon();
      });
    } catch (error) {
      if (signal.aborted || error.status) throw error;
      say("the connection to the dashboard is lost; trying again");
    }
    if (state && state !== "running") return;
    if (!document.hidden) await new Promise((resolve) => setTimeout(resolve, REREAD_MS));
  }
}

class Log {
  constructor() {
    this.next = 0;
    this.lines = h("pre", { class: "log", role: "log", "aria-live": "off", tabindex: 0, "aria-label": "Log" });
    this.element = card("Log", this.lines);
  }

  add({ next, lines }) {
    const isAtEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 40;
    this.next = next;
    for (const { time, stage, text } of lines) {
      this.lines.append(h("span", { class: "time" }, when(time)), ` ${stage ? `${stage}: ` : ""}${text}\n`);
    }
    while (this.lines.childNodes.length > 2 * MOST_LINES) this.lines.firstChild.remove();
    if (isAtEnd) this.lines.scrollTop = this.lines.scrollHeight;
  }
}

function head(run, read) {
  const { summary, spent } = run;
  const cancel = summary.state === "running" && action("Cancel the run", `Cancel ${summary.id}?`, "The run saves a checkpoint and ends. winnow run JOB --resume goes on with it.", `runs/${summary.id}/cancel`, read);
  return [
    h("div", { class: "row" }, badge(summary.state), run.is_simulated && h("span", { class: "soft" }, "accelerators are simulated: times and prices mean nothing"), cancel),
    facts([
      ["age", age(summary.created)], ["owner", summary.owner], ["model", summary.model], ["winner", summary.winner],
      [summary.metric ?? "metric", summary.value == null ? null : metric(summary.value)],
      [summary.state === "running" ? "time so far" : "time", duration(spent.time_s)],
      [spent.is_final ? "cost" : "cost so far, about", spent.cost_usd == null ? null : usd(spent.cost_usd)],
      ["predicted time", run.predicted_time_s && interval(run.predicted_time_s, duration)],
      ["predicted cost", run.predicted_cost_usd && interval(run.predicted_cost_usd, usd)],
    ])];
}

function body(run) {
  return [pareto(run), plan(run), trialTable(run), receipt(run), inputs(run)].filter(Boolean);
}

function pareto(run) {
  const judged = run.options.filter((option) => option.quality != null);
  if (!judged.length) return null;
  const isPriced = judged.every((option) => option.cost_usd != null);
  const [name, field, show] = isPriced ? ["predicted cost of the full run", "cost_usd", usd] : ["predicted time of the full run", "time_s", duration];
  const quality = `${run.summary.metric ?? "quality"} of the trial`;
  const points = judged.map((option) => ({
    x: option[field] ?? 0, y: option.quality, kind: isChosen(run, option) ? "winner" : option.is_pareto ? "pareto" : "other",
    title: `${option.candidate} ${params(option.params)}: ${show(option[field])}, ${metric(option.quality)}`,
  }));
  const columns = [
    { name: "candidate", cell: (option) => option.candidate },
    { name: "fields", cell: (option) => params(option.params) },
    { name: "predicted time", number: true, cell: (option) => duration(option.time_s) },
    { name: "predicted cost", number: true, cell: (option) => usd(option.cost_usd) },
    { name: quality, number: true, cell: (option) => metric(option.quality) },
    { name: "note", cell: (option) => [isChosen(run, option) && "chosen", option.is_pareto && "Pareto front", option.breaks.length && `breaks ${option.breaks.join(", ")}`].filter(Boolean).join(", ") },
  ];
  return card("Options", run.reason && h("p", { class: "soft" }, run.reason), scatter(points, name, quality, show, (value) => String(Number(value.toPrecision(4)))),
    h("details", { id: "options" }, h("summary", {}, `All ${run.options.length} options`), table("Options", columns, run.options)));
}

function isChosen(run, option) {
  return run.chosen != null && option.candidate === run.chosen.candidate && JSON.stringify(option.params) === JSON.stringify(run.chosen.params);
}

function plan(run) {
  if (!run.candidates.length) return null;
  const columns = [
    { name: "candidate", cell: (each) => each.is_winner ? h("strong", {}, `${each.id} (winner)`) : each.id },
    { name: "fit in memory", cell: (each) => `${each.verdict}${each.memory_gib == null ? "" : `, ${each.memory_gib.toFixed(1)} GiB`}` },
    { name: "step", number: true, cell: (each) => duration(each.step_s) },
    { name: "rows/s", number: true, cell: (each) => number(each.samples_per_s) },
    { name: "predicted time", number: true, wide: true, cell: (each) => duration(each.time_s) },
    { name: "predicted cost", number: true, wide: true, cell: (each) => usd(each.cost_usd) },
    { name: "price", number: true, wide: true, cell: (each) => each.price_usd_per_hour == null ? NOTHING : `${usd(each.price_usd_per_hour)}/h` },
    { name: "note", wide: true, cell: (each) => each.note },
  ];
  const skipped = run.skipped.length && h("details", { id: "skipped" }, h("summary", {}, `${run.skipped.length} skipped`), h("ul", {}, run.skipped.map((each) => h("li", {}, `${each.id}: ${each.reason}`))));
  const remarks = run.remarks.map((text) => h("p", { class: "soft" }, text));
  return card("Plan", ...remarks, table("Candidates of the plan", columns, run.candidates), skipped || "");
}

function trialTable(run) {
  if (!run.trials.length) return null;
  const columns = [
    { name: "trial", cell: (trial) => trial.id },
    { name: "fields", cell: (trial) => params(trial.params) },
    { name: "metrics", cell: (trial) => metrics(trial.metrics) },
    { name: "time", number: true, cell: (trial) => duration(trial.duration_s) },
    { name: "end", cell: (trial) => trial.failure || (trial.stopped_early ? "stopped early" : "complete") },
  ];
  return h("section", { class: "card", "aria-label": "All trials" }, h("details", { id: "trials" }, h("summary", {}, `All ${run.trials.length} trials`), table("Trials", columns, run.trials)));
}

function receipt(run) {
  return run.receipt ? card("Receipt", h("div", { class: "scroll receipt", tabindex: 0, role: "region", "aria-label": "Lines of the receipt" }, h("pre", {}, run.receipt))) : null;
}

function inputs(run) {
  return h("div", { class: "halves" },
    card("Job file", h("details", { id: "job" }, h("summary", {}, "Show"), h("pre", {}, run.job))),
    card("Inputs", Object.keys(run.inputs).length ? facts(Object.entries(run.inputs)) : h("p", { class: "soft" }, "No digests of its inputs are recorded."), h("h3", {}, "Stages"), facts(Object.entries(run.stages).map(([stage, time]) => [stage, h("time", {}, when(time))]))));
}
