
const panels = JSON.parse(document.getElementById("curve-data").textContent);
for (const figure of document.querySelectorAll("[data-panel]")) new Chart(figure).draw(panels[figure.dataset.panel]);
for (const one of document.querySelectorAll(".run .sample")) drawSample(one, Number(one.dataset.run));
