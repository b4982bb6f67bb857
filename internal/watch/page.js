"use strict";
(() => {
const charts = JSON.parse(document.getElementById("charts").textContent);
// Lines mark the end of the warm-up and those of the epochs.
const marks = u => {
  const box = u.bbox;
  for (const [at, dash] of [[charts.from, [6, 4]], ...(charts.epochs || []).map(e => [e, [1, 4]])]) {
    const x = u.valToPos(at, "x", true);
    if (x <= box.left || x > box.left + box.width) continue;
    u.ctx.strokeStyle = color("soft");
    u.ctx.setLineDash(dash);
    u.ctx.beginPath();
    u.ctx.moveTo(x, box.top);
    u.ctx.lineTo(x, box.top + box.height);
    u.ctx.stroke();
  }
  u.ctx.setLineDash([]);
};
function lines(id, list, values, y, text) {
  const holder = document.getElementById(id), names = document.getElementById(id.slice(0, -1) + "-names");
  if (!list.length || charts.x.length < 2) {
    holder.parentElement.hidden = true;
    return;
  }
  list.forEach((l, i) => {
    const item = names.appendChild(document.createElement("li")), key = item.appendChild(document.createElement("i"));
    key.className = "key";
    key.style.background = `var(--l${i % 8})`;
    item.append(l.name + text(l));
  });
  plot(holder, 300, {scales: {x: {time: false}}, axes: [axis(v => v), y], cursor: {y: false}, hooks: {draw: [marks]},
    series: [{}, ...list.map((_, i) => ({stroke: () => color("l" + i % 8), width: 1.5, points: {show: false}}))]},
    [charts.x, ...list.map(values)]);
}
const known = l => l.values.filter(v => v !== null), last = l => known(l).at(-1);
const moves = l => Math.max(...known(l)) > Math.min(...known(l));
lines("layers", (charts.layers || []).filter(l => known(l).length && last(l) > 0), l => l.values, byteAxis(), l => ": " + bytes(last(l)));
lines("counts", (charts.counts || []).filter(l => known(l).length && moves(l)), l => {
  const low = Math.min(...known(l)), high = Math.max(...known(l));
  return l.values.map(v => v === null ? null : 100 * (v - low) / (high - low));
}, axis(v => v + "%"), l => ": " + Math.min(...known(l)) + " to " + Math.max(...known(l)));
})();
