// What the cluster does now, which the server says as it changes.

import { streamWhileSeen } from "./api.js";
import { h, say } from "./dom.js";
import { when } from "./format.js";

const AGAIN_MS = 5000;

/** Shows a page until `signal` is aborted; `draw` returns what it has of the newest view. */
export async function show(place, signal, title, draw) {
  const content = h("div", {}, h("p", { role: "status" }, "The cluster is asked; this takes a few seconds."));
  place.append(h("h1", { tabindex: -1 }, title), content);
  let shown = "";
  const take = (_, view) => {
    if (document.getElementById("confirm").open) return;  // its button must stay
    const text = JSON.stringify({ ...view, number: 0 });
    if (text === shown) return;
    shown = text;
    const focused = document.activeElement?.id, open = new Set([...content.querySelectorAll("details[open]")].map((each) => each.id));
    content.replaceChildren(...[drawn(view)].flat().filter(Boolean));
    for (const each of content.querySelectorAll("details")) each.open = open.has(each.id);
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };
  const drawn = (view) => {
    if (!view.is_up) return h("p", {}, "No cluster is up. winnow up starts one on this machine; winnow ui --address names another.");
    if (view.error) return h("p", { class: "bad", role: "alert" }, view.error);
    if (!view.found) return h("p", { role: "status" }, "The cluster is asked; this takes a few seconds.");
    return [h("p", { class: "soft" }, `as of ${when(view.found.time)}`), ...[draw(view.found)].flat()];
  };
  while (!signal.aborted) {
    try {
      await streamWhileSeen("cluster/events", signal, take);
    } catch (error) {
      if (signal.aborted || error.status) throw error;
      say("the connection to the dashboard is lost; trying again");
    }
    if (!document.hidden) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}
