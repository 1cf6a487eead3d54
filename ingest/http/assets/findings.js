// What is wrong: ranked sentences, each with count, age, cause, and where to go on.

import {fill, h, icon} from "./dom.js";
import {ago, middle, plural, since} from "./format.js";

const PARTS = {edge: "Edge", job: "Streaming job", checks: "Check delivery", disk: "Disk", clock: "Clock"};
const SINCE = {nobody_online: "since", part: "since", conflicts: "last at", unknown_answers: "oldest from", unanswered: "oldest from"};

export const subject_of = (found) => PARTS[found.subject] ?? found.subject;

/** One line for the light and the title bar. */
export function headline(overview) {
  const [first] = overview.findings;
  if (!first) return "All is well";
  const rest = overview.findings.length - 1;
  return `${middle(subject_of(first), 24)}: ${first.text}${rest ? ` · ${rest} more` : ""}`;
}

export function draw_findings(root, overview, session) {
  const {findings, now_ms} = overview;
  if (!findings.length) {
    fill(root, h("div", {class: "well"}, icon("check"), h("div", null, h("strong", null, "Nothing is wrong"), h("p", {class: "muted"}, "Every group in doubt can be asked; nothing is discarded, contradicted or dead; all parts answer."))));
    return;
  }
  fill(root, h("ol", {class: "findings"}, findings.map((found) => row(found, now_ms, session))));
}

function row(found, now_ms, session) {
  const when = found.since_ms != null && h("span", {class: "muted when", title: ago(found.since_ms, now_ms)}, `${SINCE[found.kind] ?? "since"} ${since(found.since_ms, now_ms)} (${ago(found.since_ms, now_ms)})`);
  const target = found.page && found.page !== "overview" ? h("a", {class: "button", href: `#/${found.page}`, "aria-label": `Show ${subject_of(found)}`}, "Show") : null;
  return h("li", {class: found.severity},
    icon("warning"),
    h("div", {class: "finding"},
      h("p", {class: "what"}, h("strong", {title: found.subject}, middle(subject_of(found), 48)), h("span", null, ` ${found.text} `), when),
      found.cause && h("p", {class: "cause"}, found.cause),
      found.remedy && h("p", {class: "remedy muted"}, `Do: ${found.remedy}.`)),
    h("div", {class: "finding-actions"}, target, runbook(found, session)));
}

/** A link where runbookBaseUrl is set, the section's name where not. */
function runbook(found, session) {
  if (!found.runbook) return null;
  const anchor = found.runbook.toLowerCase();
  if (session.runbook_base_url) return h("a", {href: `${session.runbook_base_url}#${anchor}`, target: "_blank", rel: "noreferrer", "aria-label": `Runbook for ${subject_of(found)}: ${found.runbook}`}, "Runbook");
  return h("code", {class: "muted", title: `docs/operators.md#${anchor}; ${found.command}`}, found.command);
}

export const count_text = (overview) => plural(overview.findings.length, "finding");
