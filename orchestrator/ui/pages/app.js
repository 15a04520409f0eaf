// Which page is shown, and to whom.

import { allow, followRunning } from "./actions.js";
import { forgetToken, get, keepToken, takeToken } from "./api.js";
import { h } from "./dom.js";
import * as compare from "./compare.js";
import * as devices from "./devices.js";
import * as endpoints from "./endpoints.js";
import * as models from "./models.js";
import * as queue from "./queue.js";
import * as run from "./run.js";
import * as runs from "./runs.js";

const main = document.getElementById("main");
const PAGES = new Map(Object.entries({ compare, models, endpoints, queue, devices }));
let shown = new AbortController(), isKnown = false;

async function route() {
  shown.abort();
  shown = new AbortController();
  const { signal } = shown;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "runs", ...rest] = path.split("/").filter(Boolean).map(decoded);
  const page = name === "runs" ? (rest.length ? run : runs) : PAGES.get(name);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${rest.at(-1) ?? name} · Winnow`;
  const place = h("div");
  main.replaceChildren(place);
  try {
    if (!isKnown) await greet();
    if (!page) place.append(h("h1", { tabindex: -1 }, "There is no such page"));
    else {
      const showing = page.show(place, rest, signal, new URLSearchParams(query));
      place.querySelector("h1")?.focus({ preventScroll: true });
      await showing;
    }
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) signIn();
    else place.append(h("p", { class: "bad", role: "alert" }, error.message));
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;  // a link that was cut off
  }
}

async function greet() {
  const me = await get("me");
  isKnown = true;
  allow(me.scope);
  document.getElementById("nav").hidden = false;
  followRunning().catch(() => {});
  document.getElementById("who").textContent = `${me.storage} · ${me.name}${me.scope === "read" ? " (may read)" : ""}`;
}

function signIn() {
  isKnown = false;
  forgetToken();
  document.getElementById("nav").hidden = true;
  const token = h("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const enter = (event) => {
    event.preventDefault();
    keepToken(token.value.trim());
    route();
  };
  main.replaceChildren(h("form", { class: "card sign", onsubmit: enter }, h("h1", { tabindex: -1 }, "Sign in"),
    h("p", {}, "winnow ui prints a URL with a token; winnow token add NAME --file FILE --scope read makes one for a colleague."),
    h("label", { class: "block", for: "token" }, "Token"), token, h("div", { class: "row" }, h("button", { class: "main" }, "Sign in"))));
  token.focus();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();  // the hash is the page
  main.querySelector("h1")?.focus();
});
takeToken();
addEventListener("hashchange", route);
route();
