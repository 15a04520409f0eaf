// Requests to the dashboard. The token stays in this tab; it is sent in a header, never in a URL.

const KEY = "winnow-token";

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Takes the token out of the address bar, where `winnow ui` has put it. */
export function takeToken() {
  const found = /^#token=([\w-]+)/.exec(location.hash);
  if (!found) return;
  keepToken(found[1]);
  history.replaceState(null, "", "#/runs");
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

async function request(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  if (!token) throw new Refused(401, "a token of the dashboard is needed");
  const answer = await fetch(`api/${path}`, { ...options, headers: { Authorization: `Bearer ${token}` } });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error ?? `the dashboard answered with status ${answer.status}`);
}

export async function get(path, signal) {
  return (await request(path, { signal })).json();
}

export async function post(path) {
  return (await request(path, { method: "POST" })).json();
}

/** Calls `take(event, data)` for each server-sent event until the stream ends. */
export async function stream(path, signal, take) {
  const reader = (await request(path, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const event = /^event: (.*)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
      if (event && data) take(event[1], JSON.parse(data[1]));
    }
  }
}

/** Streams until the page is hidden, and not before it is seen: browsers open few connections to one host. */
export async function streamWhileSeen(path, signal, take) {
  const attempt = new AbortController(), stop = () => attempt.abort(), hide = () => document.hidden && stop();
  await seen(signal);
  signal.addEventListener("abort", stop);
  document.addEventListener("visibilitychange", hide);
  try {
    await stream(path, attempt.signal, take);
  } catch (error) {
    if (signal.aborted || !attempt.signal.aborted) throw error;
  } finally {
    signal.removeEventListener("abort", stop);
    document.removeEventListener("visibilitychange", hide);
  }
}

function seen(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}
