// Producer groups with their members; topics with those who read them.

import {get, repeat} from "./api.js";
import {fill, h, icon} from "./dom.js";
import {ago, duration, number, plural} from "./format.js";

const MS = 4000;

export function show_groups(root, {signal, context}) {
  const body = h("div", {"aria-live": "off"}, skeleton());
  fill(root, heading("Groups", "Producer groups that have something in doubt, or somebody to ask"), body);
  repeat(async () => {
    const {groups} = await get("/v1/operator/groups", {}, signal);
    const now_ms = context.overview?.now_ms ?? Date.now();
    if (!groups.length) return fill(body, empty("groups", "No group is here", "A producer group appears when it sends its first half."));
    groups.sort((a, b) => b.pending - a.pending || a.group.localeCompare(b.group));
    fill(body, table(["Group", "#Pending", "Oldest", "#Asked", "Members"], groups.map((each) => [
      h("a", {href: `#/pending?group=${encodeURIComponent(each.group)}`}, each.group),
      number(each.pending), duration(each.oldest_age_s), number(each.outstanding), members(each, now_ms)])));
  }, MS, signal);
}

function members({members, pending}, now_ms) {
  if (!members.length) return h("span", {class: pending ? "tone-bad" : "muted"}, pending ? "nobody to ask: nothing of it can be checked" : "nobody");
  const shown = members.slice(0, 6).map((each) => h("span", {class: "chip", title: `by ${each.via}, ${ago(each.last_seen_ms, now_ms)}`}, each.member, h("small", null, each.via)));
  return h("span", {class: "chips"}, shown, members.length > shown.length && h("span", {class: "muted"}, `and ${number(members.length - shown.length)} more`));
}

export function show_topics(root, {signal}) {
  const body = h("div", null, skeleton());
  fill(root, heading("Topics", "Where committed messages go, and how far their readers are"), body);
  repeat(async () => {
    const {topics} = await get("/v1/operator/topics", {}, signal);
    if (!topics.length) return fill(body, empty("topics", "No topic is here", "A topic appears with the first half or message that is sent to it."));
    topics.sort((a, b) => a.topic.localeCompare(b.topic));
    const rows = topics.flatMap((each) => (each.consumers.length ? each.consumers : [null]).map((reader, n) => [
      n ? h("span", {class: "repeated"}, each.topic) : each.topic, n ? "" : number(each.queues), n ? "" : number(each.messages),
      reader ? reader.group : h("span", {class: "muted"}, "nobody reads it"),
      reader ? h("span", {class: reader.lag ? "" : "muted"}, number(reader.lag)) : "", reader ? number(reader.in_hand) : "",
      reader ? h("span", {class: reader.dead_letters ? "tone-bad" : "muted"}, number(reader.dead_letters)) : ""]));
    const total = topics.flatMap((each) => each.consumers).reduce((sum, each) => sum + each.dead_letters, 0);
    fill(body, table(["Topic", "#Queues", "#Messages", "Consumer group", "#Lag", "#In hand", "#Dead letters"], rows),
      total > 0 && h("p", {class: "muted hint-line"}, plural(total, "dead letter"), " wait. ", h("code", null, "GET /v1/groups/{group}/dead-letters"), " lists them, and replays them to their group."));
  }, MS, signal);
}

// --- what list pages share ---------------------------------------------------------------------------------------------------------
export const heading = (title, text, ...more) => h("div", {class: "heading"}, h("div", null, h("h1", null, title), text && h("p", {class: "muted"}, text)), more);

export const empty = (name, title, text, ...more) => h("div", {class: "empty card"}, icon(name), h("h2", null, title), h("p", {class: "muted"}, text), more);

export const skeleton = () => h("div", {class: "card skeleton", "aria-label": "Loading"}, Array.from({length: 6}, () => h("i")));

/** A name that begins with # is of a column of numbers. On a phone each row is a card: cells carry their column's name. */
export function table(names, rows) {
  const title = (name) => name.replace(/^#/, "");
  const kind = (name) => (name.startsWith("#") ? "n" : "");
  return h("div", {class: "card scroll"}, h("table", null,
    h("thead", null, h("tr", null, names.map((name) => h("th", {class: kind(name), scope: "col"}, title(name))))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, n) => h("td", {class: kind(names[n]), dataset: {name: title(names[n])}}, cell)))))));
}
