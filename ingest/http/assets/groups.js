// Producer groups and one of them; topics with those who read them.

import {get, repeat} from "./api.js";
import {conflicts_table} from "./conflicts.js";
import {fill, h} from "./dom.js";
import {ago, cause_text, duration, exact, middle, moment, number, plural, short_id, since} from "./format.js";
import {choice, empty, filter_form, heading, skeleton, table} from "./pieces.js";

const MS = 4000;
const SORTS = {pending: (a, b) => b.pending - a.pending, oldest: (a, b) => (b.oldest_age_s ?? -1) - (a.oldest_age_s ?? -1), discarded: (a, b) => b.discarded - a.discarded, name: () => 0};
const search = (query, label) => h("input", {name: "q", type: "search", class: "wide", value: query.get("q") ?? "", placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false"});

export function show_groups(root, {signal, context, query}) {
  const body = h("div", null, skeleton());
  const count = h("span", {class: "matched muted", role: "status"});
  const form = filter_form("groups", query, [search(query, "Search groups"),
    choice("online", "Online", [["", "online or not"], ["no", "nobody online"], ["yes", "somebody online"]], query.get("online") ?? ""),
    choice("sort", "Sort", [["", "most pending first"], ["oldest", "oldest first"], ["discarded", "most discarded first"], ["name", "by name"]], query.get("sort") ?? "")]);
  fill(root, heading("Groups", "Producer groups that have something in doubt, or somebody to ask", count), form, body);
  repeat(async () => {
    const {groups} = await get("/v1/operator/groups", {}, signal);
    const now_ms = context.overview?.now_ms ?? Date.now();
    const online = query.get("online");
    const text = query.get("q") ?? "";
    const shown = groups.filter((each) => each.group.includes(text) && (!online || (each.members.length > 0) === (online === "yes")));
    const sort = SORTS[query.get("sort")] ?? SORTS.pending;
    shown.sort((a, b) => sort(a, b) || a.group.localeCompare(b.group));
    count.textContent = shown.length === groups.length ? plural(groups.length, "group") : `${number(shown.length)} of ${plural(groups.length, "group")}`;
    if (!shown.length) return fill(body, groups.length ? empty("search", "Nothing matches", "No group fits these filters.") : empty("groups", "No group is here", "A producer group appears when it sends its first half."));
    fill(body, table(["Group", "#Pending", "Oldest", "#Asked", "#Discarded", "#Conflicts", "Online"], shown.map((each) => [
      h("a", {href: `#/group/${encodeURIComponent(each.group)}`, title: each.group}, middle(each.group)),
      number(each.pending), duration(each.oldest_age_s), number(each.outstanding), tone(each.discarded), tone(each.conflicts), members(each, now_ms)])));
  }, MS, signal);
}

const tone = (count) => h("span", {class: count ? "tone-bad" : "muted"}, number(count));

function members({members, pending, last_seen_ms}, now_ms) {
  if (!members.length) return h("span", {class: pending ? "tone-bad" : "muted"}, `nobody online${last_seen_ms ? ` since ${since(last_seen_ms, now_ms)}` : ""}`);
  const shown = members.slice(0, 6).map((each) => h("span", {class: "chip", title: `${each.member}, by ${each.via}, ${ago(each.last_seen_ms, now_ms)}`}, middle(each.member, 28), h("small", null, each.via)));
  return h("span", {class: "chips"}, shown, members.length > shown.length && h("span", {class: "muted"}, `and ${number(members.length - shown.length)} more`));
}

// --- one group -----------------------------------------------------------------------------------------------------------------------
export function show_group(root, {signal, context, argument}) {
  const body = h("div", null, skeleton());
  fill(root, body);
  const name = encodeURIComponent(argument);
  repeat(async () => {
    const found = await get(`/v1/operator/groups/${name}`, {}, signal).catch((problem) => {
      if (problem.status === 404) fill(body, empty("groups", "No such group", "Nobody has sent a half as this group."));
      throw problem;
    });
    draw_group(body, found, context.overview?.now_ms ?? Date.now());
  }, MS, signal);
}

function draw_group(root, {group, causes, answers, conflicts}, now_ms) {
  const name = encodeURIComponent(group.group);
  const fact = (title, value) => h("div", null, h("dt", null, title), h("dd", null, value));
  fill(root,
    h("p", {class: "crumb"}, h("a", {href: "#/groups"}, "Groups")),
    heading(middle(group.group, 60), "", h("div", {class: "tx-actions"}, h("a", {class: "button", href: `#/pending?group=${name}`}, "Pending"), h("a", {class: "button", href: `#/discarded?group=${name}`}, "Discarded"), h("a", {class: "button", href: `#/history?group=${name}`}, "History"))),
    h("div", {class: "columns"},
      h("section", {class: "card"}, h("h2", null, "State"), h("dl", {class: "facts"},
        fact("Pending", number(group.pending)), fact("Oldest", duration(group.oldest_age_s)), fact("Asked, open", number(group.outstanding)),
        fact("Discarded", tone(group.discarded)), fact("Conflicts", tone(group.conflicts)), fact("Online", members(group, now_ms)))),
      h("section", {class: "card"}, h("h2", null, "Why in doubt"), causes.length ? cause_list(causes, now_ms) : h("p", {class: "muted"}, "Nothing is in doubt."))),
    h("h2", {class: "section"}, "Last answers"),
    answers.length ? table(["When", "Answer", "Remark", "Transaction"], answers.map((each) => [
      h("time", {title: exact(each.at_ms)}, moment(each.at_ms)), h("span", {class: "chip pending"}, "UNKNOWN"), h("span", {class: "remark"}, each.remark || "no remark"),
      h("a", {href: `#/transaction/${encodeURIComponent(each.id)}`, class: "mono"}, short_id(each.id))])) : h("p", {class: "muted"}, "None that left a transaction in doubt."),
    conflicts.length > 0 && [h("h2", {class: "section"}, "Conflicts"), conflicts_table(conflicts)]);
}

/** Groups and causes as bars that lead to the transactions behind them. */
export function cause_list(causes, now_ms, {with_group = false} = {}) {
  const most = Math.max(...causes.map((each) => each.count));
  return h("ul", {class: "bars causes"}, causes.map((each) => {
    const bar = h("span", {class: "bar"});
    bar.style.width = `${Math.max(2, (each.count / most) * 100)}%`;
    const href = `#/${each.state}?${new URLSearchParams({group: each.group, cause: each.cause})}`;
    return h("li", null, h("a", {href, title: cause_text(each.cause)}, with_group ? `${middle(each.group, 28)}: ${cause_text(each.cause)}` : cause_text(each.cause)), h("span", {class: "bar-back"}, bar), h("b", {class: "n"}, number(each.count)),
      h("span", {class: "muted"}, `${each.state}, oldest ${duration((now_ms - each.oldest_ms) / 1000)}, ${plural(each.attempts_max, "attempt")} at most`));
  }));
}

// --- topics --------------------------------------------------------------------------------------------------------------------------
export function show_topics(root, {signal, query}) {
  const body = h("div", null, skeleton());
  const form = filter_form("topics", query, [search(query, "Search topics and readers"), choice("sort", "Sort", [["", "by name"], ["lag", "largest lag first"], ["messages", "most messages first"]], query.get("sort") ?? "")]);
  fill(root, heading("Topics", "Where committed messages go, and how far their readers are"), form, body);
  repeat(async () => {
    const {topics} = await get("/v1/operator/topics", {}, signal);
    const text = query.get("q") ?? "";
    const shown = topics.filter((each) => each.topic.includes(text) || each.consumers.some((reader) => reader.group.includes(text)));
    const lag = (each) => Math.max(0, ...each.consumers.map((reader) => reader.lag));
    shown.sort((a, b) => (query.get("sort") === "lag" ? lag(b) - lag(a) : query.get("sort") === "messages" ? b.messages - a.messages : 0) || a.topic.localeCompare(b.topic));
    if (!shown.length) return fill(body, topics.length ? empty("search", "Nothing matches", "No topic fits this search.") : empty("topics", "No topic is here", "A topic appears with the first half or message that is sent to it."));
    fill(body, topics_table(shown));
  }, MS, signal);
}

export function show_topic(root, {signal, argument}) {
  const body = h("div", null, skeleton());
  fill(root, h("p", {class: "crumb"}, h("a", {href: "#/topics"}, "Topics")), heading(middle(argument, 60), "Its readers, and what waits for them"), body);
  repeat(async () => {
    const {topics} = await get("/v1/operator/topics", {}, signal);
    const shown = topics.filter((each) => each.topic === argument);
    fill(body, shown.length ? topics_table(shown) : empty("topics", "No such topic", "It has been removed, or never was."));
  }, MS, signal);
}

function topics_table(topics) {
  const rows = topics.flatMap((each) => (each.consumers.length ? each.consumers : [null]).map((reader, n) => [
    n ? h("span", {class: "repeated"}, each.topic) : h("a", {href: `#/topic/${encodeURIComponent(each.topic)}`, title: each.topic}, middle(each.topic)), n ? "" : number(each.queues), n ? "" : number(each.messages),
    reader ? h("span", {title: reader.group}, middle(reader.group)) : h("span", {class: "muted"}, "nobody reads it"),
    reader ? h("span", {class: reader.lag ? "" : "muted"}, number(reader.lag)) : "", reader ? number(reader.in_hand) : "",
    reader ? tone(reader.deleted_unread) : "",
    reader ? (reader.dead_letters ? h("a", {class: "tone-bad", href: `#/dead-letters/${encodeURIComponent(reader.group)}`}, number(reader.dead_letters)) : h("span", {class: "muted"}, "0")) : ""]));
  return table(["Topic", "#Queues", "#Messages", "Consumer group", "#Lag", "#In hand", "#Deleted unread", "#Dead letters"], rows);
}
