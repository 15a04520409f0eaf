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
