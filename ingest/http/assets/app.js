// The shell: who is logged in, which page is shown, whether everything is well; and the keys.

import * as api from "./api.js";
import {announce, fill, h, icon} from "./dom.js";
import {clock, is_utc, number, short, use_utc, zone} from "./format.js";
import {show_audit} from "./audit.js";
import {show_conflicts} from "./conflicts.js";
import {headline} from "./findings.js";
import {show_group, show_groups, show_topic, show_topics} from "./groups.js";
import {show_letters} from "./letters.js";
import {show_list} from "./list.js";
import {show_overview} from "./overview.js";
import {show_transaction} from "./transaction.js";

const PAGES = [
  {path: "overview", name: "Overview", key: "o", show: show_overview},
  {path: "pending", name: "Pending", key: "p", show: show_list},
  {path: "discarded", name: "Discarded", key: "d", show: show_list},
  {path: "conflicts", name: "Conflicts", key: "c", show: show_conflicts},
  {path: "dead-letters", icon: "letters", name: "Dead letters", key: "l", show: show_letters},
  {path: "history", name: "History", key: "h", show: show_list},
  {path: "groups", name: "Groups", key: "g", show: show_groups},
  {path: "topics", name: "Topics", key: "t", show: show_topics},
  {path: "audit", name: "Audit", key: "a", show: show_audit},
];
//: Pages of one thing, and the page that lists such things.
const SINGLE = {transaction: {name: "Transaction", show: show_transaction}, group: {name: "Group", show: show_group, under: "groups"}, topic: {name: "Topic", show: show_topic, under: "topics"}};
const OVERVIEW_MS = 2000;
//: What was heard longer ago is not shown as if it were so now.
const STALE_MS = 10_000;

const app = document.getElementById("app");
let shell = null;
let page = new AbortController();

// --- what all pages share -----------------------------------------------------------------------------------------------------
class Context {
  constructor(session) {
    Object.assign(this, {session, overview: null, signal: null, paused: ""});
    this.watchers = new Set();
    this.life = new AbortController();
  }

  /** Calls f with the overview, now and whenever a new one came, as long as the page is shown. */
  watch(f, signal) {
    this.watchers.add(f);
    signal.addEventListener("abort", () => this.watchers.delete(f));
    if (this.overview) f(this.overview);
  }

  start() {
    api.repeat(async () => {
      this.overview = await api.get("/v1/operator/overview", {}, this.life.signal);
      for (const f of [...this.watchers]) f(this.overview);
    }, OVERVIEW_MS, this.life.signal);
  }
}

// --- the frame ------------------------------------------------------------------------------------------------------------------
function make_shell(context) {
  const links = new Map(PAGES.map((each) => [each.path, h("a", {href: `#/${each.path}`, class: "nav-link"}, icon(each.icon ?? each.path), h("span", null, each.name), h("b", {class: "count"}))]));
  const health = h("a", {class: "health", href: "#/overview"}, h("i", {class: "dot-status"}), h("span", null, "…"));
  const as_of = h("span", {class: "as-of muted"}, "");
  const banner = h("div", {class: "banners"});
  const main = h("main", {id: "main", tabindex: "-1"});
  const search = h("input", {type: "search", class: "quick", placeholder: "Find an id or a key", "aria-label": "Find a transaction by id or key", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false"});
  const find = h("form", {class: "find", role: "search", onsubmit: (event) => { event.preventDefault(); look_for(search.value.trim()); }}, icon("search"), search);
  const element = h("div", {class: "shell"},
    h("header", {class: "top"},
      h("a", {class: "brand", href: "#/overview", "aria-label": "Escrow, overview"}, h("img", {src: "/console/icon.svg", alt: "", width: "24", height: "24"}), h("span", null, "Escrow")),
      find, health, as_of,
      h("div", {class: "tools"},
        h("button", {class: "ghost keys-button", type: "button", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)", onclick: show_keys}, icon("keyboard")),
        zone_button(),
        theme_button(),
        h("span", {class: "who", title: "who you are in the audit log"}, context.session.name),
        !context.session.open && h("button", {class: "ghost", type: "button", "aria-label": "Log out", title: "Log out", onclick: leave}, icon("out")),
      ),
    ),
    h("nav", {class: "side", "aria-label": "Pages"}, [...links.values()], h("p", {class: "version muted"}, `Escrow ${context.session.version}`)),
    h("div", {class: "content"}, banner, main),
  );
  return {element, links, health, as_of, banner, main, search, unreachable: false};
}

/** Times in the browser's zone, or in UTC. */
function zone_button() {
  const button = h("button", {class: "ghost zone", type: "button", onclick: () => {
    use_utc(!is_utc());
    label();
    route(context);
  }});
  const label = () => {
    fill(button, zone());
    button.setAttribute("aria-label", `Times are ${zone()}: ${is_utc() ? "show local time" : "show UTC"}`);
    button.title = button.getAttribute("aria-label");
  };
  label();
  return button;
}

function theme_button() {
  const button = h("button", {class: "ghost", type: "button", onclick: () => {
    const dark = is_dark();
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("escrow-theme", dark ? "light" : "dark"); } catch { /* kept for this page only */ }
    label();
  }});
  const label = () => {
    fill(button, icon(is_dark() ? "sun" : "moon"));
    button.setAttribute("aria-label", is_dark() ? "Light theme" : "Dark theme");
    button.title = button.getAttribute("aria-label");
  };
  label();
  return button;
}

function is_dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function look_for(text) {
  if (!text) return;
  location.hash = text.length === 58 && /^[\w-]+$/.test(text) ? `#/transaction/${text}` : `#/history?state=any&q=${encodeURIComponent(text)}`;
  shell.search.value = "";
}

function show_health(overview) {
  shell.health.className = `health ${overview.health}`;
  fill(shell.health.lastChild, headline(overview));
  shell.health.title = shell.health.textContent;
  const letters = overview.findings.filter((found) => found.kind === "dead_letters").reduce((sum, found) => sum + found.count, 0);
  for (const [path, count] of [["pending", overview.pending], ["discarded", overview.discarded], ["conflicts", overview.totals.conflicts], ["dead-letters", letters]]) {
    const badge = shell.links.get(path).querySelector(".count");
    badge.textContent = count ? short(count) : "";
    badge.title = count ? number(count) : "";
  }
  show_banners();
  show_as_of();
}

/** When the edge was heard last; every page has it, and it turns red when that is long ago. */
function show_as_of() {
  if (!shell) return;
  const stale = shell.unreachable || Date.now() - api.heard_ms > STALE_MS;
  const paused = context.paused ? ` · paused: ${context.paused}` : "";
  shell.as_of.className = `as-of ${stale ? "tone-bad" : "muted"}`;
  shell.as_of.textContent = (api.heard_ms ? `as of ${clock(api.heard_ms)}` : "not heard yet") + paused;
  shell.element.classList.toggle("stale", stale);
  if (!stale) return;
  shell.health.className = "health unknown";
  shell.health.lastChild.textContent = api.heard_ms ? `no answer since ${clock(api.heard_ms)}` : "no answer";
}

function show_banners() {
  const bad = (context.overview?.parts ?? []).filter((part) => !part.healthy);
  const texts = location.hash.startsWith("#/overview") || location.hash.length < 3 ? [] : bad.map((part) => [part.text, part.detail]);
  if (shell.unreachable) texts.unshift(["The edge does not answer", `It may be restarting, or hang. What you see is as of ${api.heard_ms ? clock(api.heard_ms) : "never"}; trying again.`]);
  fill(shell.banner, texts.map(([title, detail]) => h("div", {class: "banner", role: "alert"}, icon("warning"), h("div", null, h("strong", null, title), " ", h("span", null, detail)))));
}

// --- pages ----------------------------------------------------------------------------------------------------------------------
function route(context) {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, argument] = (path || "overview").split("/");
  const found = PAGES.find((each) => each.path === name) ?? (argument ? SINGLE[name] : null);
  page.abort();
  context.paused = "";
  page = new AbortController();
  for (const [each, link] of shell.links) {
    if (each === name || each === found?.under) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shell.links.get(name)?.scrollIntoView({block: "nearest", inline: "center"});
  const view = {context, signal: page.signal, name, query: new URLSearchParams(search), argument: argument && decodeURIComponent(argument)};
  fill(shell.main);
  scrollTo(0, 0);
  const title = found?.name ?? "Not found";
  document.title = `${title} · Escrow`;
  announce(title);
  show_banners();
  show_as_of();
  if (found) found.show(shell.main, view);
  else fill(shell.main, h("div", {class: "empty"}, h("h1", null, "There is no such page"), h("p", null, h("a", {href: "#/overview"}, "To the overview"))));
}

// --- logging in -----------------------------------------------------------------------------------------------------------------
function show_login(note) {
  const error = h("p", {class: "form-error", role: "alert"});
  const token = h("input", {type: "password", id: "token", name: "token", autocomplete: "current-password", required: true, spellcheck: "false", placeholder: "escrow_…", "aria-describedby": "token-help"});
  const button = h("button", {class: "primary", type: "submit"}, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      start(await api.log_in(token.value));
    } catch (problem) {
      error.textContent = problem instanceof api.Problem ? problem.message : "The edge does not answer. Is it running?";
      token.select();
    }
    button.disabled = false;
  };
  fill(app, h("main", {class: "login", id: "main", tabindex: "-1"},
    h("form", {class: "card", onsubmit: submit},
      h("img", {src: "/console/icon.svg", alt: "", width: "44", height: "44"}),
      h("h1", null, "Escrow"),
      note ? h("p", {class: "note", role: "status"}, note) : null,
      h("input", {type: "text", name: "username", autocomplete: "username", value: "operator", hidden: true}),
      h("label", {for: "token"}, "Operator’s token"),
      token,
      h("p", {id: "token-help", class: "muted"}, "Made by ", h("code", null, "escrow token new NAME --operator"), ". It stays in this browser’s session only."),
      error, button)));
  document.title = "Log in · Escrow";
  token.focus();
}

async function leave() {
  await api.log_out().catch(() => {});
  stop();
  show_login("You are logged out.");
}

let context = null;

function start(session) {
  stop();
  context = new Context(session);
  shell = make_shell(context);
  fill(app, shell.element);
  context.watch(show_health, context.life.signal);
  window.addEventListener("hashchange", () => route(context), {signal: context.life.signal});
  document.addEventListener("keydown", on_key, {signal: context.life.signal});
  context.start();
  const ticking = setInterval(show_as_of, 1000);
  context.life.signal.addEventListener("abort", () => clearInterval(ticking));
  route(context);
}

function stop() {
  page.abort();
  context?.life.abort();
  context = shell = null;
}

api.listen({
  over() {
    if (!context) return;
    stop();
    document.querySelectorAll("dialog").forEach((dialog) => dialog.remove());
    show_login("Your session is over. Log in again to go on.");
  },
  reachable(yes) {
    if (!shell || shell.unreachable === !yes) return;
    shell.unreachable = !yes;
    show_banners();
    show_as_of();
  },
});

// --- keys -----------------------------------------------------------------------------------------------------------------------
let going = 0;

function on_key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox") {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const goes = Date.now() - going < 1200;
  going = 0;
  if (goes) {
    const found = PAGES.find((each) => each.key === event.key);
    if (found) location.hash = `#/${found.path}`;
  } else if (event.key === "g") going = Date.now();
  else if (event.key === "/") shell.search.focus();
  else if (event.key === "?") show_keys();
  else return;
  event.preventDefault();
}

function show_keys() {
  const keys = [["/", "find an id or a key"], ...PAGES.map((each) => [`g ${each.key}`, `to ${each.name.toLowerCase()}`]), ["j k", "next, previous row of a list"], ["x", "select the row"], ["Enter", "open the row"], ["Esc", "leave a field, close a dialog"], ["?", "this list"]];
  const dialog = h("dialog", {class: "dialog keys", "aria-labelledby": "keys-title", onclose: () => dialog.remove()},
    h("h2", {id: "keys-title"}, "Keyboard"),
    h("dl", null, keys.map(([key, text]) => h("div", null, h("dt", null, key.split(" ").map((each) => h("kbd", null, each))), h("dd", null, text)))),
    h("form", {method: "dialog", class: "buttons"}, h("button", {class: "primary", autofocus: true}, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});

// --- the beginning --------------------------------------------------------------------------------------------------------------
async function begin() {
  try {
    const session = await api.session();
    if (session.name) start(session);
    else show_login("");
  } catch {
    fill(app, h("main", {class: "login"}, h("div", {class: "card"}, h("h1", null, "The edge does not answer"), h("p", null, "It may be restarting. This page tries again every few seconds."))));
    setTimeout(begin, 3000);
  }
}

begin();
