// What is wrong, how much is in doubt, how fast things go, how each part is.

import {get, repeat} from "./api.js";
import {chart} from "./charts.js";
import {fill, h, icon} from "./dom.js";
import {draw_findings} from "./findings.js";
import {clock, duration, middle, number, plural, short} from "./format.js";

const GROUPS_MS = 5000;
const PARTS = {edge: "Edge", job: "Streaming job", checks: "Check delivery", disk: "Disk", clock: "Clock"};

export function show_overview(root, {context, signal}) {
  const findings = h("section", {class: "card wrong", "aria-labelledby": "wrong"});
  const list = h("div");
  const judged = h("span", {class: "muted"});
  fill(findings, h("div", {class: "wrong-head"}, h("h2", {id: "wrong"}, "What is wrong"), judged), list);
  const tiles = h("section", {class: "tiles", "aria-label": "Figures"});
  const through = chart({title: "Throughput", unit: "each second", lines: [{name: "Halves", tone: "t1"}, {name: "Commits", tone: "t2"}, {name: "Roll-backs", tone: "t3"}]});
  const doubt = chart({title: "In doubt", unit: "transactions", lines: [{name: "Pending", tone: "t4"}], area: true});
  const checks = chart({title: "Checks", unit: "each second", lines: [{name: "Handed over", tone: "t5"}], area: true});
  const parts = h("ul", {class: "parts"});
  const groups = h("div");
  fill(root,
    h("h1", {class: "unseen"}, "Overview"),
    findings,
    tiles,
    h("div", {class: "charts"}, through, doubt, checks),
    h("div", {class: "columns"},
      h("section", {class: "card"}, h("h2", null, "Parts"), parts),
      h("section", {class: "card"}, h("h2", null, "Groups in doubt"), groups)));
  context.watch((overview) => {
    draw_findings(list, overview, context.session);
    judged.textContent = `as of ${clock(overview.judged_at_ms)}`;
    draw(overview, tiles, parts, {through, doubt, checks});
  }, signal);
  repeat(async () => draw_groups(groups, (await get("/v1/operator/groups", {}, signal)).groups), GROUPS_MS, signal);
}

function draw(overview, tiles, parts, {through, doubt, checks}) {
  const {series, totals} = overview;
  const rate = (name) => series[name].map((count) => count / series.step_s);
  const latest = (name) => mean(rate(name).slice(-5));
  const oldest = overview.oldest_pending_age_s;
  fill(tiles,
    tile("Pending", short(overview.pending), overview.pending ? "not ended yet" : "all have ended", {href: "#/pending", tone: "lead"}),
    tile("Oldest", oldest == null ? "–" : duration(oldest), oldest == null ? "nothing waits" : "in doubt so long", {href: "#/pending", tone: oldest > 3600 ? "warn" : ""}),
    tile("Halves", `${short(latest("halves"))}/s`, `${short(totals.halves)} in all`),
    tile("Commits", `${short(latest("commits"))}/s`, `${short(totals.commits)} in all`),
    tile("Roll-backs", `${short(latest("rollbacks"))}/s`, `${short(totals.rollbacks)} in all`),
    tile("Checks", `${short(latest("checks"))}/s`, `${short(totals.checks)} so far`),
    tile("Discarded", short(overview.discarded), overview.discarded ? "wait for you" : "none", {href: "#/discarded", tone: overview.discarded ? "warn" : ""}),
    tile("Conflicts", short(totals.conflicts), "since the edge started", {href: "#/conflicts"}));
  through.draw(series.at_ms, ["halves", "commits", "rollbacks"].map(rate));
  doubt.draw(series.at_ms, [series.pending]);
  checks.draw(series.at_ms, [rate("checks")]);
  fill(parts, overview.parts.map((part) => h("li", {class: part.healthy ? "good" : "bad", title: `heard at ${clock(overview.judged_at_ms)}`}, icon(part.healthy ? "check" : "warning"),
    h("div", null, h("strong", null, PARTS[part.part] ?? part.part), h("span", {class: "unseen"}, part.healthy ? " is well: " : " is not well: "), h("p", {class: "muted"}, part.detail)))));
}

function tile(name, value, note, {href, tone = ""} = {}) {
  const content = [h("span", {class: "tile-name"}, name), h("span", {class: "tile-value"}, value), h("span", {class: "tile-note"}, note)];
  return href ? h("a", {class: `tile ${tone}`, href}, content) : h("div", {class: `tile ${tone}`}, content);
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0);

function draw_groups(root, groups) {
  const waiting = groups.filter((group) => group.pending).sort((a, b) => b.pending - a.pending).slice(0, 6);
  if (!waiting.length) {
    fill(root, h("div", {class: "empty small"}, icon("check"), h("p", null, "No group has anything in doubt.")));
    return;
  }
  const most = waiting[0].pending;
  fill(root, h("ul", {class: "bars"}, waiting.map((group) => {
    const bar = h("span", {class: "bar"});
    bar.style.width = `${Math.max(2, (group.pending / most) * 100)}%`;
    return h("li", null,
      h("a", {href: `#/group/${encodeURIComponent(group.group)}`, title: group.group}, middle(group.group, 36)),
      h("span", {class: "bar-back"}, bar),
      h("b", {class: "n"}, short(group.pending)),
      h("span", {class: group.members.length ? "muted" : "tone-bad"}, group.members.length ? plural(group.members.length, "member") : "nobody online", ` · oldest ${duration(group.oldest_age_s)}`));
  })), groups.length > waiting.length && h("p", {class: "more"}, h("a", {href: "#/groups"}, `All ${number(groups.length)} groups`)));
}
