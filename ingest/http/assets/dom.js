// Elements are made here and nowhere else. Text becomes text nodes: nothing that a message holds is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

const TEXTS = new Set(["title", "aria-label", "alt", "placeholder"]);
// Control characters, and those that turn the direction of what follows: shown by their code, as the command line does.
// eslint-disable-next-line no-control-regex
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** What somebody put into a message cannot disturb the page: what would not be seen is shown as its code. */
export const visible = (text) => text.replace(UNSEEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** h("p", {class: "x", onclick: f}, "text", child, [more]): null and false are left out. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

export function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) if (value != null && value !== false) element.setAttribute(name, value);
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value == null || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "class") element.className = value;
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "value") element.value = value;
  else if (name === "checked") element.checked = value;
  else element.setAttribute(name, value === true ? "" : TEXTS.has(name) ? visible(String(value)) : value);
}

function append(element, children) {
  for (const child of children.flat(9)) {
    if (child == null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const ICONS = {
  overview: "M3 13h6V3H3zM11 17h6v-7h-6zM3 17h6v-2H3zM11 8h6V3h-6z",
  pending: "M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm.8 8.400 3.400 2-.8 1.300-4.200-2.500V5.500h1.600z",
  discarded: "M4 6h12l-1 11.500H5zM7.500 2.500h5L13.300 4H17v1.400H3V4h3.700z",
  history: "M10 3a7 7 0 1 1-6.700 9h1.700A5.400 5.400 0 1 0 5.600 7H8v1.600H3V3.600h1.500v2A7 7 0 0 1 10 3zm.8 3v3.700l2.700 1.600-.8 1.300-3.400-2V6z",
  groups: "M7 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm6.500 0a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM1.500 16c0-3 2.500-5 5.500-5s5.500 2 5.500 5zm12.500 0h4.500c0-2.600-2-4.500-4.500-4.500-.6 0-1.200.1-1.700.3 1 1 1.700 2.500 1.700 4.200z",
  topics: "M3 4h14v3H3zm0 4.500h14v3H3zM3 13h14v3H3z",
  audit: "M5 2h7l4 4v12H5zm6.500 1.500V6.500h3zM7.500 9h6v1.300h-6zm0 2.700h6V13h-6zm0 2.700h4v1.300h-4z",
  check: "m8 13.400-3.700-3.700L3 11l5 5L17.500 6.500l-1.300-1.300z",
  warning: "M10 2.500 1.500 17.500h17zM9.200 8h1.600v4.500H9.200zm0 6h1.600v1.600H9.200z",
  search: "M8.500 3a5.500 5.500 0 1 0 3.400 9.800l4 4 1.100-1.100-4-4A5.500 5.500 0 0 0 8.500 3zm0 1.600a3.900 3.900 0 1 1 0 7.800 3.900 3.900 0 0 1 0-7.800z",
  moon: "M8 3a7 7 0 1 0 9 9 6 6 0 0 1-9-9z",
  sun: "M10 6a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM9.200 1.500h1.600v2.700H9.200zm0 14.300h1.600v2.700H9.200zM1.500 9.200h2.700v1.600H1.500zm14.300 0h2.700v1.600h-2.700zM3.500 4.600l1.100-1.100 1.900 1.900-1.100 1.100zm10 10 1.100-1.100 1.900 1.900-1.100 1.100zM3.500 15.400l1.900-1.900 1.100 1.100-1.900 1.900zm10-10 1.900-1.900 1.100 1.100-1.900 1.900z",
  copy: "M7 3h9v11h-2v-1.500h.5v-8h-6V5H7zM4 6h9v11H4zm1.500 1.500v8h6v-8z",
  close: "m5.200 4.100 4.800 4.800 4.800-4.800 1.100 1.100-4.800 4.800 4.800 4.800-1.100 1.100-4.800-4.800-4.800 4.800-1.100-1.100L8.900 10 4.100 5.200z",
  keyboard: "M2 5h16v10H2zm2 2v1.500h1.500V7zm3 0v1.500h1.500V7zm3 0v1.500h1.500V7zm3 0v1.500h3V7zM4 11.500V13h2v-1.500zm3 0V13h6v-1.500zm7 0V13h2v-1.500z",
  conflicts: "M10 2 2 17h16zm0 3.300 5.300 10.100H4.700zM6 8l1-1 3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3z",
  letters: "M2 4h16v12H2zm1.600 2.200v8.200h12.800V6.200L10 11zM4.300 5.600 10 9.200l5.700-3.600z",
  clock: "M10 2a8 8 0 1 0 0 16 8 8 0 0 0 0-16zm0 1.600a6.400 6.400 0 1 1 0 12.800 6.400 6.400 0 0 1 0-12.800zm-.8 2v5l3.600 2.200.8-1.300-2.800-1.700V5.600z",
  out: "M3 3h7v1.600H4.600v10.800H10V17H3zm10 3.500 3.500 3.500-3.500 3.500-1.100-1.100 1.600-1.600H7.500V9.200h6l-1.600-1.600z",
};

export function icon(name) {
  return s("svg", {viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true"}, s("path", {d: ICONS[name]}));
}

/** For those who do not see the page change. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}
