// What the cluster serves.

import { action } from "./actions.js";
import { show as showListed } from "./cluster.js";
import { badge, h } from "./dom.js";
import { NOTHING } from "./format.js";

export function show(place, _, signal) {
  return showListed(place, signal, "endpoints", "Endpoints", columns, "The cluster serves no endpoint.");
}

function columns(read) {
  const names = new Set();
  return [
    { name: "endpoint", cell: (each) => each.name },
    { name: "version", cell: (each) => each.version ? h("a", { href: `#/models/${each.name}/${each.version}` }, each.version) : NOTHING },
    { name: "route", cell: (each) => each.route ?? NOTHING },
    { name: "requests", number: true, cell: (each) => `${each.percent}%` },
    { name: "state", cell: (each) => badge(each.state) },
    { name: "replicas", number: true, cell: (each) => String(each.replicas) },
    { name: "change", cell: (each) => names.has(each.name) ? "" : buttons(names.add(each.name) && each.name, read) },
  ];
}

function buttons(name, read) {
  return h("span", { class: "row" },
    action(`Roll ${name} back`, `Roll ${name} back?`, "The version that was deployed before the present one is deployed again at once.", `models/${name}/rollback`, read),
    action(`Undeploy ${name}`, `Undeploy ${name}?`, "The endpoint is taken down and answers no more requests. Its versions stay published.", `endpoints/${name}/undeploy`, read));
}
