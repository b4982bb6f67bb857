"use strict";
(async () => {
const root = document.documentElement;
const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
const color = name => getComputedStyle(root).getPropertyValue("--" + name);

// The details are HTML, in gzip, in base64.
const packed = Uint8Array.from(atob(JSON.parse(document.getElementById("packed").textContent)), c => c.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
document.getElementById("details").innerHTML = await new Response(unpacked).text();

// The page shows one runtime at a time. A link to a part of another runtime shows that runtime.
const radios = all(".switch input");
function choose(index) {
  root.dataset.rt = index;
  for (const r of radios) r.checked = r.value === index;
}
if (all(".rt").length) choose("0");
for (const r of radios) r.addEventListener("change", () => choose(r.value));
function follow() {
  const target = document.getElementById(location.hash.slice(1));
  const part = target && target.closest(".rt");
  if (part) choose(part.dataset.rt);
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", follow);

// Formats sizes like the rest of the report.
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

const lines = {base: [2.6], works: [1.6], partly: [1.5, [7, 3]], harm: [1.6, [2, 2.5]], unclear: [1.6, [1, 4]], none: [1.2]};
const tone = kind => color({base: "ink", works: "works", partly: "partly", harm: "harm", unclear: "unclear"}[kind] || "none");

// Returns the curves of a row: that of its middle run, then others.
function curves(row) {
  return row && row.dataset.curve ? row.dataset.curve.split("|").map((text, i) => {
    const n = text.split(" ").map(Number);
    return {row, repeat: i > 0, kind: row.className, x: n.filter((_, i) => i % 2 === 0), y: n.filter((_, i) => i % 2).map(v => v * 1024)};
  }) : [];
}
const series = c => {
  const [width, dash] = lines[c.kind] || lines.none;
  return {stroke: () => tone(c.kind), width: c.repeat ? 0.8 : width, dash, alpha: c.repeat ? 0.3 : 1, spanGaps: true, points: {show: false}};
};
const fromZero = (u, low, high) => low === null ? [0, 1] : [low > high / 2 ? Math.max(0, low - (high - low) / 4) : 0, high + (high - low || high) * 0.05];
const axis = values => ({stroke: () => color("soft"), grid: {stroke: () => color("grid"), width: 1}, ticks: {show: false}, values: (u, list) => list.map(values), font: "12px system-ui"});
const powers = Array.from({length: 50}, (_, i) => 2 ** i);

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

function spark(holder) {
  const part = document.getElementById(holder.dataset.part);
  const base = part && curves(part.querySelector("tr[data-curve]"))[0];
  if (!base) return;
  const list = [...curves(document.getElementById(holder.dataset.best)).slice(0, 1), base];
  plot(holder, 44, {cursor: {show: false}, axes: [{show: false}, {show: false}], padding: [2, 0, 2, 0],
    scales: {x: {time: false}, y: {range: (u, low, high) => [0, high * 1.05]}}, series: [{}, ...list.map(series)]},
    uPlot.join(list.map(c => [c.x, c.y])));
}

function chart(figure) {
  const part = figure.closest(".part"), rows = all("tr[data-curve]", part);
  const rank = {base: 9, works: 4, partly: 3, harm: 2, unclear: 1};
  const list = rows.flatMap(curves).sort((a, b) => (rank[a.kind] || 0) - (rank[b.kind] || 0)); // the last one is drawn on top
  const best = rows.find(r => r.className === "works");
  const name = row => row.querySelector("button").textContent;
  const index = row => list.findIndex(c => c.row === row && !c.repeat) + 1;
  let pinned = null, near = null;
  const show = row => {
    near = row;
    for (const r of rows) r.classList.toggle("hi", r === row);
    u.setSeries(row ? index(row) : null, {focus: !!row});
  };
  const u = plot(figure.querySelector(".plot"), 320, {
    cursor: {focus: {prox: 24}, y: false, points: {show: false}}, focus: {alpha: 0.13},
    scales: {x: {time: false, range: (u, low, high) => [0, high]}, y: {range: fromZero}},
    axes: [axis(v => v), {...axis(bytes), size: 76, incrs: powers}],
    series: [{}, ...list.map(series)],
    hooks: {
      setCursor: [u => {
        if (u.cursor.left < 0) { tip(u, ""); show(pinned); return; }
        const x = u.posToVal(u.cursor.left, "x"), y = u.posToVal(u.cursor.top, "y"), high = u.scales.y.max - u.scales.y.min;
        let found = null;
        for (const c of list) {
          if (c.repeat || pinned && c.row !== pinned) continue;
          let i = c.x.findIndex(v => v >= x);
          if (i < 0) i = c.x.length - 1;
          const d = Math.abs(c.y[i] - y) / high;
          if (!found || d <= found.d) found = {c, i, d};
        }
        if (!found) return;
        if (found.c.row !== near) show(found.c.row);
        const same = list.filter(o => o !== found.c && !o.repeat && o.y.some((v, k) => o.x[k] === found.c.x[found.i] && Math.abs(v - found.c.y[found.i]) / high < 0.006)).length;
        tip(u, name(found.c.row) + (same && !pinned ? " and " + same + (same === 1 ? " other" : " others") : "") + "\n" + bytes(found.c.y[found.i]) + " after step " + found.c.x[found.i]);
      }],
      draw: [u => {
        const px = devicePixelRatio, labels = [];
        for (const c of list) {
          const end = c.x.length - 1, x = u.valToPos(c.x[end], "x", true), y = u.valToPos(c.y[end], "y", true);
          u.ctx.fillStyle = tone(c.kind);
          u.ctx.font = "600 " + 12.5 * px + "px system-ui";
          if (c.row.dataset.died && !c.repeat) { u.ctx.textAlign = "center"; u.ctx.fillText("✗", x, y); }
          if (!c.repeat && (c.kind === "base" || c.row === best)) labels.push({text: name(c.row), y, kind: c.kind});
        }
        labels.sort((a, b) => a.y - b.y);
        u.ctx.textAlign = "right";
        labels.forEach((l, i) => {
          if (i) l.y = Math.max(l.y, labels[i - 1].y + 18 * px);
          u.ctx.fillStyle = tone(l.kind);
          u.ctx.fillText(l.text, u.bbox.left + u.bbox.width - 4 * px, Math.max(l.y - 6 * px, u.bbox.top + 14 * px));
        });
        u.ctx.textAlign = "left";
        const label = figure.querySelector(".axis");
        label.textContent = "anonymous memory over steps" + (u.scales.y.min > 0 ? " (does not begin at 0)" : "");
      }],
    },
  }, uPlot.join(list.map(c => [c.x, c.y])));
  for (const row of rows) {
    const button = row.querySelector("button");
    row.addEventListener("mouseenter", () => show(row));
    row.addEventListener("mouseleave", () => show(pinned));
    button.addEventListener("focus", () => show(row));
    button.addEventListener("blur", () => show(pinned));
    button.addEventListener("click", () => {
      pinned = pinned === row ? null : row;
      for (const b of all("button[aria-pressed]", part)) b.setAttribute("aria-pressed", String(b.closest("tr") === pinned));
      show(pinned);
    });
  }
}

function pareto(figure) {
  const part = figure.closest(".part");
  const dots = all("tr[data-time]", part).map(row => ({row, x: +row.dataset.time, y: +row.dataset.peak, front: row.dataset.front,
    less: row.textContent.includes("†")})).sort((a, b) => a.x - b.x);
  const at = u => {
    let best = null;
    for (const d of dots) {
      const far = Math.hypot(u.valToPos(d.x, "x") - u.cursor.left, u.valToPos(d.y, "y") - u.cursor.top);
      if (far < 20 && (!best || far < best.far)) best = {...d, far};
    }
    return best;
  };
  const u = plot(figure.querySelector(".plot"), 270, {
    cursor: {x: false, y: false, points: {show: false}, drag: {x: false}},
    scales: {x: {time: false, range: fromZero}, y: {range: fromZero}},
    axes: [axis(duration), {...axis(bytes), size: 76, incrs: powers}],
    series: [{}, {stroke: "transparent", points: {show: false}}],
    hooks: {
      setCursor: [u => {
        const d = u.cursor.left >= 0 && at(u);
        tip(u, d ? d.row.querySelector("button").textContent + "\n" + bytes(d.y) + ", " + duration(d.x) + " per step" + (d.less ? ", of less work" : "") : "");
      }],
      draw: [u => {
        const px = devicePixelRatio, ctx = u.ctx;
        for (const d of [...dots].sort((a, b) => (a.front || 0) - (b.front || 0))) {
          const x = u.valToPos(d.x, "x", true), y = u.valToPos(d.y, "y", true), r = (d.front ? 9 : 5.5) * px;
          ctx.fillStyle = ctx.strokeStyle = tone(d.row.className);
          ctx.beginPath();
          if (d.row.className === "base") ctx.rect(x - 6 * px, y - 6 * px, 12 * px, 12 * px);
          else ctx.arc(x, y, r, 0, 7);
          if (d.less) { ctx.lineWidth = 2 * px; ctx.stroke(); continue; }
          ctx.fill();
          if (!d.front || d.row.className === "base") continue;
          ctx.fillStyle = color("bg");
          ctx.font = "700 " + 11 * px + "px system-ui";
          ctx.textAlign = "center";
          ctx.fillText(d.front, x, y + 4 * px);
        }
      }],
    },
  }, [dots.map(d => d.x), dots.map(d => d.y)]);
  u.over.addEventListener("click", () => { const d = at(u); if (d) location.hash = d.row.id; });
}

// A chart is drawn when it becomes visible, or is printed.
const draw = new Map([...all(".spark")].map(e => [e, spark]).concat(all(".chart").map(e => [e, chart]), all(".pareto").map(e => [e, pareto])));
function drawOne(element) {
  const with_ = draw.get(element);
  if (with_ && element.clientWidth) { draw.delete(element); with_(element); }
}
const watch = new IntersectionObserver(list => {
  for (const e of list) if (e.isIntersecting) { drawOne(e.target); watch.unobserve(e.target); }
}, {rootMargin: "400px"});
for (const element of draw.keys()) watch.observe(element);
addEventListener("beforeprint", () => {
  for (const d of all("details")) d.open = true;
  for (const element of [...draw.keys()]) drawOne(element);
});

if (location.hash) follow();
})();
