// Curves over training steps, for the report and for the page of runs. A value is read under the pointer, or at the
// step that the arrow keys have moved to.
const WIDTH = 400, HEIGHT = 240, LEFT = 46, RIGHT = 14, TOP = 12, FLOOR = HEIGHT - 36;
const LOOKS = 6; // colours, dashes and shapes: curves can be distinguished without colours
const TICKS = 5, MARGIN = 0.04, MOST_MARKS = 40, LINE_HEIGHT = 16;
const SHAPES = ["", "-1,0 0,-1 1,0 0,1", "-.8,-.8 .8,-.8 .8,.8 -.8,.8", "0,-1 1,.8 -1,.8", "0,1 1,-.8 -1,-.8",
  "-1,-.35 1,-.35 1,.35 -1,.35"];

const maker = (namespace) => (name, attributes = {}, ...children) => {
  const made = document.createElementNS(`http://www.w3.org/${namespace}`, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const svg = maker("2000/svg"), html = maker("1999/xhtml");
const isNumber = (value) => Number.isFinite(value);
const inWords = (value, unit = "") =>
  unit || Math.abs(value) >= 100 ? value.toFixed(1) + unit : String(Number(value.toPrecision(4)));

// From values to places in the picture; a value beyond the ends is drawn at the end.
export function axis(low, high, from, to, isLog = false) {
  const scaled = isLog ? Math.log : Number;
  const place = (value) =>
    from + (scaled(Math.min(Math.max(value, low), high)) - scaled(low)) / (scaled(high) - scaled(low)) * (to - from);
  return Object.assign(place, { low, high, ticks: (isLog ? logTicks : linearTicks)(low, high) });
}

// The axis that shows all values, and 0 and `full` unless it is logarithmic.
export function fitAxis(values, from, to, isLog = false, full = 0) {
  if (isLog) return axis(roundLog(Math.min(...values), -1), roundLog(Math.max(...values), 1), from, to, true);
  const low = Math.min(0, ...values), top = Math.max(full, ...values), high = top > low ? top : low + 1;
  const beyond = MARGIN * (high - low);
  return axis(low < 0 ? low - beyond : low, high > full ? high + beyond : high, from, to);
}

// Multiples of 1, 2 or 5 times a power of ten.
export function linearTicks(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / TICKS));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one * TICKS >= (high - low) * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

// 1, 2 and 5 of every power of ten; if these are many, the powers alone, or every few of them.
export function logTicks(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9), last = Math.ceil(Math.log10(high) - 1e-9);
  const powers = Array.from({ length: last - first + 1 }, (_, place) => 10 ** (first + place));
  const inside = (values) => values.filter((one) => low * (1 - 1e-9) <= one && one <= high * (1 + 1e-9));
  const all = inside(powers.flatMap((power) => [power, 2 * power, 5 * power]));
  const every = Math.max(1, Math.ceil((last - first) / TICKS));
  return all.length <= TICKS + 1 ? all : inside(powers.filter((_, place) => place % every === 0));
}

// The next of 1, 2 and 5 times a power of ten, downwards (-1) or upwards (1), and never the value itself.
function roundLog(value, way) {
  const power = Math.floor(Math.log10(value));
  const near = [-1, 0, 1].flatMap((more) => [1, 2, 5].map((one) => one * 10 ** (power + more)));
  return way > 0 ? near.find((one) => one > value * 1.001) : near.findLast((one) => one < value / 1.001);
}

export function tickWords(value) {
  if (value && !(Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6)) return value.toExponential(0).replace("e+", "e");
  return Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 10 });
}

const dash = (run) => `d${(run + Math.floor(run / LOOKS)) % LOOKS}`; // past the last colour, other dashes

function mark(run, x, y, size = 4) {
  const look = { class: `mark c${run % LOOKS}` };
  return run % LOOKS === 0 ? svg("circle", { ...look, cx: x, cy: y, r: 0.85 * size })
    : svg("polygon", { ...look, points: SHAPES[run % LOOKS], transform: `translate(${x} ${y}) scale(${size})` });
}

// A short piece of a run's line.
export function drawSample(into, run) {
  into.replaceChildren(svg("line", { class: `line c${run % LOOKS} ${dash(run)}`, x1: 1, x2: 29, y1: 7, y2: 7 }), mark(run, 15, 7));
  return into;
}

function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle; else high = middle;
  }
  return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
}

export class Chart {
  // `draw` takes what `panel_data` in curves.py writes; low and high of a curve, which make its band, may be missing.
  constructor(root) {
    this.plot = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0 });
    this.caption = html("caption", { class: "at" });
    this.legend = html("table", { class: "legend", "aria-live": "off" });
    this.at = null;
    root.append(this.plot, this.legend);
    for (const kind of ["pointermove", "pointerdown"]) this.plot.addEventListener(kind, (event) => this.follow(event));
    // A finger leaves as soon as it is lifted; what it showed stays until another place is touched.
    this.plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.show(null); });
    this.plot.addEventListener("blur", () => this.show(null));
    this.plot.addEventListener("keydown", (event) => this.move(event));
  }

  draw(panel) {
    this.curves = panel.curves.map((curve) => ({ ...curve, last: curve.line.findLast(isNumber) }))
      .filter((curve) => curve.last !== undefined);
    this.panel = panel;
    const level = panel.level ? [panel.level[0]] : [];
    const values = this.curves.flatMap(({ line, low = line, high = line }) => [...low, ...high]).filter(isNumber);
    this.x = axis(0, panel.until || 1, LEFT, WIDTH - RIGHT);
    this.y = fitAxis([...values, ...level], FLOOR, TOP, panel.is_log, panel.full);
    this.cursor = svg("line", { class: "cursor", y1: TOP, y2: FLOOR });
    this.dots = this.curves.map(() => svg("circle", { class: "here", r: 3.5 }));
    this.plot.replaceChildren(...this.grid(), ...this.curves.flatMap((curve) => this.curve(curve)),
      ...(panel.level ? this.level(...panel.level) : []), this.cursor, ...this.dots);
    this.cells = this.curves.map(() => html("td"));
    this.legend.replaceChildren(this.caption, ...this.curves.map(({ name, run }, place) => html("tr", {},
      html("th", { scope: "row" }, drawSample(svg("svg", { class: "sample", viewBox: "0 0 30 14" }), run), name), this.cells[place])));
    const ends = this.curves.map(({ name, line, last }) =>
      `${name}: from ${inWords(line.find(isNumber), panel.unit)} to ${inWords(last, panel.unit)}`);
    this.plot.setAttribute("aria-label", `${panel.title} over training steps. ${ends.join("; ") || "Nothing yet"}.`);
    this.show(this.at);
  }

  grid() {
    const { unit = "", since } = this.panel, right = WIDTH - RIGHT;
    const line = (kind, x1, y1, x2, y2) => svg("line", { class: kind, x1, y1, x2, y2 });
    const text = (kind, x, y, words) => svg("text", { class: `tick ${kind}`, x, y }, words);
    const shaded = since === undefined || since === null ? [] : [svg("rect",
      { class: "since", x: this.x(since), y: TOP, width: right - this.x(since), height: FLOOR - TOP })];
    return [
      ...this.y.ticks.flatMap((value) => [line("rule", LEFT, this.y(value), right, this.y(value)),
        text("up", LEFT - 6, this.y(value), tickWords(value) + unit)]),
      line("axis", LEFT, FLOOR, right, FLOOR),
      ...this.x.ticks.flatMap((value) => [line("axis", this.x(value), FLOOR, this.x(value), FLOOR + 4),
        text("across", this.x(value), FLOOR + 16, tickWords(value))]),
      text("end", right, HEIGHT - 4, "step"), ...shaded];
  }

  level(value, name) {
    const y = this.y(value), ends = this.curves.map(({ last }) => this.y(last));
    const meets = (top) => ends.some((end) => top < end && end <= top + LINE_HEIGHT);
    // Above the line, unless that is the top of the picture, or a curve ends there and none below.
    const below = y < TOP + LINE_HEIGHT || (meets(y - LINE_HEIGHT) && !meets(y));
    return [svg("line", { class: "level", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }),
      svg("text", { class: "tick level-name", x: WIDTH - RIGHT, y: y + (below ? 13 : -5) }, `${name} ${inWords(value)}`)];
  }

  // A line for every stretch without a gap, and marks.
  curve({ run, steps, line, low, high }) {
    const colour = `c${run % LOOKS}`, parts = [], there = line.flatMap((value, at) => isNumber(value) ? [at] : []);
    const points = (values, from, to) => values.slice(from, to).map((value, at) =>
      `${this.x(steps[from + at]).toFixed(1)},${this.y(value).toFixed(1)}`);
    for (let from = 0; from < line.length; from++) {
      if (!isNumber(line[from])) continue;
      let to = from;
      while (isNumber(line[to])) to++;
      if (low && !this.panel.measured) parts.push(svg("polygon", { class: `band ${colour}`,
        points: [...points(low, from, to), ...points(high, from, to).reverse()].join(" ") }));
      parts.push(svg("polyline", { class: `line ${colour} ${dash(run)}`, points: points(line, from, to).join(" ") }));
      from = to;
    }
    const marked = this.panel.measured && there.length <= MOST_MARKS ? there : there.slice(-1);
    return [...parts, ...marked.map((at) => mark(run, this.x(steps[at]), this.y(line[at])))];
  }

  // Read the curves at the row nearest to a step, or at their ends.
  show(step) {
    this.at = null;
    this.plot.classList.toggle("reading", step !== null && this.curves.length > 0);
    this.caption.textContent = "at the end";
    this.curves.forEach((curve, place) => { this.cells[place].textContent = inWords(curve.last, this.panel.unit); });
    if (step === null || !this.curves.length) return;
    const longest = this.curves.reduce((one, other) => (other.steps.length > one.steps.length ? other : one)).steps;
    this.at = longest[nearest(longest, step)];
    const x = this.x(this.at), { unit = "", measured } = this.panel;
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    const hasBands = !measured && this.curves.some(({ low }) => low);
    this.caption.textContent = `at step ${this.at.toLocaleString("en")}${hasBands ? " (least to greatest)" : ""}`;
    this.curves.forEach(({ steps, line, low, high }, place) => {
      const row = nearest(steps, this.at), past = this.at > steps.at(-1), gone = past || !isNumber(line[row]);
      this.dots[place].style.display = gone ? "none" : "";
      const range = low && !measured && !gone ? `  (${inWords(low[row])} to ${inWords(high[row], unit)})` : "";
      this.cells[place].textContent = past ? "ended" : gone ? "no number" : inWords(line[row], unit) + range;
      if (gone) return;
      this.dots[place].setAttribute("cx", this.x(steps[row]));
      this.dots[place].setAttribute("cy", this.y(line[row]));
    });
  }

  follow(event) {
    const box = this.plot.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * WIDTH;
    this.show(Math.min(1, Math.max(0, (x - LEFT) / (WIDTH - RIGHT - LEFT))) * this.x.high);
  }

  move(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.legend.setAttribute("aria-live", "polite");
    const from = this.at ?? this.x.high, to = from + moves[event.key] * this.x.high / 50;
    this.show(Math.min(this.x.high, Math.max(0, to)));
  }
}
