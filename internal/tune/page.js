{
const {dots, path, lines} = JSON.parse(document.getElementById("data").textContent);
scatter(document.getElementById("chart"), 460, dots, {path, lines: lines || []});
}
