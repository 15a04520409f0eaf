// Values as text.

export const NOTHING = "–";

/** Returns the time since a date in its largest unit. */
export function age(date, now = Date.now()) {
  if (!date) return NOTHING;
  const minutes = Math.max(0, Math.floor((now - new Date(date)) / 60000));
  if (minutes < 60) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} d`;
}

/** Returns a date to the second in this browser's time zone, such as 2026-11-21 12:00:00. */
export function when(date) {
  return date ? new Date(date).toLocaleString("sv-SE") : NOTHING;
}

/** Returns a duration. */
export function duration(seconds) {
  if (seconds == null) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Returns an amount in dollars. */
export function usd(value) {
  if (value == null) return NOTHING;
  return value !== 0 && Math.abs(value) < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toFixed(2)}`;
}

/** Returns a metric or a loss. */
export function metric(value) {
  if (value == null) return NOTHING;
  return Math.abs(value) < 10000 && (value === 0 || Math.abs(value) >= 0.0001) ? value.toFixed(4) : value.toExponential(2);
}

/** Returns a number in few digits. */
export function number(value, unit = "") {
  if (value == null) return NOTHING;
  return `${value.toLocaleString(undefined, { maximumSignificantDigits: 4 })}${unit && ` ${unit}`}`;
}

/** Returns a time in milliseconds. */
export function milliseconds(value) {
  if (value == null) return NOTHING;
  return value < 10 ? `${value.toFixed(1)} ms` : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** Returns a share as a percentage. */
export function share(value) {
  if (value == null) return NOTHING;
  return `${Number((100 * value).toPrecision(2))}%`;
}

/** Returns metrics in one line. */
export function metrics(values) {
  return Object.entries(values).map(([name, value]) => `${name} ${metric(value)}`).join(", ") || NOTHING;
}

/** Returns parameters in one line. */
export function params(values) {
  const named = Object.entries(values).map(([name, value]) => `${name.split(".").at(-1)} ${value}`);
  return named.join(", ") || "as in the job";
}

/** Returns the beginning and the end of an interval. */
export function interval(value, show) {
  return value ? `${show(value.mean)} (${show(value.low)} to ${show(value.high)})` : NOTHING;
}
