// A table of what is on the cluster, which the server asks for.

import { get } from "./api.js";
import { h, table } from "./dom.js";
import { when } from "./format.js";

/** Shows what `path` lists; `columns` returns the columns of its table, `none` stands for no rows. */
export async function show(place, signal, path, title, columns, none) {
  const content = h("div", {}, h("p", { role: "status" }, "The cluster is asked; this takes a few seconds."));
  const read = async () => content.replaceChildren(...listed(await get(path, signal)));
  const listed = (list) => {
    if (!list.is_up) return [h("p", {}, "No cluster is up. winnow up starts one on this machine; winnow ui --address names another.")];
    if (list.error) return [h("p", { class: "bad", role: "alert" }, list.error)];
    const again = h("button", { type: "button", onclick: read }, "Look again");
    const rows = list.found.length ? table(title, columns(read), list.found) : h("p", {}, none);
    return [h("div", { class: "row soft" }, `as of ${when(list.time)}`, again), rows];
  };
  place.append(h("h1", { tabindex: -1 }, title), content);
  await read();
}
