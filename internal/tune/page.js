{
const {dots, path, lines, logarithmic} = JSON.parse(document.getElementById("data").textContent);
scatter(document.getElementById("chart"), 460, dots, {path, lines: lines || [], wide: logarithmic});
}
