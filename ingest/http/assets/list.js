// Lists of transactions: pending, discarded, settled. Filters live in the address, so that a list can be sent to somebody.

import {get, repeat} from "./api.js";
import {ask} from "./actions.js";
import {announce, fill, h, icon} from "./dom.js";
import {between, cause_text, duration, exact, middle, moment, number, plural, short_id, typed_ms} from "./format.js";
import {cause_list} from "./groups.js";
import {empty, heading, skeleton} from "./pieces.js";

const LIMIT = 100;
const REFRESH_MS = 5000;
//: A search that has looked so often without filling its page lets the operator decide.
const LOOKS_MAX = 60;
const AGES = [["", "any age"], ["60", "older than 1 min"], ["300", "older than 5 min"], ["3600", "older than 1 h"], ["86400", "older than 1 day"]];
const ATTEMPTS = [["", "any attempts"], ["1", "asked at least once"], ["3", "asked 3 times or more"], ["10", "asked 10 times or more"]];
const STATES = [["settled", "settled"], ["committed", "committed"], ["rolled_back", "rolled back"], ["any", "all states"], ["quarantined", "quarantined"]];
const REASONS = {check_max: "asked too often", expired: "too old"};

const KINDS = {
  pending: {
    title: "Pending", text: "Stored, and not ended yet", state: "pending", filters: ["q", "group", "topic", "age_min_s", "attempts_min", "online", "cause"], actions: ["check", "commit", "rollback", "resume"],
    none: ["check", "Nothing is in doubt", "Every transaction that was stored has been committed, rolled back or discarded."],
  },
  discarded: {
    title: "Discarded", text: "Nobody could say how they ended: an operator decides", state: "discarded", filters: ["q", "group", "topic", "age_min_s", "online", "cause"], actions: ["resume", "commit", "rollback"],
    none: ["check", "Nothing is discarded", "A half is discarded when its producers were asked too often without an answer, or when it is too old."],
  },
  history: {
    title: "History", text: "Everything that is still kept", state: "settled", filters: ["q", "state", "group", "topic", "key", "since", "until"], actions: [],
    none: ["history", "No transaction has ended yet", "Committed and rolled-back transactions are found here for as long as their files are kept."],
  },
};

export function show_list(root, view) {
  new List(root, view, KINDS[view.name]).start();
}

class List {
  constructor(root, {context, signal, name, query}, kind) {
    Object.assign(this, {root, context, signal, name, query, kind});
    this.selected = new Map();
    this.places = [""];
    this.rows = [];
    this.body = h("div", null, skeleton());
    this.count = h("span", {class: "matched muted", role: "status"});
    this.bulk = h("div", {class: "bulk", hidden: true, role: "toolbar", "aria-label": "Actions for the selection"});
    this.pager = h("div", {class: "pager"});
    this.folded = h("details", {class: "card folded", ontoggle: () => this.fold()});
  }

  start() {
    fill(this.root, heading(this.kind.title, this.kind.text, this.count), this.filters(), this.name !== "history" && this.folded, this.bulk, this.body, this.pager);
    this.offer_fold();
    document.addEventListener("keydown", (event) => this.on_key(event), {signal: this.signal});
    if (this.name === "history") this.load();
    else repeat(() => this.refresh(), REFRESH_MS, this.signal);
  }

  // --- by cause --------------------------------------------------------------------------------------------------------------------
  offer_fold() {
    this.causes = h("div", null, h("p", {class: "muted"}, "…"));
    fill(this.folded, h("summary", null, "By cause"), this.causes);
  }

  async fold() {
    if (!this.folded.open) return;
    const found = await get("/v1/operator/causes", {state: this.kind.state}, this.signal);
    const group = this.query.get("group");
    const causes = found.causes.filter((each) => !group || each.group === group);
    fill(this.causes, causes.length ? cause_list(causes.slice(0, 50), this.context.overview?.now_ms ?? Date.now(), {with_group: true}) : h("p", {class: "muted"}, "Nothing is in doubt."),
      causes.length > 50 && h("p", {class: "muted"}, `and ${number(causes.length - 50)} more`));
  }

  // --- filters -------------------------------------------------------------------------------------------------------------------
  filters() {
    const value = (name) => this.query.get(name) ?? "";
    const text = (name, label, rest = {}) => h("input", {name, value: value(name), placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false", ...rest});
    const choice = (name, label, options, chosen) => h("select", {name, "aria-label": label}, options.map(([key, shown]) => h("option", {value: key, selected: key === (value(name) || chosen)}, shown)));
    const time = (name, label) => h("label", {class: "time"}, h("span", null, label), h("input", {type: "datetime-local", step: "1", name, value: value(name)}));
    const made = {
      q: () => text("q", "Search id, key, group, topic", {type: "search", class: "wide"}),
      group: () => text("group", "Group", {list: "known-groups"}),
      topic: () => text("topic", "Topic", {list: "known-topics"}),
      key: () => text("key", "Key, exactly"),
      age_min_s: () => choice("age_min_s", "Age", AGES),
      attempts_min: () => choice("attempts_min", "Attempts", ATTEMPTS),
      online: () => choice("online", "Online", [["", "online or not"], ["false", "nobody online"], ["true", "somebody online"]]),
      cause: () => value("cause") ? h("label", {class: "cause-filter"}, h("span", {class: "muted"}, "because"), h("select", {name: "cause", "aria-label": "Cause"}, h("option", {value: value("cause"), selected: true}, cause_text(value("cause"))), h("option", {value: ""}, "any cause"))) : null,
      state: () => choice("state", "State", STATES, "settled"),
      since: () => time("since", "from"),
      until: () => time("until", "to"),
    };
    const order = choice("order", "Order", [["oldest", "oldest first"], ["newest", "newest first"]], this.name === "history" ? "newest" : "oldest");
    const form = h("form", {class: "filters", role: "search", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); this.apply(form); }, onchange: () => this.apply(form)},
      this.kind.filters.map((name) => made[name]()), order,
      h("button", {type: "submit"}, "Search"),
      [...this.query.keys()].length > 0 && h("a", {class: "clear", href: `#/${this.name}`}, "Clear"),
      h("datalist", {id: "known-groups"}), h("datalist", {id: "known-topics"}));
    this.suggest(form);
    return form;
  }

  async suggest(form) {
    try {
      const [groups, topics] = await Promise.all([get("/v1/operator/groups", {}, this.signal), get("/v1/operator/topics", {}, this.signal)]);
      fill(form.querySelector("#known-groups"), groups.groups.map((each) => h("option", {value: each.group})));
      fill(form.querySelector("#known-topics"), topics.topics.map((each) => h("option", {value: each.topic})));
    } catch { /* names can be typed */ }
  }

  apply(form) {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      const usual = {order: this.name === "history" ? "newest" : "oldest", state: "settled"}[name];
      if (value.trim() && value !== usual) query.set(name, value.trim());
    }
    const hash = `#/${this.name}${query.size ? `?${query}` : ""}`;
    if (hash === location.hash) this.load();
    else location.hash = hash;
  }

  /** What the endpoint is asked: the filter of an action too. */
  wanted() {
    const found = {state: this.kind.state};
    for (const name of this.kind.filters) {
      const value = this.query.get(name);
      if (!value) continue;
      if (name === "since") found.since_ms = typed_ms(value);
      else if (name === "until") found.until_ms = typed_ms(value) + 999;
      else if (name === "online") found.online = value === "true";
      else found[name] = /^(age|attempts)_/.test(name) ? Number(value) : value;
    }
    return found;
  }

  // --- loading -------------------------------------------------------------------------------------------------------------------
  async refresh() {
    this.context.paused = this.selected.size ? `${number(this.selected.size)} selected` : this.places.length > 1 ? "not on the first page" : this.root.querySelector("tbody :focus") ? "a row has the focus" : "";
    if (this.context.paused || document.querySelector("dialog[open]")) return;
    await this.load();
  }

  async load() {
    this.loading?.abort();
    const loading = (this.loading = new AbortController());
    const signal = AbortSignal.any([loading.signal, this.signal]);
    const order = this.query.get("order") ?? (this.name === "history" ? "newest" : "oldest");
    let cursor = this.places.at(-1);
    let looks = 0;
    let matched = null;
    const rows = [];
    try {
      do {
        const found = await get("/v1/operator/transactions", {...this.wanted(), order, limit: LIMIT - rows.length, cursor}, signal);
        rows.push(...found.transactions);
        matched ??= found.matched;
        cursor = found.next;
        looks += 1;
        if (looks === 3) this.count.textContent = "searching…";
      } while (cursor != null && rows.length < LIMIT && looks < LOOKS_MAX);
    } catch (problem) {
      if (problem.name !== "AbortError" && problem.status && problem.status !== 401) fill(this.body, empty("warning", "The list cannot be shown", problem.message));
      return;
    }
    this.rows = rows;
    this.matched = matched;
    this.next = cursor;
    this.draw(looks >= LOOKS_MAX && rows.length < LIMIT);
  }

  draw(unfinished) {
    const {rows, matched, next} = this;
    const many = matched != null ? plural(matched, "transaction") : next != null ? `${number(rows.length)} or more` : plural(rows.length + (this.places.length - 1) * LIMIT, "transaction");
    this.count.textContent = rows.length || matched ? many : "";
    if (rows.length) fill(this.body, this.table());
    else if (unfinished) fill(this.body, empty("search", "Nothing found so far", "The search has gone through many transactions and is not at the end."));
    else fill(this.body, this.nothing());
    this.draw_pager(unfinished);
    this.draw_bulk();
  }

  nothing() {
    if ([...this.query.keys()].some((name) => name !== "order")) {
      return empty("search", "Nothing matches", "No transaction fits all of these filters.", h("p", null, h("a", {href: `#/${this.name}`}, "Show all")));
    }
    return empty(...this.kind.none);
  }

  draw_pager(unfinished) {
    const go = (change) => () => { change(); this.clear(); this.load(); scrollTo(0, 0); };
    fill(this.pager,
      this.places.length > 1 && h("button", {type: "button", onclick: go(() => this.places.pop())}, "Previous"),
      this.places.length > 1 && h("span", {class: "muted"}, `page ${number(this.places.length)}`),
      this.next != null && h("button", {type: "button", onclick: go(() => this.places.push(this.next))}, unfinished ? "Search on" : "Next"));
  }

  // --- the table -----------------------------------------------------------------------------------------------------------------
  table() {
    const acts = this.kind.actions.length > 0;
    const all = acts && h("input", {type: "checkbox", "aria-label": "Select all on this page", checked: this.rows.every((row) => this.selected.has(row.id)), onchange: () => this.select_page(all.checked)});
    const names = [acts && "", "Key", "Group", "Topic", ...this.columns().map(([name]) => name), "Id"].filter((name) => name !== false);
    return h("div", {class: "card scroll", tabindex: "0", role: "region", "aria-label": this.kind.title}, h("table", {class: "list"},
      h("thead", null, h("tr", null, names.map((name, n) => h("th", {scope: "col", class: name === "Attempts" || name === "Age" ? "n" : ""}, n === 0 && acts ? all : name)))),
      h("tbody", null, this.rows.map((row) => this.row(row)))));
  }

  columns() {
    const age = ["Age", (row) => h("span", {title: exact(row.stored_at_ms)}, duration(row.age_s))];
    const remark = ["Last answer", (row) => (row.answered_at_ms ? h("span", {class: "said", title: `UNKNOWN: ${row.remark}`}, row.remark || "UNKNOWN") : h("span", {class: "muted"}, "–"))];
    if (this.name === "pending") return [age, ["Attempts", (row) => this.attempts(row)], remark];
    if (this.name === "discarded") return [["Reason", (row) => h("span", {class: "chip discarded"}, REASONS[row.reason] ?? row.reason)], ["Discarded", (row) => h("time", {title: exact(row.settled_at_ms)}, moment(row.settled_at_ms))], ["Attempts", (row) => number(row.attempts)], remark];
    return [["State", (row) => state_chip(row)], ["Stored", (row) => h("time", {title: exact(row.stored_at_ms)}, moment(row.stored_at_ms))], ["Took", (row) => (row.settled_at_ms ? between(row.stored_at_ms, row.settled_at_ms) : "–")]];
  }

  attempts(row) {
    return h("span", {class: "attempts"}, row.outstanding && h("span", {class: "chip asked", title: "a request of this round waits for its answer"}, "asked"), h("span", {title: `${row.attempts} of ${this.context.session.check_max}`}, number(row.attempts), h("small", {class: "muted"}, `/${this.context.session.check_max}`)));
  }

  row(row) {
    const href = `#/transaction/${encodeURIComponent(row.id)}`;
    const cell = (name, ...content) => h("td", {dataset: {name}, class: name === "Attempts" || name === "Age" ? "n" : ""}, content);
    const acts = this.kind.actions.length > 0;
    const box = acts && h("input", {type: "checkbox", "aria-label": `Select ${row.key || row.id}`, checked: this.selected.has(row.id), onchange: () => this.select(row, box.checked)});
    const line = h("tr", {tabindex: "-1", dataset: {id: row.id}, onclick: (event) => { if (!event.target.closest("a, input, label")) location.hash = href; }},
      acts && h("td", {class: "pick"}, h("label", null, box)),
      cell("Key", h("a", {href, class: "key", title: row.key}, middle(row.key, 48) || h("span", {class: "muted"}, "no key"))),
      cell("Group", h("span", {title: row.group}, middle(row.group, 32))), cell("Topic", h("span", {title: row.topic}, middle(row.topic, 32))),
      this.columns().map(([name, made]) => cell(name, made(row))),
      cell("Id", h("a", {href, class: "mono muted", title: row.id, tabindex: "-1"}, short_id(row.id))));
    return line;
  }

  // --- selection and actions --------------------------------------------------------------------------------------------------------
  select(row, yes) {
    if (yes) this.selected.set(row.id, row);
    else this.selected.delete(row.id);
    this.draw_bulk();
  }

  select_page(yes) {
    for (const row of this.rows) yes ? this.selected.set(row.id, row) : this.selected.delete(row.id);
    for (const box of this.body.querySelectorAll("tbody input")) box.checked = yes;
    this.draw_bulk();
  }

  clear() {
    this.selected.clear();
    for (const box of this.body.querySelectorAll("input")) box.checked = false;
    this.draw_bulk();
  }

  draw_bulk() {
    const count = this.selected.size;
    this.bulk.hidden = !this.kind.actions.length || (!count && !this.rows.length);
    if (this.bulk.hidden) return;
    const buttons = (target) => this.kind.actions.map((action) => h("button", {type: "button", class: action === "check" || action === "resume" ? "" : "danger", onclick: () => this.act(action, target())}, NAMES[action]));
    if (count) {
      fill(this.bulk, h("strong", null, `${number(count)} selected`), buttons(() => ({ids: [...this.selected.keys()]})), h("button", {type: "button", class: "ghost", onclick: () => this.clear()}, "Clear"));
    } else {
      const all = h("details", {class: "all"}, h("summary", null, this.matched != null ? `All ${number(this.matched)} that match` : "All that match"), h("div", {class: "menu"}, buttons(() => ({filter: this.wanted()}))));
      fill(this.bulk, h("span", {class: "muted"}, "Select rows to act on them, or"), all);
    }
    announce(count ? `${count} selected` : "");
  }

  act(action, target) {
    ask({action, ...target, count: target.ids?.length ?? this.matched, done: () => { this.clear(); this.load(); }});
  }

  // --- keys ----------------------------------------------------------------------------------------------------------------------
  on_key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") return;
    const lines = [...this.body.querySelectorAll("tbody tr")];
    const at = lines.indexOf(document.activeElement?.closest("tr"));
    if (event.key === "j" || event.key === "k") lines[Math.min(lines.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))]?.focus();
    else if (event.key === "x" && at >= 0) lines[at].querySelector("input[type=checkbox]")?.click();
    else if (event.key === "Enter" && at >= 0 && document.activeElement === lines[at]) location.hash = `#/transaction/${encodeURIComponent(lines[at].dataset.id)}`;
    else return;
    event.preventDefault();
  }
}

const NAMES = {check: "Check now", commit: "Commit", rollback: "Roll back", resume: "Resume"};
const STATE_NAMES = {pending: "pending", discarded: "discarded", committed: "committed", rolled_back: "rolled back", quarantined: "quarantined"};

export const state_chip = (row) => h("span", {class: `chip ${row.state}`}, icon({committed: "check", discarded: "discarded", rolled_back: "history"}[row.state] ?? "pending"), STATE_NAMES[row.state] ?? row.state);
