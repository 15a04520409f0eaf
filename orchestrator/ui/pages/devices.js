// The nodes of the cluster: whose devices are taken, and what they do.

import { show as showCluster } from "./cluster.js";
import { h, meter, table } from "./dom.js";
import { NOTHING } from "./format.js";

export function show(place, _, signal) {
  return showCluster(place, signal, "Devices", ({ nodes }) => nodes.length ? table("Nodes", COLUMNS, nodes) : h("p", {}, "The cluster has no node."));
}

const COLUMNS = [
  { name: "node", cell: (node) => [h("span", { title: node.id }, node.host), node.is_simulated && h("span", { class: "soft" }, " simulated")] },
  { name: "devices", wide: true, cell: (node) => node.devices || NOTHING },
  { name: "taken", cell: (node) => node.total ? meter(`${node.kind}s taken on ${node.host}`, node.taken, node.total, `${text(node.taken)} of ${text(node.total)} ${node.kind}s`) : NOTHING },
  { name: "GPU at work", cell: (node) => node.is_simulated || !node.use?.gpus.length ? NOTHING : node.use.gpus.map((gpu) => h("div", {}, percent(`GPU ${gpu.index} of ${node.host}`, gpu.percent, node.use.gpus.length > 1 ? `${gpu.index}: ` : ""))) },
  { name: "GPU memory", cell: (node) => node.is_simulated || !node.use?.gpus.length ? NOTHING : node.use.gpus.map((gpu) => h("div", {}, memory(`Memory of GPU ${gpu.index} of ${node.host}`, gpu))) },
  { name: "CPU at work", cell: (node) => node.use ? percent(`CPU of ${node.host}`, node.use.cpu_percent) : "does not answer" },
  { name: "memory", cell: (node) => node.use ? memory(`Memory of ${node.host}`, node.use) : NOTHING },
];

function percent(label, value, before = "") {
  return value == null ? NOTHING : meter(label, value, 100, `${before}${Math.round(value)}%`);
}

function memory(label, { memory_gib: used, of_gib: all }) {
  return used == null || !all ? NOTHING : meter(label, used, all, `${used.toFixed(1)} of ${all.toFixed(1)} GiB`);
}

function text(value) {
  return String(Number(value.toFixed(2)));
}
