"use strict";
// A reading of the curves under the pointer, or at the step the arrow keys have moved to. The page is whole without it.
const panels = JSON.parse(document.getElementById("curve-data").textContent);
const words = (value, unit) =>
  unit || Math.abs(value) >= 100 ? value.toFixed(1) + unit : String(Number(value.toPrecision(4)));

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
}

for (const figure of document.querySelectorAll("[data-panel]")) {
  const panel = panels[Number(figure.dataset.panel)];
  const [first, last, left, right] = panel.steps;
  const svg = figure.querySelector("svg[role=img]");
  const cursor = svg.querySelector(".cursor");
  const caption = figure.querySelector(".at");
  const cells = [...figure.querySelectorAll("td")];
  const before = cells.map((cell) => cell.textContent);
  const said = caption.textContent;
  const dots = panel.curves.map(() => {
    const dot = document.createElementNS(svg.namespaceURI, "circle");
    dot.setAttribute("class", "dot");
    dot.setAttribute("r", "3.5");
    svg.append(dot);
    return dot;
  });
  let at = null;

  function show(step) {
    at = Math.min(last, Math.max(first, step));
    const longest = panel.curves.reduce((one, other) => (other.steps.length > one.steps.length ? other : one));
    at = longest.steps[nearest(longest.steps, at)];
    const x = left + ((at - first) / (last - first)) * (right - left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    figure.classList.add("reading");
    const range = panel.single ? "" : " (least to greatest)";
    caption.textContent = "at step " + at.toLocaleString("en") + range;
    panel.curves.forEach((curve, number) => {
      const place = nearest(curve.steps, at);
      const value = curve.line[place];
      const past = at > curve.steps[curve.steps.length - 1];
      const gone = value === null || past;
      dots[number].style.display = gone ? "none" : "";
      if (gone) {
        cells[number].textContent = past ? "ended" : "no number";
        return;
      }
      dots[number].setAttribute("cx", left + ((curve.steps[place] - first) / (last - first)) * (right - left));
      dots[number].setAttribute("cy", curve.heights[place]);
      const ends = words(curve.low[place], "") + " to " + words(curve.high[place], panel.unit);
      cells[number].textContent = words(value, panel.unit) + (panel.single ? "" : "  (" + ends + ")");
    });
  }

  function rest() {
    at = null;
    figure.classList.remove("reading");
    caption.textContent = said;
    cells.forEach((cell, number) => { cell.textContent = before[number]; });
  }

  function follow(event) {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    show(first + ((x - left) / (right - left)) * (last - first));
  }

  svg.setAttribute("tabindex", "0");
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  // A finger leaves as soon as it is lifted; what it showed stays until another place is touched.
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") rest(); });
  svg.addEventListener("blur", rest);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    figure.querySelector(".legend").setAttribute("aria-live", "polite");
    const way = moves[event.key];
    show(Number.isFinite(way) ? (at === null ? last : at) + (way * (last - first)) / 50 : way < 0 ? first : last);
  });
}
