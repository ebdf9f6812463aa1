// Line charts, bars and stacked bars as plain SVG, redrawn at the width they have.

const HEIGHT = 200;
const EDGE = { top: 10, right: 12, bottom: 26, left: 46 };
const BOTTOM = HEIGHT - EDGE.bottom;

function legend(keys) {
  const key = ({ label, color, dash }) =>
    span("key", el("i", { class: dash ? "dashed" : null, style: { "border-color": color } }), label);
  return div("keys", ...keys.map(key));
}

function framed(title, note, keys, ...content) {
  const caption = el("figcaption", {}, h3(null, title), p(null, note));
  return el("figure", { class: "chart" }, caption, legend(keys), content);
}

function figure(title, note, keys, draw) {
  // draw(width) makes the drawing; it is called again whenever the width changes
  const plot = div("plot");
  let drawn = 0;
  new ResizeObserver(() => {
    const width = Math.floor(plot.clientWidth);
    if (width > 60 && width !== drawn) {
      drawn = width;
      plot.replaceChildren(draw(width));
    }
  }).observe(plot);
  return framed(title, note, keys, plot);
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step + 0); // not -0
  return out;
}

function decades(low, high) {
  const powers = Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, i) => low * 10 ** i);
  return powers.filter((_, i) => i % Math.ceil(powers.length / 5) === 0);
}

function stepTicks(steps, width) {
  const count = Math.max(2, Math.floor(width / 90));
  return ticks(steps[0], steps.at(-1), count).filter(Number.isInteger);
}

function axes(title, width, x, y) {
  // x, y: { domain: [low, high], ticks, format, log }; returns the drawing and the two scales
  const scale = ({ domain, log }, from, to) => {
    const place = log ? Math.log10 : Number;
    const [low, high] = domain.map(place);
    return (v) => from + ((place(v) - low) / (high - low || 1)) * (to - from);
  };
  const sx = scale(x, EDGE.left, width - EDGE.right);
  const sy = scale(y, BOTTOM, EDGE.top);
  const size = { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` };
  const root = svg("svg", { ...size, role: "img", "aria-label": title });
  const line = (v) => ({
    class: v === 0 ? "zero" : "grid",
    x1: EDGE.left,
    x2: width - EDGE.right,
    y1: sy(v),
    y2: sy(v),
  });
  const label = (text, place) => svg("text", { class: "tick", ...place }, text);
  for (const v of y.ticks) {
    root.append(svg("line", line(v)), label(y.format(v), { x: EDGE.left - 7, y: sy(v) + 3.5, "text-anchor": "end" }));
  }
  for (const v of x.ticks) root.append(label(x.format(v), { x: sx(v), y: BOTTOM + 17, "text-anchor": "middle" }));
  return { root, sx, sy };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function lineChart({ title, note, series, y }) {
  // series: [{ label, color, dash, marks, points: [[x, y]], band: [[x, low, high]], key: its entry in the legend }]
  const usable = ([, v]) => Number.isFinite(v) && (!y.log || v > 0);
  const shown = series.map((s) => ({ ...s, points: s.points.filter(usable) })).filter((s) => s.points.length > 0);
  if (!shown.length) return framed(title, note, [], p("none", "nothing was recorded"));
  const steps = [...new Set(shown.flatMap((s) => s.points.map(([step]) => step)))].sort((a, c) => a - c);
  const vertical = verticalAxis(shown, y);
  const draw = (width) => {
    const horizontal = { domain: [steps[0], steps.at(-1)], ticks: stepTicks(steps, width), format: grouped };
    const { root, sx, sy } = axes(title, width, horizontal, vertical);
    for (const { band, color } of shown) {
      const upper = band.map(([x, , high]) => [sx(x), sy(high)]);
      const lower = band.map(([x, low]) => [sx(x), sy(low)]).reverse();
      if (band.length)
        root.append(svg("path", { class: "band", d: `${path([...upper, ...lower])}Z`, style: { fill: color } }));
    }
    for (const { points, color, dash, marks } of shown) {
      const places = points.map(([step, v]) => [sx(step), sy(v)]);
      const style = { stroke: color, "stroke-dasharray": dash ? "5 4" : "none" };
      root.append(svg("path", { class: "curve", d: path(places), style }));
      const dots = marks || places.length === 1 ? places : [];
      for (const [cx, cy] of dots) root.append(svg("circle", { cx, cy, r: 3, style: { fill: color } }));
    }
    root.append(...crosshair(root, width, steps, sx, shown, vertical.format));
    return root;
  };
  const keys = [...new Map(shown.map((s) => [s.key.label, s.key])).values()];
  return figure(title, note, keys.length > 1 ? keys : [], draw);
}

function verticalAxis(shown, { min, max, log, format = short }) {
  const values = shown.flatMap((s) => [...s.points.map(([, v]) => v), ...s.band.flatMap(([, ...edges]) => edges)]);
  let low = min ?? Math.min(...values);
  let high = max ?? Math.max(...values);
  if (log) [low, high] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return { domain: [low, high], ticks: log ? decades(low, high) : ticks(low, high, 4), log, format };
}

function crosshair(root, width, steps, sx, shown, format) {
  // the step nearest to the pointer, and what every line says there
  const guide = svg("line", { class: "guide", y1: EDGE.top, y2: BOTTOM, visibility: "hidden" });
  const said = (s, step) => {
    const value = s.points.find(([at]) => at === step);
    if (!value) return null;
    const edges = s.band.find(([at]) => at === step);
    const interval = edges ? ` [${format(edges[1])}, ${format(edges[2])}]` : "";
    return tipRow(s.label, format(value[1]) + interval, s.color);
  };
  const point = (event) => {
    const at = event.clientX - root.getBoundingClientRect().left;
    const step = steps.reduce((best, s) => (Math.abs(sx(s) - at) < Math.abs(sx(best) - at) ? s : best));
    for (const [name, value] of [
      ["x1", sx(step)],
      ["x2", sx(step)],
      ["visibility", "visible"],
    ])
      guide.setAttribute(name, value);
    showTip(event, div("tip-title", `step ${step}`), ...shown.map((s) => said(s, step)).filter(Boolean));
  };
  const leave = () => {
    guide.setAttribute("visibility", "hidden");
    hideTip();
  };
  const listeners = { onpointermove: point, onpointerdown: point, onpointerleave: leave };
  const area = { x: EDGE.left, y: 0, width: width - EDGE.left - EDGE.right, height: HEIGHT };
  return [guide, svg("rect", { class: "catch", ...area, ...listeners })];
}

function histogram({ title, note, width: bin, series }) {
  // series: [{ label, color, values }]; the bars are shares of each series, centred on multiples of `bin`
  const shown = series.filter((s) => s.values.length > 0).map((s) => ({ ...s, counts: new Map() }));
  if (!shown.length) return framed(title, note, [], p("none", "no segment was verified"));
  for (const { values, counts } of shown) {
    for (const v of values) counts.set(Math.round(v / bin), (counts.get(Math.round(v / bin)) || 0) + 1);
  }
  const places = shown.flatMap((s) => [...s.counts.keys()]);
  const [first, last] = [Math.min(-1, ...places), Math.max(1, ...places)];
  const highest = Math.max(...shown.flatMap((s) => [...s.counts.values()].map((n) => n / s.values.length)));
  const alone = shown.length === 1;
  const fill = (s, k) => (alone && k <= 0 ? "var(--loss)" : s.color);
  const draw = (width) => {
    const domain = [(first - 0.6) * bin, (last + 0.6) * bin];
    const x = { domain, ticks: ticks(first * bin, last * bin, 4), format: (v) => signed(v, 2) };
    const y = { domain: [0, highest], ticks: ticks(0, highest, 4), format: (v) => percent(v, 0) };
    const { root, sx, sy } = axes(title, width, x, y);
    const bar = Math.max(1, ((sx(bin) - sx(0)) * 0.86) / shown.length);
    shown.forEach((s, i) => {
      for (const [k, n] of s.counts) {
        const top = sy(n / s.values.length);
        const place = {
          x: sx(k * bin) + bar * (i - shown.length / 2),
          y: top,
          width: bar,
          height: BOTTOM - top,
          rx: 1,
        };
        const row = tipRow(s.label, `${n} of ${s.values.length}`, fill(s, k));
        const onpointermove = (event) => showTip(event, div("tip-title", `delta ${signed(k * bin)}`), row);
        const style = { fill: fill(s, k), opacity: k > 0 ? 1 : 0.75 };
        root.append(svg("rect", { class: "bar", ...place, style, onpointermove, onpointerleave: hideTip }));
      }
    });
    root.append(svg("line", { class: "zero", x1: sx(0), x2: sx(0), y1: EDGE.top, y2: BOTTOM }));
    return root;
  };
  const accepted = { label: "accepted (delta above 0)", color: shown[0].color };
  return figure(title, note, alone ? [accepted, { label: "not accepted", color: "var(--loss)" }] : shown, draw);
}

function stacked({ title, note, steps, layers }) {
  // layers: [{ label, color, values }], one value per step
  if (!steps.length) return framed(title, note, [], p("none", "nothing was recorded"));
  const totals = steps.map((_, i) => layers.reduce((sum, layer) => sum + layer.values[i], 0));
  const highest = Math.max(...totals, 1e-9);
  const draw = (width) => {
    const x = { domain: [steps[0] - 0.5, steps.at(-1) + 0.5], ticks: stepTicks(steps, width), format: grouped };
    const y = { domain: [0, highest], ticks: ticks(0, highest, 4), format: (v) => `${short(v)} s` };
    const { root, sx, sy } = axes(title, width, x, y);
    const bar = Math.max(0.6, (sx(1) - sx(0)) * (steps.length > 60 ? 1 : 0.86));
    steps.forEach((step, i) => {
      const rows = layers.map((l) => tipRow(l.label, `${fixed(l.values[i], 2)} s`, l.color));
      const heading = div("tip-title", `step ${step}: ${fixed(totals[i], 2)} s`);
      const onpointermove = (event) => showTip(event, heading, ...rows);
      const pile = svg("g", { onpointermove, onpointerleave: hideTip });
      let below = 0;
      for (const { values, color } of layers) {
        const [foot, top] = [sy(below), sy(below + values[i])];
        const place = { x: sx(step) - bar / 2, y: top, width: bar, height: Math.max(0, foot - top) };
        pile.append(svg("rect", { class: "layer", ...place, style: { fill: color } }));
        below += values[i];
      }
      root.append(pile);
    });
    return root;
  };
  return figure(title, note, layers, draw);
}
