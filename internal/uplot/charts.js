"use strict";
// Functions of all pages. Colors are the variables of the style sheet.
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name);
function bytes(v) {
  for (const [name, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(v) >= size) return (v / size).toFixed(1) + " " + name;
  return Math.round(v) + " B";
}
function duration(ns) {
  for (const [name, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
    if (ns >= size) return +(ns / size).toPrecision(3) + " " + name;
  return ns + " ns";
}
const powers = Array.from({length: 50}, (_, i) => 2 ** i);
const fromZero = (u, low, high) => low === null ? [0, 1] : [low > high / 2 ? Math.max(0, low - (high - low) / 4) : 0, high + (high - low || high) * 0.05];
const axis = values => ({stroke: () => color("soft"), grid: {stroke: () => color("grid"), width: 1}, ticks: {show: false}, values: (u, list) => list.map(values), font: "12px system-ui"});
// The ticks of a logarithmic axis: 1, 2 and 5 times the powers of ten.
const decades = (u, i, low, high) => Array.from({length: 60}, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)).filter(v => v >= low && v <= high);
const byteAxis = () => ({...axis(bytes), size: 76, incrs: powers});

function plot(holder, height, options, data) {
  const u = new uPlot({width: Math.max(holder.clientWidth, 60), height, legend: {show: false}, ...options}, data, holder);
  new ResizeObserver(() => holder.clientWidth && u.setSize({width: holder.clientWidth, height})).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => u.redraw());
  return u;
}
function tip(u, text) {
  const box = u.tip || (u.tip = u.over.appendChild(document.createElement("output")));
  box.className = "tip";
  box.hidden = !text;
  box.textContent = text;
  box.style.left = Math.max(0, Math.min(u.cursor.left + 12, u.over.clientWidth - box.offsetWidth)) + "px";
  box.style.top = Math.max(0, u.cursor.top - box.offsetHeight - 12) + "px";
}

// scatter draws dots over times in ns and sizes in bytes, the last dot on top. A dot has a place x, y,
// the name of its tone, and a text to point at. It may have a radius r, the corners of its interval low,
// high, bottom and top, a label on it and a note beside it. It may be a square or, if hollow, a ring. The
// dots of a path are joined by steps. A line is a limit of x or y, with a text, which may be below it.
// The axis of time is logarithmic if wide is true, or if it is not given and the times differ much.
function scatter(holder, height, dots, {path = [], lines = [], wide, click} = {}) {
  const highest = Math.max(...dots.map(d => d.y));
  lines = lines.filter(l => !(l.y > 3 * highest)); // one far above all dots would press them together
  const all = (end, place) => dots.flatMap(d => [d[end] ?? d[place], d[place]]).concat(lines.filter(l => place in l).map(l => l[place]));
  const limits = (place, low, high) => [Math.min(...all(low, place)), Math.max(...all(high, place))];
  const [left, right] = limits("x", "low", "high"), [bottom, top] = limits("y", "bottom", "top");
  wide ??= right > 5 * left;
  const at = u => {
    let best = null;
    for (const d of dots) {
      const far = Math.hypot(u.valToPos(d.x, "x") - u.cursor.left, u.valToPos(d.y, "y") - u.cursor.top);
      if (far < 20 && (!best || far <= best.far)) best = {d, far};
    }
    return best && best.d;
  };
  const draw = u => {
    const px = devicePixelRatio, ctx = u.ctx, box = u.bbox;
    const X = v => u.valToPos(v, "x", true), Y = v => u.valToPos(v, "y", true);
    const line = (tone, width, dash, ...points) => {
      ctx.strokeStyle = color(tone);
      ctx.lineWidth = width * px;
      ctx.setLineDash(dash.map(n => n * px));
      ctx.beginPath();
      points.forEach(([x, y], i) => i ? ctx.lineTo(x, y) : ctx.moveTo(x, y));
      ctx.stroke();
      ctx.setLineDash([]);
    };
    const write = (text, tone, font, align, x, y) => {
      ctx.fillStyle = color(tone);
      ctx.font = font.replace(/[\d.]+px/, size => parseFloat(size) * px + "px");
      ctx.textAlign = align;
      ctx.fillText(text, x, y);
    };
    for (const l of lines) {
      const across = "y" in l, end = box.left + box.width;
      line(l.tone, 1.5, l.dash || [], ...across ? [[box.left, Y(l.y)], [end, Y(l.y)]] : [[X(l.x), box.top], [X(l.x), box.top + box.height]]);
      if (across) write(l.text, l.tone, "12px system-ui", "right", end - 4 * px, Y(l.y) + (l.below ? 15 : -5) * px);
      else write(l.text, l.tone, "12px system-ui", "left", X(l.x) + 5 * px, box.top + 12 * px);
    }
    line("soft", 1, [], ...path.flatMap((d, i) => i ? [[X(d.x), Y(path[i - 1].y)], [X(d.x), Y(d.y)]] : [[X(d.x), Y(d.y)]]));
    for (const d of dots) {
      const x = X(d.x), y = Y(d.y), r = (d.r || 5.5) * px;
      if (d.low < d.high) line(d.tone, 1.2, [], [X(d.low), y], [X(d.high), y]);
      if (d.bottom < d.top) line(d.tone, 1.2, [], [x, Y(d.bottom)], [x, Y(d.top)]);
      ctx.fillStyle = ctx.strokeStyle = color(d.tone);
      ctx.beginPath();
      if (d.square) ctx.rect(x - r, y - r, 2 * r, 2 * r);
      else ctx.arc(x, y, r, 0, 7);
      if (d.hollow) { ctx.lineWidth = 2 * px; ctx.stroke(); continue; }
      ctx.fill();
      if (d.label) write(d.label, "bg", "700 11px system-ui", "center", x, y + 4 * px);
    }
    for (const d of dots) {
      if (d.note) write(d.note, d.tone, "600 12.5px system-ui", "left", X(d.x) + 12 * px, Y(d.y) - 9 * px);
    }
    ctx.textAlign = "left";
  };
  const u = plot(holder, height, {
    cursor: {x: false, y: false, points: {show: false}, drag: {x: false}},
    scales: {x: {time: false, distr: wide ? 3 : 1, range: u => wide ? [left / 1.5, right * 1.5] : fromZero(u, left, right)}, y: {range: u => fromZero(u, bottom, top)}},
    axes: [{...axis(duration), size: 36, ...wide && {splits: decades, filter: (u, list) => list}}, byteAxis()],
    series: [{}, {stroke: "transparent", points: {show: false}}],
    hooks: {setCursor: [u => { const d = u.cursor.left >= 0 && at(u); tip(u, d ? d.text : ""); }], draw: [draw]},
  }, [[left, right], [bottom, top]]);
  if (click) u.over.addEventListener("click", () => { const d = at(u); if (d) click(d); });
}
