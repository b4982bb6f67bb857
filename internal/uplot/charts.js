"use strict";
// Functions of all pages. Colors are the variables of the style sheet.
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name);
function bytes(v) {
  for (const [name, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(v) >= size) return (v / size).toFixed(1) + " " + name;
  return Math.round(v) + " B";
}
const powers = Array.from({length: 50}, (_, i) => 2 ** i);
const fromZero = (u, low, high) => low === null ? [0, 1] : [low > high / 2 ? Math.max(0, low - (high - low) / 4) : 0, high + (high - low || high) * 0.05];
const axis = values => ({stroke: () => color("soft"), grid: {stroke: () => color("grid"), width: 1}, ticks: {show: false}, values: (u, list) => list.map(values), font: "12px system-ui"});
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
