// Lines over steps: drawn small, read off by pointing.
import { el, number, svg } from "./dom.js";

const WIDE = 460, HIGH = 200, LEFT = 44, BOTTOM = 20, TOP = 8, RIGHT = 6;

export class Chart {
  constructor(title, hint, digits, { zero = false, most = null, points = false } = {}) {
    Object.assign(this, { digits, zero, most, points, hint, series: [] });
    this.drawing = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.drawing.setAttribute("preserveAspectRatio", "xMidYMid meet");
    this.tip = el("p", { class: "tip" }, hint);
    this.root = el("div", { class: "chart" }, el("h3", {}, title), this.tip, this.drawing);
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => { this.tip.replaceChildren(this.hint); this.hair?.remove(); });
  }

  draw(series) {
    this.series = series.map((one) => ({ ...one, points: one.points.filter(([, y]) => y !== null) }));
    const every = this.series.flatMap((one) => one.points);
    this.drawing.replaceChildren();
    if (!every.length) {
      const words = svg("text", { x: LEFT, y: HIGH / 2 });
      words.textContent = "nothing yet";
      this.drawing.append(words);
      return;
    }
    const xs = every.map(([x]) => x), ys = every.map(([, y]) => y);
    this.x = scale(Math.min(...xs), Math.max(...xs), LEFT, WIDE - RIGHT);
    const ticks = rounded(this.zero ? Math.min(0, ...ys) : Math.min(...ys), Math.max(this.most ?? -Infinity, ...ys));
    this.y = scale(ticks[0], ticks.at(-1), HIGH - BOTTOM, TOP);
    for (const value of ticks) {
      this.drawing.append(svg("line", { class: "rule", x1: LEFT, x2: WIDE - RIGHT, y1: this.y(value), y2: this.y(value) }));
      this.drawing.append(words(short(value), LEFT - 7, this.y(value) + 4, "end"));
    }
    const last = Math.max(...xs);
    this.drawing.append(words("step", LEFT, HIGH - 3, "start"), words(last.toLocaleString("en"), WIDE - RIGHT, HIGH - 3, "end"));
    for (const { colour, points } of this.series) {
      const path = points.map(([x, y], place) => `${place ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
      const line = svg("path", { class: "series", d: path });
      line.style.stroke = `var(${colour})`;
      this.drawing.append(line);
      for (const [x, y] of this.points ? points : points.slice(-1)) {
        const dot = svg("circle", { cx: this.x(x), cy: this.y(y), r: 2.6 });
        dot.style.fill = `var(${colour})`;
        this.drawing.append(dot);
      }
    }
  }

  point(event) {
    if (!this.series.some((one) => one.points.length)) return;
    const matrix = this.drawing.getScreenCTM();
    if (!matrix) return;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse()).x;
    const near = this.series.filter((one) => one.points.length).map((one) => ({ ...one,
      here: one.points.reduce((a, b) => Math.abs(this.x(b[0]) - at) < Math.abs(this.x(a[0]) - at) ? b : a) }));
    this.hair?.remove();
    const x = this.x(near[0].here[0]);
    this.hair = svg("line", { class: "hair", x1: x, x2: x, y1: TOP, y2: HIGH - BOTTOM });
    this.drawing.append(this.hair);
    this.tip.replaceChildren(`step ${near[0].here[0].toLocaleString("en")}`, ...near.map(({ name, colour, here }) => {
      const value = el("b", {}, number(here[1], this.digits));
      value.style.color = `var(${colour})`;
      return el("span", {}, value, near.length > 1 ? ` ${name}` : "");
    }));
  }
}

const scale = (low, high, from, to) => (value) => from + (high === low ? 0.5 : (value - low) / (high - low)) * (to - from);

const words = (text, x, y, anchor) => {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
};

const short = (value) => Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 4 });

// Three to six round numbers that hold a stretch between them.
function rounded(low, high) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / 4));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => span / one <= 5);
  const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}
