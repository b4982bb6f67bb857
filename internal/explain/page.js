"use strict";
(() => {
const charts = JSON.parse(document.getElementById("charts").textContent);
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name);
function bytes(v) {
  for (const [name, size] of [["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(v) >= size) return (v / size).toFixed(1) + " " + name;
  return Math.round(v) + " B";
}
const time = v => v >= 1000 ? +(v / 1000).toPrecision(3) + " ms" : v + " µs";
const powers = Array.from({length: 50}, (_, i) => 2 ** i);
const axis = values => ({stroke: () => color("soft"), grid: {stroke: () => color("grid"), width: 1}, ticks: {show: false}, values: (u, list) => list.map(values), font: "12px system-ui"});
function plot(id, x, y, series, data, extra) {
  const holder = document.getElementById(id);
  if (!holder || data[0].length < 2) return;
  const u = new uPlot({width: Math.max(holder.clientWidth, 60), height: 280, legend: {show: false}, scales: {x: {time: false}, y: {range: (u, low, high) => [extra.zero ? 0 : low, high * 1.02 || 1]}},
    axes: [axis(x), {...axis(y), size: 76, incrs: powers}], series: [{}, ...series], cursor: {y: false}, ...extra.options}, data, holder);
  new ResizeObserver(() => holder.clientWidth && u.setSize({width: holder.clientWidth, height: 280})).observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => u.redraw());
}
// The areas are stacked: each series is drawn as the sum of itself and the series below it, highest sum first.
const names = ["acti", "grad", "upda", "work"], t = charts.timeline, sums = [];
t.series.forEach((s, i) => sums.push(s.bytes.map((b, k) => b + (i ? sums[i - 1][k] : 0))));
const order = sums.map((_, i) => i).reverse();
plot("timeline", time, bytes, order.map(i => ({stroke: () => color(names[i]), fill: () => color(names[i]), width: 0, points: {show: false}, paths: uPlot.paths.stepped({align: 1})})),
  [t.micros, ...order.map(i => sums[i])], {zero: true});
plot("growth", v => v, bytes, [{stroke: () => color("acti"), width: 1.5, points: {show: false}}], [charts.samples.steps, charts.samples.anon], {});
})();
