// Ends that were not taken: who contradicted what.

import {get, repeat} from "./api.js";
import {fill, h} from "./dom.js";
import {exact, middle, moment, plural, short_id} from "./format.js";
import {choice, empty, filter_form, heading, skeleton, table} from "./pieces.js";

const MS = 5000;
const LIMIT = 200;
const BY = {producer: "its producer", check: "in answer to a check", operator: "operator"};

export function show_conflicts(root, {signal, query}) {
  const body = h("div", null, skeleton());
  const count = h("span", {class: "matched muted", role: "status"});
  const form = filter_form("conflicts", query, [
    h("input", {name: "group", value: query.get("group") ?? "", placeholder: "Group", "aria-label": "Group", autocomplete: "off", spellcheck: "false"}),
    choice("by", "Said by", [["", "by anybody"], ["producer", "by producers"], ["operator", "by operators"]], query.get("by") ?? ""),
  ]);
  fill(root, heading("Conflicts", "Ends that were not taken, because the transaction had ended otherwise; the first outcome stands", count), form, body);
  repeat(async () => {
    const {conflicts} = await get("/v1/operator/conflicts", {group: query.get("group"), by: query.get("by"), limit: LIMIT}, signal);
    count.textContent = conflicts.length ? `${conflicts.length < LIMIT ? "" : "the last "}${plural(conflicts.length, "conflict")}` : "";
    if (!conflicts.length) return fill(body, empty("check", "No conflict is known", "A conflict is an end that says the opposite of what a transaction has become."));
    fill(body, conflicts_table(conflicts));
  }, MS, signal);
}

export function conflicts_table(conflicts) {
  return table(["When", "Group", "Said", "It was", "By", "Remark", "Transaction"], conflicts.map((each) => [
    h("time", {datetime: new Date(each.at_ms).toISOString(), title: exact(each.at_ms)}, moment(each.at_ms)),
    h("a", {href: `#/group/${encodeURIComponent(each.group)}`, title: each.group}, middle(each.group)),
    h("span", {class: `chip ${each.verdict}`}, `${each.said}, ${each.verdict}`), each.state.toLowerCase().replace("_", " "),
    each.by === "operator" ? `operator ${each.who}` : BY[each.by] ?? each.by, h("span", {class: "remark"}, each.remark),
    h("a", {href: `#/transaction/${encodeURIComponent(each.id)}`, class: "mono", title: each.id}, short_id(each.id))]));
}
