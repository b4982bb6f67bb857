"use strict";
(() => {
const root = document.documentElement;
const all = (selector, within) => [...(within || document).querySelectorAll(selector)];

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

const lines = {base: [2.6], works: [1.6], partly: [1.5, [7, 3]], harm: [1.6, [2, 2.5]], unclear: [1.6, [1, 4]], none: [1.2]};
const toneName = kind => ({base: "ink", works: "works", partly: "partly", harm: "harm", unclear: "unclear"}[kind] || "none");
const tone = kind => color(toneName(kind));

// Returns the curve of a row, if it has one.
function curves(row) {
  if (!row || !row.dataset.curve) return [];
  const n = row.dataset.curve.split(" ").map(Number);
  return [{row, kind: row.className, x: n.filter((_, i) => i % 2 === 0), y: n.filter((_, i) => i % 2).map(v => v * 1024)}];
}
const series = c => {
  const [width, dash] = lines[c.kind] || lines.none;
  return {stroke: () => tone(c.kind), width, dash, spanGaps: true, points: {show: false}};
};

function spark(holder) {
  const part = document.getElementById(holder.dataset.part);
  const base = part && curves(part.querySelector("tr[data-curve]"))[0];
  if (!base) return;
  const list = [...curves(document.getElementById(holder.dataset.best)).slice(0, 1), base];
  plot(holder, 34, {cursor: {show: false}, axes: [{show: false}, {show: false}], padding: [2, 0, 2, 0],
    scales: {x: {time: false}, y: {range: (u, low, high) => [0, high * 1.05]}}, series: [{}, ...list.map(series)]},
    uPlot.join(list.map(c => [c.x, c.y])));
}

function chart(figure) {
  const part = figure.closest(".part"), rows = all("tr[data-curve]", part);
  const rank = {base: 9, works: 4, partly: 3, harm: 2, unclear: 1};
  const list = rows.flatMap(curves).sort((a, b) => (rank[a.kind] || 0) - (rank[b.kind] || 0)); // the last one is drawn on top
  const best = rows.find(r => r.className === "works");
  const name = row => row.querySelector("button").textContent;
  const index = row => list.findIndex(c => c.row === row) + 1;
  let pinned = null, near = null;
  const show = row => {
    near = row;
    for (const r of rows) r.classList.toggle("hi", r === row);
    u.setSeries(row ? index(row) : null, {focus: !!row});
  };
  const u = plot(figure.querySelector(".plot"), 320, {
    cursor: {focus: {prox: 24}, y: false, points: {show: false}}, focus: {alpha: 0.13},
    scales: {x: {time: false, range: (u, low, high) => [0, high]}, y: {range: fromZero}},
    axes: [axis(v => v), byteAxis()],
    series: [{}, ...list.map(series)],
    hooks: {
      setCursor: [u => {
        if (u.cursor.left < 0) { tip(u, ""); show(pinned); return; }
        const x = u.posToVal(u.cursor.left, "x"), y = u.posToVal(u.cursor.top, "y"), high = u.scales.y.max - u.scales.y.min;
        let found = null;
        for (const c of list) {
          if (pinned && c.row !== pinned) continue;
          let i = c.x.findIndex(v => v >= x);
          if (i < 0) i = c.x.length - 1;
          const d = Math.abs(c.y[i] - y) / high;
          if (!found || d <= found.d) found = {c, i, d};
        }
        if (!found) return;
        if (found.c.row !== near) show(found.c.row);
        const same = list.filter(o => o !== found.c && o.y.some((v, k) => o.x[k] === found.c.x[found.i] && Math.abs(v - found.c.y[found.i]) / high < 0.006)).length;
        tip(u, name(found.c.row) + (same && !pinned ? " and " + same + (same === 1 ? " other" : " others") : "") + "\n" + bytes(found.c.y[found.i]) + " after step " + found.c.x[found.i]);
      }],
      draw: [u => {
        const px = devicePixelRatio, labels = [];
        for (const c of list) {
          const end = c.x.length - 1, x = u.valToPos(c.x[end], "x", true), y = u.valToPos(c.y[end], "y", true);
          u.ctx.fillStyle = tone(c.kind);
          u.ctx.font = "600 " + 12.5 * px + "px system-ui";
          if (c.row.dataset.crashed) { u.ctx.textAlign = "center"; u.ctx.fillText("✗", x, y); }
          if (c.kind === "base" || c.row === best) labels.push({text: name(c.row), y, kind: c.kind});
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

// A chart is drawn when it becomes visible, or is printed.
const draw = new Map([...all("[data-part]")].map(e => [e, spark]).concat(all(".chart").map(e => [e, chart])));
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
