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

// --- times: of the browser's zone, or UTC; the choice is kept in this browser ------------------------------------------------------
const two = (value) => String(value).padStart(2, "0");
const ZONE = "escrow-zone";
let utc = false;
try { utc = localStorage.getItem(ZONE) === "utc"; } catch { /* the browser's zone */ }

export const is_utc = () => utc;

export function use_utc(yes) {
  utc = yes;
  try { localStorage.setItem(ZONE, yes ? "utc" : "local"); } catch { /* for this page only */ }
}

/** "UTC", or "UTC+02:00". */
export function zone(at_ms = Date.now()) {
  const minutes = utc ? 0 : -new Date(at_ms).getTimezoneOffset();
  const size = Math.abs(minutes);
  return minutes ? `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}` : "UTC";
}

/** A Date whose UTC fields are those of the zone that is shown. */
const shifted = (at_ms) => new Date(utc ? at_ms : at_ms - new Date(at_ms).getTimezoneOffset() * 60_000);

export function clock(at_ms) {
  const at = shifted(at_ms);
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}`;
}

export function day(at_ms) {
  const at = shifted(at_ms);
  return `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
}

export const moment = (at_ms) => (at_ms ? `${day(at_ms)} ${clock(at_ms)}` : "–");

/** With milliseconds and zone: two events of one second can be told apart. */
export const exact = (at_ms) => (at_ms ? `${moment(at_ms)}.${String(at_ms % 1000).padStart(3, "0")} ${zone(at_ms)}` : "–");

/** What is written in a field for a time → milliseconds, in the zone that is shown. */
export const typed_ms = (text) => new Date(utc ? `${text}Z` : text).getTime();

/** "since 18:44", with the day where it is not today. */
export const since = (at_ms, now_ms) => (day(at_ms) === day(now_ms) ? clock(at_ms).slice(0, 5) : `${day(at_ms)} ${clock(at_ms).slice(0, 5)}`);

export const ago = (at_ms, now_ms) => (now_ms - at_ms < 1500 ? "now" : `${duration((now_ms - at_ms) / 1000)} ago`);

export function size(bytes) {
  if (bytes < 1024) return plural(bytes, "byte");
  return bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}

export const plural = (count, word, many) => `${number(count)} ${count === 1 ? word : (many ?? word + "s")}`;

/** The end of an id: its beginning is the same for all of a store. */
export const short_id = (id) => (id.length > 14 ? `…${id.slice(-10)}` : id);

/** Long names are cut in the middle: those of one team often differ at their end. */
export const middle = (text, most = 40) => (text.length > most ? `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}` : text);

const CAUSES = {unasked: "not asked yet", unanswered: "asked, no answer"};
export const cause_text = (cause) => CAUSES[cause] ?? (cause === "unknown:" ? "answered UNKNOWN, no remark" : `UNKNOWN: ${cause.replace(/^unknown:/, "")}`);
