// Dead letters: messages that a consumer group was given too often. Browse them, and give them to the group again.

import {Problem, call, get, repeat} from "./api.js";
import {fill, h} from "./dom.js";
import {exact, middle, moment, number, plural} from "./format.js";
import {payload} from "./payload.js";
import {empty, heading, skeleton, table} from "./pieces.js";

const MS = 5000;

export function show_letters(root, view) {
  if (view.argument) show_group_letters(root, view);
  else show_groups_with_letters(root, view);
}

function show_groups_with_letters(root, {signal}) {
  const body = h("div", null, skeleton());
  fill(root, heading("Dead letters", "Messages that a consumer group was given maxDeliveries times and never acknowledged"), body);
  repeat(async () => {
    const {groups} = await get("/v1/operator/dead-letters", {}, signal);
    if (!groups.length) return fill(body, empty("check", "No dead letters", "Every message that was handed out was acknowledged, or is still tried."));
    fill(body, table(["Consumer group", "#Dead letters", "Of topics"], groups.map((each) => [
      h("a", {href: `#/dead-letters/${encodeURIComponent(each.group)}`, title: each.group}, middle(each.group)), number(each.dead_letters), each.topics.slice(0, 4).join(", ") + (each.topics.length > 4 ? " …" : "")])));
  }, MS, signal);
}

function show_group_letters(root, {signal, argument}) {
  const body = h("div", null, skeleton());
  const count = h("span", {class: "matched muted", role: "status"});
  const path = `/v1/operator/dead-letters/${encodeURIComponent(argument)}`;
  let after = "";
  const replay_all = h("button", {type: "button", class: "primary", onclick: () => ask_replay(argument, path, null, load)}, "Replay all");
  const load = async () => {
    const found = await get(path, {after}, signal);
    count.textContent = found.count ? plural(found.count, "dead letter") : "";
    replay_all.hidden = !found.count;
    if (!found.dead_letters.length) return fill(body, empty("check", "No dead letters", "This group has none now."));
    if (body.querySelector("details[open]")) return; // somebody reads
    fill(body, h("ul", {class: "letters"}, found.dead_letters.map((each) => letter(each, () => ask_replay(argument, path, [each.id], load)))),
      h("div", {class: "pager"}, after && h("button", {type: "button", onclick: () => { after = ""; load(); }}, "First"), found.next && h("button", {type: "button", onclick: () => { after = found.next; load(); }}, "Next")));
  };
  fill(root, h("p", {class: "crumb"}, h("a", {href: "#/dead-letters"}, "Dead letters")), heading(middle(argument, 60), "Mend the consumer first, then replay: the group gets each once more", count, h("div", {class: "tx-actions"}, replay_all)), body);
  repeat(load, MS, signal);
}

function letter(found, replay) {
  const bytes = Uint8Array.from(atob(found.body), (sign) => sign.charCodeAt(0));
  const details = h("details", {class: "card", ontoggle: () => { if (details.open && !details.querySelector(".payload")) details.append(payload({bytes, total: bytes.length, href: "", view: {mode: ""}})); }},
    h("summary", null, h("strong", null, middle(found.key, 48) || "no key"), h("span", null, found.topic), h("span", {class: "muted"}, plural(found.attempts, "attempt")), h("time", {class: "muted", title: exact(found.dead_at_ms)}, `dead since ${moment(found.dead_at_ms)}`)));
  return h("li", null, details, h("button", {type: "button", onclick: replay}, "Replay"));
}

/** 1 a dry run tells how many · 2 a reason · 3 it is done, and the audit has it. */
async function ask_replay(group, path, ids, done) {
  const content = h("div", {class: "ask-content"}, h("p", {class: "muted", role: "status"}, "Making a dry run…"));
  const dialog = h("dialog", {class: "dialog", "aria-labelledby": "replay-title", onclose: () => dialog.remove()}, h("h2", {id: "replay-title"}, ids ? "Replay 1 dead letter" : `Replay all dead letters of ${middle(group, 40)}`), h("p", {class: "muted"}, "The group gets each of them once more, where it reads its topic. Others do not."), content);
  document.body.append(dialog);
  dialog.showModal();
  const end = (...children) => fill(content, children, h("div", {class: "buttons"}, h("button", {type: "button", class: "primary", onclick: () => dialog.close()}, "Close")));
  const told = (problem) => (problem instanceof Problem ? problem.message : "The edge does not answer: it is not known whether this was done.");
  const given = ids ? {ids} : {};
  try {
    const dry = await call("POST", `${path}/replay`, {body: {...given, reason: "a dry run", dry_run: true}});
    if (!dry.matched) return end(h("p", null, "None of them is open any more."));
    const reason = h("textarea", {id: "reason", rows: "2", maxlength: "500", required: true, placeholder: "What was mended? It goes to the audit log."});
    const error = h("p", {class: "form-error", role: "alert"});
    const button = h("button", {type: "submit", class: "primary"}, `Replay ${number(dry.matched)}`);
    fill(content, h("p", null, `${plural(dry.matched, "letter")} would be delivered to ${group} again.`), h("form", {onsubmit: async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const found = await call("POST", `${path}/replay`, {body: {...given, reason: reason.value.trim(), expect: dry.matched}});
        end(h("p", {class: "outcome good", role: "status"}, `Done: ${plural(found.replayed, "letter")} will be delivered again.`));
        done();
      } catch (problem) {
        button.disabled = false;
        error.textContent = told(problem);
      }
    }}, h("label", {for: "reason"}, "Reason"), reason, error, h("div", {class: "buttons"}, h("button", {type: "button", class: "ghost", onclick: () => dialog.close()}, "Cancel"), button)));
    reason.focus();
  } catch (problem) {
    end(h("p", {class: "form-error", role: "alert"}, told(problem)));
  }
}
