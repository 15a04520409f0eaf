// What the cluster serves.

import { action } from "./actions.js";
import { get } from "./api.js";
import { badge, h, table } from "./dom.js";
import { NOTHING, when } from "./format.js";

export async function show(place, _, signal) {
  const content = h("div", {}, h("p", { role: "status" }, "The cluster is asked; this takes a few seconds."));
  const read = async () => {
    const found = await get("endpoints", signal);
    content.replaceChildren(...listed(found, read));
  };
  place.append(h("h1", { tabindex: -1 }, "Endpoints"), content);
  await read();
}

function listed(found, read) {
  if (!found.is_up) return [h("p", {}, "No cluster is up. winnow up starts one on this machine; winnow ui --address names another.")];
  if (found.error) return [h("p", { class: "bad", role: "alert" }, found.error)];
  const names = new Set();
  const columns = [
    { name: "endpoint", cell: (each) => each.name },
    { name: "version", cell: (each) => each.version ? h("a", { href: `#/models/${each.name}/${each.version}` }, each.version) : NOTHING },
    { name: "route", cell: (each) => each.route ?? NOTHING },
    { name: "requests", number: true, cell: (each) => `${each.percent}%` },
    { name: "state", cell: (each) => badge(each.state) },
    { name: "replicas", number: true, cell: (each) => String(each.replicas) },
    { name: "change", cell: (each) => names.has(each.name) ? "" : buttons(names.add(each.name) && each.name, read) },
  ];
  const table_ = found.endpoints.length ? table("Endpoints", columns, found.endpoints) : h("p", {}, "The cluster serves no endpoint.");
  return [h("div", { class: "row soft" }, `as of ${when(found.time)}`, h("button", { type: "button", onclick: read }, "Look again")), table_];
}

function buttons(name, read) {
  return h("span", { class: "row" },
    action(`Roll ${name} back`, `Roll ${name} back?`, "The version that was deployed before the present one is deployed again at once.", `models/${name}/rollback`, read),
    action(`Undeploy ${name}`, `Undeploy ${name}?`, "The endpoint is taken down and answers no more requests. Its versions stay published.", `endpoints/${name}/undeploy`, read));
}
