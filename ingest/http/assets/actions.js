// The dialog before an action: what it would do, why it is done, and what became of it.

import * as api from "./api.js";
import {fill, h, icon} from "./dom.js";
import {duration, middle, number, plural, short_id} from "./format.js";

const TEXTS = {
  check: ["Check now", "Ask a member of the producer group at once, whatever immunity and round say. The answer settles it as usual."],
  commit: ["Commit", "The message is released to its topic. This is final: consumers may have it within a moment."],
  rollback: ["Roll back", "The message is dropped and is never released. This is final."],
  resume: ["Resume", "It is pending again: attempts count from 0, and its producers are asked again."],
};
//: So many or more are confirmed by their number.
const TYPED_FROM = 2;

/** ask({action, ids or filter, count, done}) */
export function ask({action, ids, filter, done}) {
  const [name, text] = TEXTS[action];
  const title = h("h2", {id: "ask-title"}, name);
  const content = h("div", {class: "ask-content"}, h("p", {class: "muted", role: "status"}, "Making a dry run…"));
  const dialog = h("dialog", {class: "dialog", "aria-labelledby": "ask-title", onclose: () => dialog.remove()}, title, h("p", {class: "muted"}, text), content);
  document.body.append(dialog);
  dialog.showModal();
  dry_run({dialog, content, title, name, action, target: ids ? {ids} : {filter}, done});
}

async function dry_run(step) {
  try {
    const found = await api.act({action: step.action, ...step.target, reason: "a dry run", dry_run: true});
    step.title.textContent = `${step.name}: ${plural(found.matched, "transaction")}`;
    if (found.matched) show_form(step, found);
    else show_end(step, [h("p", null, "Nothing matches any more.")]);
  } catch (problem) {
    show_end(step, [h("p", {class: "form-error", role: "alert"}, told(problem))]);
  }
}

function show_form(step, found) {
  const {dialog, content, name, action} = step;
  const error = h("p", {class: "form-error", role: "alert"});
  const reason = h("textarea", {id: "reason", name: "reason", rows: "2", maxlength: "500", required: true, placeholder: "Why? A ticket, a finding. It goes to the audit log."});
  const typed = found.matched >= TYPED_FROM && (action === "commit" || action === "rollback" || step.target.filter) ? h("input", {id: "typed", inputmode: "numeric", autocomplete: "off", required: true, "aria-describedby": "typed-help"}) : null;
  const button = h("button", {type: "submit", class: action === "commit" || action === "rollback" ? "danger solid" : "primary"}, `${name} ${found.matched === 1 ? "it" : number(found.matched)}`);
  const submit = async (event) => {
    event.preventDefault();
    if (typed && typed.value.replace(/\D/g, "") !== String(found.matched)) {
      error.textContent = `Type ${found.matched} to confirm.`;
      typed.focus();
      return;
    }
    button.disabled = true;
    try {
      const expect = step.target.filter ? {expect: found.matched} : {};
      show_result(step, await api.act({action, ...step.target, reason: reason.value.trim(), ...expect}));
    } catch (problem) {
      button.disabled = false;
      error.textContent = told(problem);
    }
  };
  fill(content, preview(step, found), summary(found, "would be"), h("form", {onsubmit: submit},
    h("label", {for: "reason"}, "Reason"), reason,
    typed && [h("label", {for: "typed"}, "Confirm"), typed, h("p", {id: "typed-help", class: "muted"}, `Type the number of transactions, ${number(found.matched)}.`)],
    error,
    h("div", {class: "buttons"}, h("button", {type: "button", class: "ghost", onclick: () => dialog.close()}, "Cancel"), button)));
  reason.focus();
}

/** What would happen, or has happened, to how many, and why. A dry run promises nothing: it is not green. */
function summary(found, would) {
  return h("div", {class: `summary ${would ? "dry" : ""}`},
    h("ul", {class: "reasons"}, found.reasons.map((each) => h("li", null, h("span", {class: `chip ${would ? "foreseen" : each.result}`}, `${number(each.count)} ${would ? `${would} ` : ""}${each.result}`), each.detail && h("span", null, ` ${each.detail}`)))));
}

/** Whom it is about: filter, groups, ages, some of them. */
function preview(step, found) {
  const {groups, groups_more, oldest_ms, newest_ms} = found.preview;
  const filter = step.target.filter && Object.entries(step.target.filter).map(([name, value]) => `${name}=${value}`).join(" ");
  const now_ms = Date.now();
  return h("dl", {class: "facts preview"},
    filter && h("div", null, h("dt", null, "Filter"), h("dd", null, h("code", null, filter))),
    h("div", null, h("dt", null, "Groups"), h("dd", null, groups.slice(0, 5).map((each) => h("span", {class: "chip", title: each.group}, `${middle(each.group, 28)} ${number(each.count)}`, !each.online && h("small", {class: "tone-bad"}, "nobody online"))), groups.length - 5 + groups_more > 0 && h("span", {class: "muted"}, `and ${number(groups.length - 5 + groups_more)} more`))),
    oldest_ms != null && h("div", null, h("dt", null, "Ages"), h("dd", null, oldest_ms === newest_ms ? duration((now_ms - oldest_ms) / 1000) : `${duration((now_ms - newest_ms) / 1000)} to ${duration((now_ms - oldest_ms) / 1000)}`)),
    found.matched > 1 && h("div", null, h("dt", null, "Some of them"), h("dd", null, found.results.slice(0, 3).map((each) => h("a", {class: "mono", href: `#/transaction/${encodeURIComponent(each.id)}`, target: "_blank"}, short_id(each.id), " ")))));
}

function show_result(step, found) {
  const {accepted, queued} = found.counts;
  const text = accepted ? `Done: ${plural(accepted, "transaction")}.` : queued ? `Queued: ${plural(queued, "check request")}. Nobody is online to answer.` : "Nothing was changed.";
  show_end(step, [
    h("p", {class: `outcome ${accepted ? "good" : queued ? "waits" : "bad"}`, role: "status"}, icon(accepted ? "check" : queued ? "clock" : "warning"), text),
    summary(found, ""),
    h("p", {class: "muted"}, "In the audit log as ", h("a", {href: `#/audit?no=${found.audit_no}`, onclick: () => step.dialog.close()}, `#${found.audit_no}`), "."),
  ]);
  step.done?.();
}

function show_end({dialog, content}, children) {
  const close = h("button", {type: "button", class: "primary", onclick: () => dialog.close()}, "Close");
  fill(content, children, h("div", {class: "buttons"}, close));
  close.focus();
}

const told = (problem) => (problem instanceof api.Problem ? problem.message : "The edge does not answer: it is not known whether this was done. Look at the transaction before you try again.");
