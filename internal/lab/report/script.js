"use strict";
(() => {
const root = document.documentElement;
const all = (selector, within) => [...(within || document).querySelectorAll(selector)];

// One runtime at a time. A link to another one's part brings that one up.
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
document.addEventListener("click", e => {
  const link = e.target.closest && e.target.closest('a[href^="#w"]');
  const part = link && document.getElementById(link.getAttribute("href").slice(1));
  const holder = part && part.closest(".rt");
  if (holder) choose(holder.dataset.rt);
});

// Sizes as everywhere else in the report.
function bytes(v) {
  for (const [name, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(v) >= size) return (v / size).toFixed(1) + " " + name;
  return Math.round(v) + " B";
}

function tip(plot, box, text, x, y) {
  box.textContent = text;
  box.hidden = false;
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = Math.max(0, Math.min(x + 12, plot.clientWidth - width)) + "px";
  box.style.top = (y - height - 12 < 0 ? y + 14 : y - height - 12) + "px";
}

for (const chart of all(".chart")) {
  const plot = chart.querySelector(".plot"), svg = plot.querySelector("svg");
  const box = plot.querySelector(".tip"), spot = plot.querySelector(".spot");
  const part = chart.closest(".part");
  const last = +chart.dataset.x1, low = +chart.dataset.y0, high = +chart.dataset.y1;
  const rows = new Map(all("tr[data-m]", part).map(r => [r.dataset.m, r]));
  let curves = null, pinned = null;
  // The points are those that the curve is drawn from: absolute, in the plot's units.
  function read() {
    curves = curves || all("path[data-m]", svg).map(path => {
      const numbers = path.getAttribute("d").match(/-?\d+/g).map(Number), points = [];
      for (let i = 0, x = 0, y = 0; i < numbers.length; i += 2) points.push([x += numbers[i], y += numbers[i + 1]]);
      return {path, points, m: path.dataset.m};
    });
    return curves;
  }
  function show(m) {
    chart.classList.toggle("on", m !== null);
    for (const p of all("path.hi", svg)) p.classList.remove("hi");
    for (const r of rows.values()) r.classList.toggle("hi", r.dataset.m === m);
    if (m === null) return;
    for (const c of read()) if (c.m === m) { c.path.classList.add("hi"); svg.append(c.path); }
  }
  function rest() { show(pinned); box.hidden = spot.hidden = true; }
  function near(x, y, width, height) {
    let best = null;
    for (const c of read()) {
      if (pinned !== null && c.m !== pinned) continue;
      let p = c.points[0];
      for (const q of c.points) if (Math.abs(q[0] - x) < Math.abs(p[0] - x)) p = q;
      const d = Math.hypot((p[0] - x) / 4000 * width, (p[1] - y) / 2000 * height);
      if (!best || d <= best.d) best = {c, p, d};
    }
    return best;
  }
  function point(e) {
    const r = svg.getBoundingClientRect();
    const found = near((e.clientX - r.left) / r.width * 4000, (e.clientY - r.top) / r.height * 2000, r.width, r.height);
    if (!found) return;
    const {c, p} = found, row = rows.get(c.m);
    show(c.m);
    const x = p[0] / 4000 * r.width, y = p[1] / 2000 * r.height;
    spot.hidden = false;
    spot.style.left = x + "px";
    spot.style.top = y + "px";
    const name = row ? row.querySelector("button").textContent : "";
    // Curves that lie on each other cannot be pointed at one by one.
    const here = pinned !== null ? 0 : read().filter(o => o !== c && o.points.some(q =>
      Math.abs(q[0] - p[0]) < 8 && Math.abs(q[1] - p[1]) / 2000 * r.height < 2)).length;
    const more = here ? " and " + here + (here === 1 ? " other" : " others") : "";
    tip(plot, box, name + more + "\n" + bytes(high - p[1] / 2000 * (high - low)) + " after step " + Math.round(p[0] / 4000 * last), x, y);
  }
  box.style.whiteSpace = "pre-line";
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", e => { if (e.pointerType === "mouse") rest(); });
  for (const [m, row] of rows) {
    const button = row.querySelector("button");
    row.addEventListener("mouseenter", () => show(m));
    row.addEventListener("mouseleave", rest);
    button.addEventListener("focus", () => show(m));
    button.addEventListener("blur", rest);
    button.addEventListener("click", () => {
      pinned = pinned === m ? null : m;
      for (const b of all("button[aria-pressed]", part)) b.setAttribute("aria-pressed", String(b.dataset.m === pinned));
      show(pinned);
    });
  }
}

for (const point of all(".pt")) {
  const plot = point.closest(".plot"), box = plot.querySelector(".tip");
  const on = () => tip(plot, box, point.getAttribute("aria-label"), point.offsetLeft + 5, point.offsetTop + 5);
  const off = () => { box.hidden = true; };
  for (const name of ["mouseenter", "focus"]) point.addEventListener(name, on);
  for (const name of ["mouseleave", "blur"]) point.addEventListener(name, off);
}

// Print everything.
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open])");
  for (const d of opened) d.open = true;
});
addEventListener("afterprint", () => { for (const d of opened) d.open = false; });

const save = document.getElementById("save");
save.hidden = false;
save.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([document.getElementById("matrix").textContent], {type: "application/json"}));
  link.download = "matrix-of-report.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

if (location.hash) follow();
})();
