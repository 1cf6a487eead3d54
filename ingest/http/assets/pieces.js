// What pages share: headings, tables, filters, empty and loading states.

import {h, icon} from "./dom.js";

export const heading = (title, text, ...more) => h("div", {class: "heading"}, h("div", null, h("h1", null, title), text && h("p", {class: "muted"}, text)), more);

export const empty = (name, title, text, ...more) => h("div", {class: "empty card"}, icon(name), h("h2", null, title), h("p", {class: "muted"}, text), more);

export const skeleton = () => h("div", {class: "card skeleton", role: "status", "aria-label": "Loading"}, Array.from({length: 6}, () => h("i")));

/** A name that begins with # is of a column of numbers. On a phone each row is a card: cells carry their column's name. */
export function table(names, rows, label = "") {
  const title = (name) => name.replace(/^#/, "");
  const kind = (name) => (name.startsWith("#") ? "n" : "");
  return h("div", {class: "card scroll", tabindex: "0", role: "region", "aria-label": label || `Table: ${names.map(title).join(", ")}`}, h("table", null,
    h("thead", null, h("tr", null, names.map((name) => h("th", {class: kind(name), scope: "col"}, title(name))))),
    h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell, n) => h("td", {class: kind(names[n]), dataset: {name: title(names[n])}}, cell)))))));
}

export const choice = (name, label, options, chosen) => h("select", {name, "aria-label": label}, options.map(([key, shown]) => h("option", {value: key, selected: key === chosen}, shown)));

/** Its fields become the address of the page: a filter can be sent to somebody. */
export function filter_form(page, query, fields) {
  const apply = () => {
    const given = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
    location.hash = `#/${page}${given.size ? `?${given}` : ""}`;
  };
  const form = h("form", {class: "filters", role: "search", "aria-label": "Filter", onsubmit: (event) => { event.preventDefault(); apply(); }, onchange: apply},
    fields, h("button", {type: "submit"}, "Search"), [...query.keys()].length > 0 && h("a", {class: "clear", href: `#/${page}`}, "Clear"));
  return form;
}
