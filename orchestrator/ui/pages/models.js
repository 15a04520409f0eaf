// Published versions, and where each comes from.

import { action } from "./actions.js";
import { get } from "./api.js";
import { card, facts, h, table } from "./dom.js";
import { NOTHING, age, metrics, when } from "./format.js";

export async function show(place, [name, version], signal) {
  if (version) await one(place, name, version, signal);
  else await every(place, signal);
}

async function every(place, signal) {
  const found = await get("models", signal);
  const columns = [
    { name: "model", cell: ({ version }) => h("a", { href: `#/models/${version.name}/${version.id}` }, `${version.name}@${version.id}`) },
    { name: "age", number: true, cell: ({ published }) => age(published) },
    { name: "task", wide: true, cell: ({ version }) => version.task },
    { name: "metrics", cell: ({ version }) => metrics(version.metrics) },
    { name: "", cell: (each) => [each.is_latest && "newest", each.is_deployed && "deployed last"].filter(Boolean).join(", ") },
  ];
  place.append(h("h1", { tabindex: -1 }, "Models"), found.length ? table("Published versions", columns, found) : h("p", {}, "No model is published in this storage."));
}

async function one(place, name, identity, signal) {
  const found = await get(`models/${name}/${identity}`, signal);
  const { version, deployed, latest } = found, full = `${name}@${identity}`;
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  const moves = [{ name: "number", cell: (move) => String(move.number) }, { name: "version", cell: (move) => h("a", { href: `#/models/${name}/${move.version}` }, move.version) },
    { name: "time", cell: (move) => h("time", {}, when(move.time)) }, { name: "by", cell: (move) => move.by || NOTHING }];
  const history = (title, made, empty) => card(title, made.length ? table(title, moves, [...made].reverse()) : h("p", { class: "soft" }, empty));
  place.append(h("h1", { tabindex: -1 }, full),
    h("div", { class: "row" },
      action("Promote this version", `Promote ${full}?`, "It is deployed on its model's route, with the settings of the model's newest deployment and through its rollout.", `models/${name}/${identity}/promote`, again),
      deployed.length > 1 && action("Roll the model back", `Roll ${name} back?`, "The version that was deployed before the present one is deployed again at once.", `models/${name}/rollback`, again)),
    card("Version", facts([["published", h("time", {}, when(found.published))], ["run", found.run && h("a", { href: `#/runs/${found.run}` }, found.run)], ["optimizer step", found.step], ["base", found.base], ["task", version.task],
      ["labels", version.labels.join(", ")], ["longest input", `${version.max_length} tokens`], ["metrics", metrics(version.metrics)], ["files", version.url || version.path]])),
    card("Inputs", Object.keys(found.inputs).length ? facts(Object.entries(found.inputs)) : h("p", { class: "soft" }, "The files of its run, which have the digests of data and code, are gone.")),
    history("Deployments of the model", deployed, "The model was not deployed."), history("Publications of the model", latest, "The versions are of an older release."),
    card("Job file", h("pre", {}, found.job)));
}
