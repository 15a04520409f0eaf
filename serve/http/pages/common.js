"use strict";
const by = (id) => document.getElementById(id);
const base = location.origin + location.pathname.replace(/\/$/, "");

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function headers() {
  const token = by("token").value.trim();
  const known = { "Content-Type": "application/json" };
  return token ? { ...known, Authorization: `Bearer ${token}` } : known;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  by("copied").textContent = "copied";
  setTimeout(() => { by("copied").textContent = ""; }, 1500);
}

/* Lets the buttons copy a request to `path` with the JSON that `payload` returns. */
function offerCode(path, payload) {
  const asCurl = () => {
    const lines = [`curl -s ${quoted(`${base}${path}`)}`];
    for (const [name, value] of Object.entries(headers())) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
    lines.push(`-d ${quoted(JSON.stringify(payload()))}`);
    return lines.join(" \\\n  ");
  };
  const asPython = () => [
    "import httpx",
    "",
    `answer = httpx.post(`,
    `    ${JSON.stringify(`${base}${path}`)},`,
    `    json=${JSON.stringify(payload())},`,
    ...(by("token").value.trim() ? [`    headers={"Authorization": ${JSON.stringify(headers().Authorization)}},`] : []),
    `)`,
    `answer.raise_for_status()`,
    `print(answer.json())`,
  ].join("\n");
  by("curl").addEventListener("click", () => copy(asCurl()));
  by("python").addEventListener("click", () => copy(asPython()));
}
