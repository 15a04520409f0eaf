// Curves by uPlot; scatter and parallel coordinates as SVG. Each has its values in a table too.

import { card, h, svg } from "./dom.js";
import { metric } from "./format.js";

const HEIGHT = 280, COLOURS = 8;
const FAR = 10;  // from this ratio of largest to smallest value on, an axis is logarithmic
const STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const DASHES = [[], [6, 3], [2, 3]];

function colour(at) {
  return css(`--c${at % COLOURS}`);
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Returns an exponential moving average; 0 leaves values as they are. */
export function smoothed(values, weight) {
  let last = null, count = 0;
  return values.map((value) => {
    if (value == null || weight === 0) return value;
    last = weight * (last ?? 0) + (1 - weight) * value;
    count += 1;
    return last / (1 - weight ** count);  // without the pull of the start towards zero
  });
}

/** A card with curves; series are {name, points: [[x, y], ...]}. Keeps its settings when set anew. */
export class Curves {
  constructor(title, x, y) {
    this.title = title, this.x = x, this.y = y;
    this.log = h("input", { type: "checkbox", onchange: () => this.draw() });
    this.smooth = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, oninput: () => this.draw() });
    this.place = h("div", { class: "plot" });
    this.summary = h("p", { class: "soft" });
    this.values = h("div");
    this.element = card(title,
      h("div", { class: "row soft" }, h("label", {}, this.log, ` logarithmic ${y}`), h("label", {}, "smoothing ", this.smooth)),
      this.place, this.summary, h("details", {}, h("summary", {}, "Values"), this.values));
    this.watched = new ResizeObserver(() => this.resize());
    this.watched.observe(this.place);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.scheme.addEventListener("change", this.redraw);
  }

  set(series) {
    const text = JSON.stringify(series);
    if (text === this.shown) return;
    this.shown = text;
    this.series = series;
    this.element.hidden = series.length === 0;
    this.summary.textContent = series.map(described).join("; ");
    this.values.replaceChildren(...series.map((each) => h("p", { class: "soft" }, `${each.name}: `, each.points.map(([x, y]) => `${x} → ${metric(y)}`).join(", "))));
    this.draw();
  }

  draw() {
    this.plot?.destroy();
    this.plot = undefined;
    if (!this.series?.length || !this.place.clientWidth) return;
    const weight = Number(this.smooth.value), isLog = this.log.checked;
    const tables = this.series.map(({ points }) => [points.map(([x]) => x), smoothed(points.map(([, y]) => isLog && y <= 0 ? null : y), weight)]);
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    const lines = this.series.map(({ name }, at) => ({
      label: name, stroke: colour(at), width: 2, dash: DASHES[Math.floor(at / COLOURS) % DASHES.length], spanGaps: true,
      value: (_, value) => metric(value), points: { show: this.series[at].points.length < 30 },
    }));
    this.plot = new uPlot({
      width: this.place.clientWidth, height: HEIGHT,
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
      axes: [{ ...axis, label: this.x, incrs: STEPS }, { ...axis, label: this.y, size: 64, values: (_, ticks) => ticks.map((tick) => tick == null ? "" : String(Number(tick.toPrecision(5)))) }],
      series: [{ label: this.x }, ...lines],
    }, uPlot.join(tables), this.place);
    const canvas = this.plot.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${this.title}. ${this.summary.textContent}`);
  }

  resize() {
    if (!this.plot) this.draw();
    else if (this.place.clientWidth !== this.plot.width) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  close() {
    this.watched.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }
}

function described({ name, points }) {
  const [first, last] = [points[0], points.at(-1)];
  return points.length === 1 ? `${name} ${metric(last[1])} at ${last[0]}` : `${name} from ${metric(first[1])} at ${first[0]} to ${metric(last[1])} at ${last[0]}`;
}

/** Returns round numbers within a range. */
export function ticks(low, high, count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step / 1e6; at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

function span(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const room = (high - low) * 0.08 || Math.abs(high) * 0.08 || 1;
  return [low - room, high + room];
}

/** Returns a scatter plot; points are {x, y, kind: winner|pareto|other, title}. */
export function scatter(points, xName, yName, showX, showY) {
  const [left, top, width, height] = [64, 12, 560, 260];
  const [x0, x1] = span(points.map((each) => each.x)), [y0, y1] = span(points.map((each) => each.y));
  const atX = (x) => left + width * (x - x0) / (x1 - x0), atY = (y) => top + height * (y1 - y) / (y1 - y0);
  const marks = { winner: (x, y) => svg("path", { class: "winner", d: `M${x} ${y - 9}L${x + 9} ${y}L${x} ${y + 9}L${x - 9} ${y}Z` }),
    pareto: (x, y) => svg("circle", { class: "pareto", cx: x, cy: y, r: 6 }), other: (x, y) => svg("circle", { class: "other", cx: x, cy: y, r: 5 }) };
  const drawn = points.map((each) => svg("g", {}, svg("title", {}, each.title), marks[each.kind](atX(each.x), atY(each.y))));
  const legend = Object.entries({ winner: "chosen", pareto: "on the Pareto front", other: "dominated, or breaks a limit" }).map(([kind, text]) =>
    h("span", {}, svg("svg", { class: "chart mark", viewBox: "0 0 24 24", "aria-hidden": "true" }, marks[kind](12, 12)), ` ${text}`));
  const label = `${points.length} options by ${xName} and ${yName}; their values are in the table`;
  return h("div", {},
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Plot of the options" }, svg("svg", { class: "chart scatter", viewBox: `0 0 ${left + width + 16} ${top + height + 48}`, role: "img", "aria-label": label },
      ticks(x0, x1).map((x) => [svg("line", { class: "grid", x1: atX(x), x2: atX(x), y1: top, y2: top + height }), svg("text", { x: atX(x), y: top + height + 16, "text-anchor": "middle" }, showX(x))]).flat(),
      ticks(y0, y1).map((y) => [svg("line", { class: "grid", y1: atY(y), y2: atY(y), x1: left, x2: left + width }), svg("text", { x: left - 6, y: atY(y) + 4, "text-anchor": "end" }, showY(y))]).flat(),
      svg("text", { x: left + width / 2, y: top + height + 38, "text-anchor": "middle" }, xName),
      svg("text", { x: 14, y: top + height / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${top + height / 2})` }, yName),
      drawn)),
    h("div", { class: "row soft" }, legend));
}

/** Returns parallel coordinates; an axis is {name, values: one for each run}. */
export function parallel(axes, names) {
  const [left, top, height] = [70, 40, 240], width = Math.max(600, 130 * (axes.length - 1));
  const scales = axes.map(({ values }) => scale(values));
  const atX = (at) => left + (axes.length > 1 ? width * at / (axes.length - 1) : 0), atY = (share) => top + height * (1 - share);
  const drawnAxes = axes.map((_, at) => svg("line", { class: "axis", x1: atX(at), x2: atX(at), y1: top, y2: top + height }));
  const labels = axes.map(({ name }, at) => svg("g", {},
    svg("title", {}, name),
    svg("text", { x: atX(at), y: at % 2 ? 14 : 28, "text-anchor": "middle" }, short(name) + (scales[at].isLog ? ", log" : "")),
    scales[at].labels.map(([share, text]) => svg("text", { x: atX(at) + 5, y: atY(share) + 4 }, short(text)))));
  const lines = names.map((name, run) => {
    let path = "", isBroken = true;
    axes.forEach((_, at) => {
      const share = scales[at].of(run);
      if (share != null) path += `${isBroken ? "M" : "L"}${atX(at)} ${atY(share)}`;
      isBroken = share == null;
    });
    return svg("path", { class: `line s${run % COLOURS}`, d: path }, svg("title", {}, name));
  });
  const label = `Parallel coordinates of ${names.length} runs over ${axes.map(({ name }) => name).join(", ")}; their values are in the table`;
  const keys = names.map((name, run) => h("span", {}, svg("svg", { class: "key", viewBox: "0 0 24 12", "aria-hidden": "true" }, svg("line", { class: `s${run % COLOURS}`, x1: 0, x2: 24, y1: 6, y2: 6, "stroke-width": 3 })), ` ${name}`));
  return h("div", {},
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Parallel coordinates" },
      svg("svg", { class: "chart parallel", viewBox: `0 0 ${left + width + 90} ${top + height + 12}`, role: "img", "aria-label": label }, drawnAxes, lines, labels)),
    h("div", { class: "row soft" }, keys));
}

function scale(values) {
  const present = values.filter((value) => value != null);
  if (present.length && present.every((value) => typeof value === "number")) {
    const low = Math.min(...present), high = Math.max(...present);
    if (low === high) return { of: (run) => values[run] == null ? null : 0.5, labels: [[0.5, text(low)]] };
    const isLog = low > 0 && high / low >= FAR, shown = isLog ? Math.log : Number;
    return { isLog, of: (run) => values[run] == null ? null : (shown(values[run]) - shown(low)) / (shown(high) - shown(low)), labels: [[0, text(low)], [1, text(high)]] };
  }
  const kinds = [...new Set(present.map(String))], last = kinds.length - 1;
  const share = (kind) => last ? kinds.indexOf(kind) / last : 0.5;
  return { of: (run) => values[run] == null ? null : share(String(values[run])), labels: kinds.map((kind) => [share(kind), kind]) };
}

function text(value) {
  return String(Number(value.toPrecision(4)));
}

function short(name) {
  return name.length > 18 ? `…${name.slice(-17)}` : name;
}
