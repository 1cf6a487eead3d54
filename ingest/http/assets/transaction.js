// One transaction: what it is, what happened to it, what it carries, and what can be done about it.

import {Problem, get, repeat} from "./api.js";
import {ask} from "./actions.js";
import {fill, h, icon} from "./dom.js";
import {ago, between, duration, exact, middle, moment, number} from "./format.js";
import {state_chip} from "./list.js";
import {payload} from "./payload.js";
import {empty, skeleton} from "./pieces.js";

const MS = 3000;
const IN_DOUBT = ["pending", "discarded"];
const STATES = {PREPARED: "pending", COMMITTED: "committed", ROLLED_BACK: "rolled_back", DISCARDED_MAX: "discarded", DISCARDED_EXPIRED: "discarded", QUARANTINED: "quarantined", GONE: "gone"};
const EVENTS = {prepared: "Stored", asked: "Asked", committed: "Committed", rolled_back: "Rolled back", unknown: "Answered: unknown", discarded: "Discarded", resumed: "Resumed", conflict: "Contradicted", refused: "Refused"};
const BY = {producer: "by its producer", check: "in answer to a check", operator: "by an operator", checker: "by the checker"};
const REASONS = {check_max: "asked too often", expired: "too old"};
const ACTIONS = {pending: ["check", "commit", "rollback", "resume"], discarded: ["resume", "commit", "rollback"]};
const NAMES = {check: "Check now", commit: "Commit", rollback: "Roll back", resume: "Resume"};

export function show_transaction(root, {argument, signal, context}) {
  const view = {id: argument, signal, context, shown: "", mode: "", body: null, explains: false, why: h("section", {class: "card why-card", "aria-labelledby": "why"})};
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
  repeat(async () => {
    await load();
    if (!view.explains) return;
    const found = await get(`/v1/operator/transactions/${encodeURIComponent(view.id)}/explain`, {}, signal);
    fill(view.why, why(found, context.overview?.now_ms ?? Date.now()));
  }, MS, signal);
}

function draw(root, view, found, load) {
  const tx = found.transaction;
  const state = STATES[tx.state] ?? tx.state.toLowerCase();
  const now_ms = view.context.overview?.now_ms ?? Date.now();
  const same = JSON.stringify({...found, body: ""});
  if (same === view.shown && state !== "pending") return;
  if (state === "gone") return fill(root, empty("history", "This transaction is gone", "It ended longer ago than its files are kept (fileReservedTime)."));
  view.explains = IN_DOUBT.includes(state);
  if (same !== view.shown) {
    view.shown = same;
    const age = h("dd");
    fill(root, head(tx, state, found, view, load), h("div", {class: "columns wide-left"},
      h("div", {class: "stack"}, message(found, view), facts(tx, found, state, age)),
      h("div", {class: "stack"}, view.explains && view.why, h("section", {class: "card"}, h("h2", null, "Timeline"), timeline(tx)))));
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
      h("h1", {title: tx.key}, middle(tx.key, 80) || h("span", {class: "muted"}, "no key"), " ", state_chip({state}), found.reason && h("span", {class: "chip"}, REASONS[found.reason] ?? found.reason), found.outstanding && h("span", {class: "chip asked"}, "asked")),
      h("p", {class: "id-line"}, h("code", {class: "mono"}, view.id), copy, copy_as(view.id, state), trace_link(found, view.context.session))),
    h("div", {class: "tx-actions", role: "group", "aria-label": "Actions"}, (ACTIONS[state] ?? []).map((action) => h("button", {type: "button", class: action === "check" ? "primary" : action === "resume" ? "" : "danger", onclick: () => ask({action, ids: [view.id], done: load})}, NAMES[action]))));
}

/** The same from a terminal. */
function copy_as(id, state) {
  const lines = {"escrow explain": `escrow explain ${id}`, "escrow tx show": `escrow tx show ${id} --message`, curl: `curl -H "Authorization: Bearer $TOKEN" ${location.origin}/v1/operator/transactions/${id}`};
  if (IN_DOUBT.includes(state)) lines["escrow tx commit"] = `escrow tx commit ${id} --reason '…'`;
  const menu = h("select", {class: "copy-as", "aria-label": "Copy as a command", onchange: async () => {
    await navigator.clipboard?.writeText(lines[menu.value] ?? "").catch(() => {});
    menu.selectedIndex = 0;
  }}, h("option", {value: ""}, "Copy as…"), Object.keys(lines).map((name) => h("option", {value: name}, name)));
  return menu;
}

/** traceLinkTemplate with the trace's id in the place of {trace_id}. */
function trace_link(found, session) {
  const trace_id = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(found.properties.traceparent ?? "")?.[1];
  if (!trace_id || !/^https?:/.test(session.trace_link_template ?? "")) return null;
  return h("a", {href: session.trace_link_template.replaceAll("{trace_id}", trace_id), target: "_blank", rel: "noreferrer"}, "Trace");
}

function facts(tx, found, state, age) {
  const rows = [
    ["Group", h("dd", null, h("a", {href: `#/group/${encodeURIComponent(tx.group)}`, title: tx.group}, middle(tx.group, 48)))], ["Topic", h("dd", null, h("a", {href: `#/topic/${encodeURIComponent(tx.topic)}`, title: tx.topic}, middle(tx.topic, 48)))], found.tags && ["Tags", found.tags],
    state === "pending" && ["In doubt for", age],
    ["Stored", exact(tx.stored_at_ms)], ["Born (its clock)", exact(tx.born_at_ms)],
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
      h("p", {class: "muted when"}, h("time", {datetime: new Date(event.at_ms).toISOString()}, exact(event.at_ms)), before && h("span", {title: `${between(start_ms, event.at_ms)} after it was stored`}, `+${between(before.at_ms, event.at_ms)}`)));
  }));
}

// --- the message -----------------------------------------------------------------------------------------------------------------
function message(found, view) {
  const bytes = Uint8Array.from(atob(found.body), (letter) => letter.charCodeAt(0));
  const properties = Object.entries(found.properties);
  return h("section", {class: "card message"},
    payload({bytes, total: found.body_bytes, href: `/v1/operator/transactions/${encodeURIComponent(view.id)}/body`, view}),
    properties.length > 0 && [h("h3", null, "Properties"), h("dl", {class: "facts mono-values"}, properties.map(([name, value]) => h("div", null, h("dt", {title: name}, middle(name, 48)), h("dd", null, value))))]);
}

// --- why it is in doubt ------------------------------------------------------------------------------------------------------------
function why(found, now_ms) {
  const when = (at_ms) => (at_ms == null ? "–" : at_ms > now_ms ? `${moment(at_ms)}, in ${duration((at_ms - now_ms) / 1000)}` : `${moment(at_ms)}, ${ago(at_ms, now_ms)}`);
  const online = found.members.length ? found.members.map((each) => h("span", {class: "chip"}, middle(each, 28))) : h("span", {class: "tone-bad"}, found.last_seen_ms ? `nobody since ${moment(found.last_seen_ms)}` : "nobody since the edge started");
  const next = found.next_check_ms == null ? "when a member comes online" : found.next_check_ms <= now_ms ? "at the next round" : `not before ${when(found.next_check_ms)}`;
  const pending = found.state === "PREPARED";
  const rows = [
    ["Online", online], ["Attempts", `${found.attempts} of ${found.attempts_max}${found.outstanding ? ", one is open" : ""}`],
    ["Last asked", when(found.last_asked_ms)], ["Last answer", found.last_answer ? `UNKNOWN${found.last_answer.remark ? `: ${found.last_answer.remark}` : ""}` : "–"],
    pending && ["Next check", next], found.queued_check && ["Check now", "queued: the first member that comes is asked"], pending && ["Expires", when(found.discard_ms)],
    ["Commit now", found.commit], ["Roll back now", found.rollback],
  ].filter(Boolean);
  return [h("h2", {id: "why"}, pending ? "Why is it still in doubt?" : "Why is it discarded?"), h("ul", {class: "why"}, found.why.map((sentence) => h("li", null, sentence))),
    h("dl", {class: "facts"}, rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))))];
}
