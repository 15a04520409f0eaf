// The runs that hold devices of the cluster or wait for them.

import { show as showCluster } from "./cluster.js";
import { badge, h, table } from "./dom.js";
import { NOTHING, age } from "./format.js";

export function show(place, _, signal) {
  return showCluster(place, signal, "Queue", ({ queue }) => queue.length ? table("Queue", COLUMNS, queue) : h("p", {}, "No run is on the cluster."));
}

const COLUMNS = [
  { name: "run", cell: (each) => h("a", { href: `#/runs/${each.run}` }, each.run) },
  { name: "state", cell: (each) => badge(each.state) },
  { name: "devices", cell: (each) => each.devices || NOTHING },
  { name: "owner", wide: true, cell: (each) => each.owner || NOTHING },
  { name: "priority", number: true, wide: true, cell: (each) => String(each.priority) },
  { name: "since", number: true, cell: (each) => age(each.since * 1000) },
  { name: "place", cell: (each) => each.place ? `${each.place.number} of ${each.place.waiting}: ${each.place.why}` : NOTHING },
];
