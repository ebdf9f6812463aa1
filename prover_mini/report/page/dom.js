// Elements, numbers and the one tooltip. Text only ever becomes text: nothing here parses HTML.

function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

// the elements that only have a class: span("quiet", "3 tokens"), p(null, "text")
const [span, div, p, b, code, small, h2, h3, td] = ["span", "div", "p", "b", "code", "small", "h2", "h3", "td"].map(
  (tag) =>
    (kind, ...children) =>
      el(tag, { class: kind }, ...children),
);

function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const MINUS = "\u2212";
const grouped = (x) => Math.round(x).toLocaleString("en-US");
const fixed = (x, digits = 3) => (x === null || x === undefined ? "–" : x.toFixed(digits).replace("-", MINUS));
const signed = (x, digits = 3) => (x > 0 ? "+" : "") + fixed(x, digits);
const percent = (x, digits = 1) =>
  x === null || x === undefined ? "–" : `${(100 * x).toFixed(digits).replace("-", MINUS)} %`;
const plural = (n, word) => `${grouped(n)} ${word}${n === 1 ? "" : "s"}`;

function scientific(x) {
  if (x === null || x === undefined) return "–";
  if (x === 0) return "0";
  return x.toExponential(1).replace("e+", "e").replace(/^-/, MINUS);
}

function short(x) {
  // a value of unknown size: at most three digits after the point, none that say nothing
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return scientific(x);
  return size >= 1000
    ? grouped(x)
    : String(Number(x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 3))).replace("-", MINUS);
}

const tip = document.getElementById("tip");

function showTip(event, ...rows) {
  tip.replaceChildren(...rows);
  tip.hidden = false;
  const { offsetWidth: w, offsetHeight: h } = tip;
  const x = Math.max(8, Math.min(event.clientX + 14, document.documentElement.clientWidth - w - 8));
  const y = event.clientY + 18 + h > window.innerHeight ? event.clientY - h - 12 : event.clientY + 18;
  tip.style.setProperty("transform", `translate(${x}px, ${Math.max(8, y)}px)`);
}

function hideTip() {
  tip.hidden = true;
}

function tipRow(label, value, color) {
  return div("tip-row", color ? el("i", { style: { background: color } }) : null, span(null, label), b(null, value));
}

addEventListener("scroll", hideTip, { passive: true });
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
