// One transaction: what it is, what happened to it, what it carries, and what can be done about it.

import {Problem, get, repeat} from "./api.js";
import {ask} from "./actions.js";
import {fill, h, icon} from "./dom.js";
import {between, duration, moment, number, size} from "./format.js";
import {empty, skeleton} from "./groups.js";
import {state_chip} from "./list.js";

const MS = 3000;
const HEX_BYTES = 4096;
const STATES = {PREPARED: "pending", COMMITTED: "committed", ROLLED_BACK: "rolled_back", DISCARDED_MAX: "discarded", DISCARDED_EXPIRED: "discarded", QUARANTINED: "quarantined", GONE: "gone"};
const EVENTS = {prepared: "Stored", asked: "Asked", committed: "Committed", rolled_back: "Rolled back", unknown: "Answered: unknown", discarded: "Discarded", resumed: "Resumed"};
const BY = {producer: "by its producer", check: "in answer to a check", operator: "by an operator", checker: "by the checker"};
const REASONS = {check_max: "asked too often", expired: "too old"};
const ACTIONS = {pending: ["check", "commit", "rollback", "resume"], discarded: ["resume", "commit", "rollback"]};
const NAMES = {check: "Check now", commit: "Commit", rollback: "Roll back", resume: "Resume"};

export function show_transaction(root, {argument, signal, context}) {
  const view = {id: argument, signal, context, shown: "", mode: "", body: null};
  const body = h("div", null, skeleton());
  fill(root, body);
  const load = async () => {
    try {
      draw(body, view, await get(`/v1/operator/transactions/${encodeURIComponent(view.id)}`, {}, signal), load);
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 404) fill(body, empty("search", "No such transaction", "This edge has not issued the id, or it is not whole. Copy it exactly.", h("p", null, h("a", {href: "#/history"}, "Search the history"))));
      else if (problem instanceof Problem && problem.status !== 401) fill(body, empty("warning", "The transaction cannot be shown", problem.message));
      throw problem;
    }
  };
  repeat(load, MS, signal);
}

function draw(root, view, found, load) {
  const tx = found.transaction;
  const state = STATES[tx.state] ?? tx.state.toLowerCase();
  const now_ms = view.context.overview?.now_ms ?? Date.now();
  const same = JSON.stringify({...found, body: ""});
  if (same === view.shown && state !== "pending") return;
  if (state === "gone") return fill(root, empty("history", "This transaction is gone", "It ended longer ago than its files are kept (fileReservedTime)."));
  if (same !== view.shown) {
    view.shown = same;
    const age = h("dd");
    fill(root, head(tx, state, found, view, load), h("div", {class: "columns wide-left"},
      h("div", {class: "stack"}, message(found, view), facts(tx, found, state, age)),
      h("div", {class: "stack"}, h("section", {class: "card"}, h("h2", null, "Timeline"), timeline(tx)))));
    view.age = age;
  }
  view.age.textContent = state === "pending" ? duration((now_ms - tx.stored_at_ms) / 1000) : "–";
}

function head(tx, state, found, view, load) {
  const copy = h("button", {type: "button", class: "ghost", "aria-label": "Copy the id", title: "Copy the id", onclick: async () => {
    await navigator.clipboard?.writeText(view.id).catch(() => {});
    fill(copy, icon("check"));
    setTimeout(() => fill(copy, icon("copy")), 1200);
  }}, icon("copy"));
  return h("div", {class: "heading tx"},
    h("div", null,
      h("p", {class: "crumb"}, h("a", {href: `#/${state === "discarded" ? "discarded" : state === "pending" ? "pending" : "history"}`}, state === "discarded" ? "Discarded" : state === "pending" ? "Pending" : "History")),
      h("h1", null, tx.key || h("span", {class: "muted"}, "no key"), " ", state_chip({state}), found.reason && h("span", {class: "chip"}, REASONS[found.reason] ?? found.reason), found.outstanding && h("span", {class: "chip asked"}, "asked")),
      h("p", {class: "id-line"}, h("code", {class: "mono"}, view.id), copy)),
    h("div", {class: "tx-actions", role: "group", "aria-label": "Actions"}, (ACTIONS[state] ?? []).map((action) => h("button", {type: "button", class: action === "check" ? "primary" : action === "resume" ? "" : "danger", onclick: () => ask({action, ids: [view.id], done: load})}, NAMES[action]))));
}

function facts(tx, found, state, age) {
  const rows = [
    ["Group", tx.group], ["Topic", tx.topic], found.tags && ["Tags", found.tags],
    state === "pending" && ["In doubt for", age],
    ["Stored", moment(tx.stored_at_ms)], ["Born (its clock)", moment(tx.born_at_ms)],
    ["Attempts", number(tx.attempts)], ["Immunity", found.immunity_s ? duration(found.immunity_s) : "the usual"],
    tx.queue_id != null && ["Released at", `queue ${tx.queue_id}, offset ${number(tx.queue_offset)}`],
    state !== "pending" && ["Settled", tx.settled ? "yes" : "not yet"],
    ["Half", number(tx.half_offset)],
  ].filter(Boolean);
  return h("section", {class: "card"}, h("h2", null, "Facts"), h("dl", {class: "facts two"}, rows.map(([name, value]) => h("div", null, h("dt", null, name), value instanceof Node ? value : h("dd", null, value)))));
}

function timeline(tx) {
  const start_ms = tx.history[0]?.at_ms ?? 0;
  return h("ol", {class: "timeline"}, tx.history.map((event, n) => {
    const before = tx.history[n - 1];
    return h("li", {class: event.event},
      h("div", {class: "event"}, h("strong", null, EVENTS[event.event] ?? event.event), " ", h("span", {class: "muted"}, event.event === "asked" ? "a member" : (BY[event.by] ?? event.by ?? "")), event.actor && h("span", {class: "chip"}, event.actor)),
      event.remark && h("p", {class: "remark"}, (event.event === "discarded" && REASONS[event.remark]) || event.remark),
      h("p", {class: "muted when"}, h("time", {datetime: new Date(event.at_ms).toISOString()}, moment(event.at_ms)), before && h("span", {title: `${between(start_ms, event.at_ms)} after it was stored`}, `+${between(before.at_ms, event.at_ms)}`)));
  }));
}

// --- the message -----------------------------------------------------------------------------------------------------------------
function message(found, view) {
  const bytes = Uint8Array.from(atob(found.body), (letter) => letter.charCodeAt(0));
  const text = as_text(bytes, found.body_bytes > bytes.length);
  const pretty = text != null && found.body_bytes === bytes.length ? as_json(text) : null;
  const modes = [pretty != null && ["json", "JSON"], text != null && ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
  const mode = modes.some(([each]) => each === view.mode) ? view.mode : modes[0][0];
  const content = {json: pretty, text, hex: mode === "hex" ? hex(bytes) : ""};
  const shown = h("pre", {class: "body", tabindex: "0", "aria-label": "Body of the message"}, content[mode]);
  const tabs = h("div", {class: "tabs", role: "group", "aria-label": "Show the body as"}, modes.map(([each, name]) => h("button", {type: "button", "aria-pressed": String(each === mode), onclick: () => { view.mode = each; section.replaceWith(message(found, view)); }}, name)));
  const properties = Object.entries(found.properties);
  const cut = mode === "hex" && bytes.length > HEX_BYTES ? HEX_BYTES : bytes.length;
  const section = h("section", {class: "card message"},
    h("div", {class: "message-head"}, h("h2", null, "Message"), h("span", {class: "muted"}, size(found.body_bytes), found.body_bytes > cut && `, the first ${size(cut)} shown`), tabs),
    bytes.length ? shown : h("p", {class: "muted pad"}, "The body is empty."),
    properties.length > 0 && [h("h3", null, "Properties"), h("dl", {class: "facts mono-values"}, properties.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))))]);
  return section;
}

/** null where it is no text. What was cut off may end within a character. */
function as_text(bytes, is_cut) {
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(bytes, {stream: is_cut});
    // eslint-disable-next-line no-control-regex
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

function as_json(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const piece = [...bytes.slice(at, at + 16)];
    const digits = piece.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = piece.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

