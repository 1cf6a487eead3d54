// Numbers, times and names as people read them.

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

export const number = (value) => NUMBER.format(value);
export const short = (value) => (Math.abs(value) < 10_000 ? NUMBER.format(Math.round(value * 10) / 10) : SHORT.format(value));

/** 75 → "1m 15s"; two units at most. */
export function duration(seconds) {
  if (seconds == null) return "–";
  const units = [["d", 86_400], ["h", 3600], ["m", 60], ["s", 1]];
  let left = Math.max(0, Math.floor(seconds));
  if (left === 0) return "0s";
  const parts = [];
  for (const [name, size] of units) {
    if (left >= size || parts.length) parts.push([Math.floor(left / size), name]);
    left %= size;
  }
  return parts.slice(0, 2).filter(([count], at) => at === 0 || count).map(([count, name]) => count + name).join(" ");
}

/** Two points in time → "340 ms", "1.2 s", "4m 3s". */
export function between(from_ms, to_ms) {
  const ms = Math.max(0, to_ms - from_ms);
  if (ms < 1000) return `${ms} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000);
}

const two = (value) => String(value).padStart(2, "0");

export function clock(at_ms) {
  const at = new Date(at_ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function moment(at_ms) {
  if (!at_ms) return "–";
  const at = new Date(at_ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at_ms)}`;
}

export const ago = (at_ms, now_ms) => (now_ms - at_ms < 1500 ? "now" : `${duration((now_ms - at_ms) / 1000)} ago`);

export function size(bytes) {
  if (bytes < 1024) return `${number(bytes)} bytes`;
  return bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

export const plural = (count, word, many) => `${number(count)} ${count === 1 ? word : (many ?? word + "s")}`;

/** The end of an id: its beginning is the same for all of a store. */
export const short_id = (id) => (id.length > 14 ? `…${id.slice(-10)}` : id);
