// The scrubber at the right edge: years along it, and the month in view; drag, click or arrow keys.
import { $, el } from "./dom.js";
import { lastWhere } from "./layout.js";
import { monthWords, yearOf } from "./dates.js";

const LABEL = 20; // height in pixels of the name of a year
let months = [], height = 1, dragging = false, before = 0, fading;

export function startTimeline() {
  const bar = $("scrubber");
  const to = (event) => {
    const box = bar.getBoundingClientRect();
    go(Math.max(0, Math.min(1, (event.clientY - box.top) / box.height)) * reach());
  };
  bar.addEventListener("pointerdown", (event) => {
    dragging = true;
    bar.setPointerCapture(event.pointerId);
    bar.classList.add("held");
    to(event);
    event.preventDefault();
  });
  bar.addEventListener("pointermove", (event) => { if (dragging) to(event); else hover(event); });
  const end = () => { dragging = false; bar.classList.remove("held"); };
  bar.addEventListener("pointerup", end);
  bar.addEventListener("pointercancel", end);
  bar.addEventListener("pointerleave", () => { $("scrub-hover").hidden = true; });
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    go(months[Math.max(0, Math.min(months.length - 1, monthAt(view()) + step))].top);
  });
}

const top = () => $("grid").getBoundingClientRect().top + scrollY;
const view = () => scrollY + $("ask").offsetHeight - top();
const reach = () => Math.max(1, height - innerHeight + $("ask").offsetHeight + 80);
const share = () => Math.max(0, Math.min(1, view() / reach()));
// The month in view: of the first row at the beginning, and of the last row at the end.
const here = () => monthAt(view() + share() * (innerHeight - $("ask").offsetHeight - 200));
const monthAt = (y) => lastWhere(months, (month) => month.top <= y + 60);
const go = (y) => scrollTo(0, y + top() - $("ask").offsetHeight);

// `days` in the order of the pictures, and where each picture is.
export function drawTimeline(days, plan) {
  months = [];
  let place = 0, row = 0;
  for (const [day, count] of days) {
    while (row < plan.rows.length - 1 && plan.rows[row].last <= place) row += 1;
    const month = day.slice(0, 7);
    if (months.at(-1)?.month !== month) {
      const head = plan.heads[lastWhere(plan.heads, (one) => one.first <= place)];
      months.push({ month, top: head?.first === place ? head.top : plan.rows[row]?.top ?? 0 });
    }
    place += count;
  }
  height = plan.height;
  const useful = months.length > 1 && height > 2 * innerHeight;
  $("scrubber").hidden = !useful;
  document.body.classList.toggle("with-timeline", useful);
  if (!useful) return;
  const length = innerHeight - $("ask").offsetHeight - 40;
  let last = -LABEL, year = null;
  const marks = [];
  for (const { month, top: y } of months) {
    const at = Math.min(1, y / reach()), named = yearOf(month) !== year && at * length - last >= LABEL;
    if (named) [last, year] = [at * length, yearOf(month)];
    const mark = el("span", { class: named ? "year" : "dot" }, named ? year || "–" : "");
    mark.style.top = `${(at * 100).toFixed(2)}%`;
    if (named || !marks.length || at * length - marks.at(-1).at > 5) marks.push({ mark, at: at * length });
  }
  $("scrub-marks").replaceChildren(...marks.map(({ mark }) => mark));
  $("scrubber").setAttribute("aria-valuemax", months.length - 1);
  moved();
}

export function moved() {
  const bar = $("scrubber");
  if (bar.hidden) return;
  const month = months[here()];
  bar.setAttribute("aria-valuenow", here());
  bar.setAttribute("aria-valuetext", monthWords(month.month));
  $("scrub-now").style.top = `${(share() * 100).toFixed(2)}%`;
  $("scrub-label").textContent = monthWords(month.month);
  if (scrollY === before) return;
  before = scrollY;
  bar.classList.add("moving");
  clearTimeout(fading);
  fading = setTimeout(() => bar.classList.remove("moving"), 1200);
}

function hover(event) {
  if (event.pointerType === "touch") return;
  const box = $("scrubber").getBoundingClientRect(), at = Math.max(0, Math.min(1, (event.clientY - box.top) / box.height));
  const month = months[monthAt(at * reach())];
  $("scrub-hover").hidden = false;
  $("scrub-hover").style.top = `${(at * 100).toFixed(2)}%`;
  $("scrub-hover").textContent = monthWords(month.month);
}

export function hideTimeline() {
  $("scrubber").hidden = true;
  document.body.classList.remove("with-timeline");
}
