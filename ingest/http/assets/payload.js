// The body of a message, shown without changing it: JSON by its own tokens, text, hex, base64, unpacked; and to be copied or saved.

import {fill, h, icon} from "./dom.js";
import {size} from "./format.js";

const HEX_BYTES = 4096;
//: Of an unpacked body: a small one may unpack to gigabytes.
const UNPACKED_BYTES = 1 << 20;

/** payload({bytes, total, href, view}): `bytes` may be the beginning of `total` bytes; `href` has all; `view.mode` is kept. */
export function payload({bytes, total, href, view}) {
  const root = h("div", {class: "payload"});
  draw(root, {bytes, total, href, view, unpacked: null});
  const packed = packing(bytes);
  if (packed) unpack(bytes, packed).then((unpacked) => unpacked && root.isConnected !== false && draw(root, {bytes, total, href, view, unpacked}));
  return root;
}

function draw(root, state) {
  const {bytes, total, href, view, unpacked} = state;
  const shown = modes(bytes, bytes.length < total, unpacked);
  const mode = shown.find(([name]) => name === view.mode) ?? shown[0];
  const [name, , content, note] = mode;
  const tabs = h("div", {class: "tabs", role: "group", "aria-label": "Show the body as"}, shown.map(([each, title]) => h("button", {type: "button", "aria-pressed": String(each === name), onclick: () => { view.mode = each; draw(root, state); }}, title)));
  const text = content();
  const copy = h("button", {type: "button", class: "ghost", title: "Copy what is shown", "aria-label": "Copy the body", onclick: async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    fill(copy, icon("check"));
    setTimeout(() => fill(copy, icon("copy")), 1200);
  }}, icon("copy"));
  fill(root,
    h("div", {class: "message-head"}, h("h2", null, "Message"), h("span", {class: "muted"}, size(total), bytes.length < total && `, the first ${size(bytes.length)} shown`, note && ` · ${note}`), tabs, copy, href && h("a", {class: "save", href, download: "message.bin"}, "Download")),
    bytes.length ? h("pre", {class: "body", tabindex: "0", "aria-label": "Body of the message"}, text) : h("p", {class: "muted pad"}, "The body is empty."));
}

/** [name, title, () => text, note] of each way to show it, the best first. */
function modes(bytes, is_cut, unpacked) {
  const found = views(bytes, is_cut);
  if (!unpacked) return found;
  const inner = views(unpacked.bytes, unpacked.is_cut)[0];
  return [["unpacked", `${unpacked.name} → ${inner[1]}`, inner[2], `${size(unpacked.bytes.length)} unpacked${unpacked.is_cut ? ", cut" : ""}`], ...found];
}

function views(bytes, is_cut) {
  const text = as_text(bytes, is_cut);
  const pretty = text != null && !is_cut ? indented(text) : null;
  return [
    pretty != null && ["json", "JSON", () => pretty],
    text != null && ["text", "Text", () => text],
    ["hex", "Hex", () => hex(bytes), bytes.length > HEX_BYTES ? `hex of the first ${size(HEX_BYTES)}` : ""],
    ["base64", "Base64", () => base64(bytes)],
  ].filter(Boolean);
}

/** null where it is no text. What was cut off may end within a character. */
function as_text(bytes, is_cut) {
  try {
    const text = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(bytes, {stream: is_cut});
    // eslint-disable-next-line no-control-regex
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001a\u001c-\u001f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** JSON with line breaks; every token stays as it was written: long numbers, 10.10, doubled keys, escapes. null: it is no JSON. */
export function indented(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/gs) ?? [];
  let depth = 0;
  let out = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  tokens.forEach((token, at) => {
    const before = tokens[at - 1];
    if (token === "{" || token === "[") {
      out += token;
      depth += 1;
      if (!/^[\]}]$/.test(tokens[at + 1])) out += line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      out += before === "{" || before === "[" ? token : line() + token;
    } else if (token === ",") out += token + line();
    else if (token === ":") out += ": ";
    else out += token;
  });
  return out;
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_BYTES); at += 16) {
    const piece = [...bytes.slice(at, at + 16)];
    const digits = piece.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = piece.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

function base64(bytes) {
  let letters = "";
  for (let at = 0; at < bytes.length; at += 8192) letters += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(letters);
}

function packing(bytes) {
  if (bytes[0] === 0x1f && bytes[1] === 0x8b) return ["gzip", "gzip"];
  if (bytes[0] === 0x78 && ((bytes[0] << 8) | bytes[1]) % 31 === 0) return ["deflate", "deflate"];
  return null;
}

/** What could be unpacked, at most UNPACKED_BYTES; null where nothing could. */
async function unpack(bytes, [format, name]) {
  const pieces = [];
  let length = 0;
  let is_cut = false;
  try {
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(format)).getReader();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      pieces.push(value);
      length += value.length;
      if (length > UNPACKED_BYTES) {
        is_cut = true;
        reader.cancel().catch(() => {});
        break;
      }
    }
  } catch {
    is_cut = true; // only the beginning was there, or it is damaged
  }
  if (!length) return null;
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return {bytes: all.subarray(0, UNPACKED_BYTES), is_cut, name};
}
