// Buttons that change something: asked first, then followed until their command has ended.

import { get, post } from "./api.js";
import { badge, h, say } from "./dom.js";

let scope = "read", answer = () => {};
const FOLLOWED_MS = 1500, SHOWN_MS = 15000;

export function allow(granted) {
  scope = granted;
}

/** Returns a button that asks and then posts; nothing for a token that may only read. */
export function action(label, title, text, path, then = () => {}) {
  if (scope !== "operate") return null;
  const button = h("button", { type: "button", class: "danger", id: `do-${path.replaceAll("/", "-")}`, onclick: async () => {
    if (!await confirmed(label, title, text)) return;
    button.disabled = true;
    try {
      await follow(await post(path));
      then();
    } catch (error) {
      show(label, line(label, "failed", error.message));
    } finally {
      button.disabled = false;
    }
  } }, label);
  return button;
}

function confirmed(label, title, text) {
  const dialog = document.getElementById("confirm");
  const yes = document.getElementById("confirm-yes"), no = document.getElementById("confirm-no");
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  yes.textContent = label;
  answer(false);  // the event of an earlier closing may come when the dialog is open again
  return new Promise((resolve) => {
    answer = resolve;
    yes.onclick = () => { answer(true); dialog.close(); };
    no.onclick = () => dialog.close();
    dialog.onclose = () => { if (!dialog.open) answer(false); };
    dialog.showModal();
    no.focus();
  });
}

/** Follows the changes that go on, whoever asked for them. */
export async function followRunning() {
  for (const each of await get("operations")) {
    if (each.state === "running") follow(each).catch(() => {});
  }
}

async function follow(begun) {
  for (let operation = begun; ;) {
    const by = operation.state === "running" ? ` by ${operation.by}` : "";
    show(begun.number, line(`${operation.kind} ${operation.target}${by}`, operation.state, operation.text));
    if (operation.state !== "running") return;
    await new Promise((resolve) => setTimeout(resolve, FOLLOWED_MS));
    try {
      operation = (await get("operations")).find((each) => each.number === begun.number) ?? operation;
    } catch (error) {
      if (error.status) throw error;  // else the connection is lost, and the command goes on
    }
  }
}

function line(what, state, text) {
  return h("p", {}, badge(state), ` ${what}${text && text !== state ? `: ${text}` : ""}`);
}

const lines = new Map();
let timer;

/** Shows the newest line of an operation beside those of the others, until nothing is new. */
function show(key, shown) {
  const place = document.getElementById("operations");
  clearTimeout(timer);
  const isNew = lines.get(key)?.textContent !== shown.textContent;
  lines.set(key, shown);
  place.replaceChildren(...lines.values());
  place.hidden = false;
  if (isNew) say(shown.textContent);
  timer = setTimeout(() => { place.hidden = true; lines.clear(); }, SHOWN_MS);
}
