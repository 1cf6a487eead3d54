// Charts as SVG, drawn anew whenever their numbers or their size change.

import {h, s, fill} from "./dom.js";
import {clock, short} from "./format.js";

const MARGIN = {left: 44, right: 10, top: 8, bottom: 20};

/** chart({title, unit, lines: [{name, tone}], area}): an element with draw(at_ms, [values of each line]). */
export function chart({title, unit, lines, area = false, height = 168}) {
  const canvas = h("div", {class: "chart-canvas"});
  const legend = h("ul", {class: "legend"}, lines.map((line) => h("li", null, h("i", {class: `swatch ${line.tone}`}), line.name, h("b", null, "–"))));
  const element = h("figure", {class: "card chart"}, h("figcaption", null, h("h2", null, title), h("span", {class: "muted"}, unit)), canvas, legend);
  const state = {at: [], columns: lines.map(() => []), hover: null};
  const redraw = () => fill(canvas, picture(canvas.clientWidth, height, state, lines, area, title, unit));
  new ResizeObserver(redraw).observe(canvas);
  canvas.addEventListener("pointermove", (event) => {
    const width = canvas.clientWidth - MARGIN.left - MARGIN.right;
    const share = (event.clientX - canvas.getBoundingClientRect().left - MARGIN.left) / width;
    state.hover = state.at.length ? Math.round(Math.min(1, Math.max(0, share)) * (state.at.length - 1)) : null;
    redraw();
  });
  canvas.addEventListener("pointerleave", () => {
    state.hover = null;
    redraw();
  });
  element.draw = (at, columns) => {
    Object.assign(state, {at, columns});
    [...legend.querySelectorAll("b")].forEach((b, n) => (b.textContent = columns[n].length ? short(columns[n].at(-1)) : "–"));
    redraw();
  };
  return element;
}

function picture(width, height, {at, columns, hover}, lines, area, title, unit) {
  const inner = {width: Math.max(10, width - MARGIN.left - MARGIN.right), height: height - MARGIN.top - MARGIN.bottom};
  const [top, step] = scale(Math.max(1e-9, ...columns.flat()));
  const x = (n) => MARGIN.left + (at.length < 2 ? inner.width : (n / (at.length - 1)) * inner.width);
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  const last = columns.map((column, n) => `${lines[n].name} ${short(column.at(-1) ?? 0)}`).join(", ");
  const root = s("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title}, ${unit}: ${last}`});
  for (let value = 0; value <= top * 1.0001; value += step) {
    root.append(
      s("line", {x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value), class: value ? "grid" : "axis"}),
      s("text", {x: MARGIN.left - 6, y: y(value) + 4, class: "tick", "text-anchor": "end"}, short(value)),
    );
  }
  if (at.length > 1) {
    const places = Math.max(1, Math.min(at.length - 1, Math.floor(inner.width / 110)));
    for (let place = 0; place <= places; place += 1) {
      const share = place / places;
      const n = Math.round(share * (at.length - 1));
      const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
      root.append(s("text", {x: x(n), y: height - 4, class: "tick", "text-anchor": anchor}, clock(at[n])));
    }
  }
  columns.forEach((column, n) => {
    if (!column.length) return;
    const path = column.map((value, m) => `${m ? "L" : "M"}${x(m).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    if (area) root.append(s("path", {d: `${path}L${x(column.length - 1)} ${y(0)}L${x(0)} ${y(0)}Z`, class: `fill ${lines[n].tone}`}));
    root.append(s("path", {d: path, class: `stroke ${lines[n].tone}`}));
  });
  if (hover != null && at[hover] != null) root.append(...hint(hover, at, columns, lines, x, y, width, height));
  return root;
}

function hint(n, at, columns, lines, x, y, width, height) {
  const texts = [clock(at[n]), ...columns.map((column, m) => `${lines[m].name} ${short(column[n] ?? 0)}`)];
  const wide = Math.max(...texts.map((text) => text.length)) * 6.600 + 16;
  const left = x(n) + wide + 12 > width ? x(n) - wide - 8 : x(n) + 8;
  return [
    s("line", {x1: x(n), x2: x(n), y1: MARGIN.top, y2: height - MARGIN.bottom, class: "cross"}),
    ...columns.map((column, m) => s("circle", {cx: x(n), cy: y(column[n] ?? 0), r: 3, class: `dot ${lines[m].tone}`})),
    s("rect", {x: left, y: MARGIN.top, width: wide, height: 10 + 16 * texts.length, rx: 5, class: "hint"}),
    ...texts.map((text, m) => s("text", {x: left + 8, y: MARGIN.top + 17 + 16 * m, class: m ? "hint-text" : "hint-text strong"}, text)),
  ];
}

/** (top, step): round numbers, at most five lines. */
function scale(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const whole = most >= 4 ? Math.max(1, step) : step;
  return [whole * Math.max(1, Math.ceil(most / whole)), whole];
}
