"use strict";
(() => {
const charts = JSON.parse(document.getElementById("charts").textContent);
const time = v => v >= 1000 ? +(v / 1000).toPrecision(3) + " ms" : v + " µs";
function chart(id, x, series, data, zero) {
  const holder = document.getElementById(id);
  if (!holder || data[0].length < 2) return;
  plot(holder, 280, {scales: {x: {time: false}, y: {range: (u, low, high) => [zero ? 0 : low, high * 1.02 || 1]}}, axes: [axis(x), byteAxis()], series: [{}, ...series], cursor: {y: false}}, data);
}
// The areas are stacked: each series is drawn as the sum of itself and the series below it, highest sum first.
const names = ["acti", "grad", "upda", "work"], t = charts.timeline, sums = [];
t.series.forEach((s, i) => sums.push(s.bytes.map((b, k) => b + (i ? sums[i - 1][k] : 0))));
const order = sums.map((_, i) => i).reverse();
chart("timeline", time, order.map(i => ({stroke: () => color(names[i]), fill: () => color(names[i]), width: 0, points: {show: false}, paths: uPlot.paths.stepped({align: 1})})),
  [t.micros, ...order.map(i => sums[i])], true);
chart("growth", v => v, [{stroke: () => color("acti"), width: 1.5, points: {show: false}}], [charts.samples.steps, charts.samples.anon], false);
})();
