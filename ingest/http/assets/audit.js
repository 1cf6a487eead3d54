// What operators did.

import {get} from "./api.js";
import {fill, h} from "./dom.js";
import {exact, moment, number, plural, short_id} from "./format.js";
import {empty, heading, skeleton} from "./pieces.js";

const LIMIT = 50;
const NAMES = {check: "Check now", commit: "Commit", rollback: "Roll back", resume: "Resume", login: "Log in", seek: "Seek", replay: "Replay", denied: "Denied", tokens: "Tokens", conflict: "Conflict", "refused end": "Refused end"};

export function show_audit(root, {signal, query}) {
  const wanted = query.get("no");
  const list = h("ol", {class: "audit"});
  const more = h("div", {class: "pager"});
  const body = h("div", null, skeleton());
  fill(root, heading("Audit", "Actions, logins, denials and changed tokens: written before they take effect, in a chain that shows any change"), body);
  const load = async (before) => {
    const found = await get("/v1/operator/audit", {limit: LIMIT, before}, signal);
    if (!found.records.length && before == null) return fill(body, empty("audit", "Nothing yet", "Actions of operators, logins, seeks, replays, denials and changes of tokens are written down."));
    list.append(...found.records.map(row));
    fill(more, found.next != null && h("button", {type: "button", onclick: () => load(found.next)}, "Older"));
    if (!list.isConnected) fill(body, wanted && h("p", null, h("a", {href: "#/audit"}, "Show the newest")), h("div", {class: "card"}, list), more);
  };
  load(wanted ? Number(wanted) + 1 : null).catch((problem) => problem.name === "AbortError" || fill(body, empty("warning", "The audit cannot be read", problem.message)));
}

function row(record) {
  const counts = record.counts && Object.entries(record.counts).filter(([, count]) => count);
  const outcome = record.result === "begun" ? [h("span", {class: "tone-bad"}, "begun; the edge ended before it was through")] : (counts ?? []).map(([name, count]) => h("span", {class: `chip ${name}`}, `${number(count)} ${name}`));
  return h("li", null,
    h("div", {class: "audit-head"}, h("a", {class: "n", href: `#/audit?no=${record.no}`, title: "A link to this record"}, `#${record.no}`), h("time", {datetime: new Date(record.at_ms).toISOString(), title: exact(record.at_ms)}, moment(record.at_ms)), h("strong", null, record.who), h("span", {class: `action ${record.action}`}, NAMES[record.action] ?? record.action), h("span", null, record.target)),
    h("p", {class: "reason"}, record.reason),
    h("div", {class: "chips"}, outcome, record.result === "failed" && h("span", {class: "tone-bad"}, "failed"), record.filter && h("span", {class: "muted"}, "by filter ", h("code", null, Object.entries(record.filter).map(([name, value]) => `${name}=${value}`).join(" ")))),
    record.ids.length > 0 && h("details", null, h("summary", null, record.ids.length < record.matched ? `The first ${number(record.ids.length)} ids` : plural(record.ids.length, "id")),
      h("ul", {class: "ids"}, record.ids.map((id) => h("li", null, h("a", {href: `#/transaction/${encodeURIComponent(id)}`, class: "mono"}, short_id(id)))))));
}
