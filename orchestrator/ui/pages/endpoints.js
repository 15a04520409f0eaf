// What the cluster serves, how much it is asked, and how it answers.

import { action } from "./actions.js";
import { show as showCluster } from "./cluster.js";
import { badge, card, h, meter, table } from "./dom.js";
import { NOTHING, milliseconds, number, share } from "./format.js";

export function show(place, _, signal) {
  return showCluster(place, signal, "Endpoints", draw);
}

function draw({ endpoints, rollouts }) {
  if (!endpoints.length) return h("p", {}, "The cluster serves no endpoint.");
  const first = new Map(endpoints.map((each) => [each.served.name, each]).reverse());
  const columns = [
    { name: "endpoint", cell: ({ served }) => served.name },
    { name: "version", cell: ({ served }) => served.version ? h("a", { href: `#/models/${served.name}/${served.version}` }, served.version) : NOTHING },
    { name: "share", number: true, cell: ({ served }) => `${served.percent}%` },
    { name: "requests/s", number: true, cell: (each) => number(each.requests_per_s) },
    { name: "errors", number: true, cell: (each) => h("span", { class: each.error_share ? "bad" : null }, share(each.error_share)) },
    { name: "p50", number: true, wide: true, cell: (each) => milliseconds(each.p50_ms) },
    { name: "p95", number: true, cell: (each) => milliseconds(each.p95_ms) },
    { name: "state", cell: ({ served }) => badge(served.state) },
    { name: "replicas", number: true, cell: ({ served }) => String(served.replicas) },
    { name: "route", cell: ({ served }) => served.route ?? NOTHING },
    { name: "change", cell: (each) => first.get(each.served.name) === each ? buttons(each.served.name) : "" },
  ];
  const seconds = Math.max(0, ...endpoints.map((each) => each.seconds));
  const period = seconds ? `Requests, errors (status 500 and above) and times are those of the last ${Math.round(seconds)} s.` : "Requests, errors and times follow in a few seconds.";
  return [...rollouts.map(rollout), table("Endpoints", columns, endpoints), h("p", { class: "soft" }, period)];
}

function rollout(each) {
  const version = (id) => h("a", { href: `#/models/${each.model}/${id}` }, id);
  return card(`Rollout of ${each.model}`,
    h("p", {}, version(each.new), ` answers ${each.percent}% of ${each.route}, `, version(each.old), " the others"),
    meter(`Requests of ${each.route} that the new version answers`, each.percent, 100, `${each.percent}%`));
}

function buttons(name) {
  return h("span", { class: "row" },
    action(`Roll ${name} back`, `Roll ${name} back?`, "The version that was deployed before the present one is deployed again at once.", `models/${name}/rollback`),
    action(`Undeploy ${name}`, `Undeploy ${name}?`, "The endpoint is taken down and answers no more requests. Its versions stay published.", `endpoints/${name}/undeploy`));
}
