// Training runs while they train: each request reads what was logged since the last one.
import { Chart } from "./chart.js";
import { $, count, el, number } from "./dom.js";
import { get } from "./http.js";

const EVERY = 2000;
const MOST_POINTS = 3000;
const COLOURS = ["--c0", "--c1", "--c2", "--c3"];
const FRESH = 30; // a run counts as running for this many seconds after its last line
const TONE = { healthy: "good", unclear: "unsure" };
const charts = [
  ["Loss per anchor", "A loss that mines the hardest negatives and sits at its margin has stalled.", "loss"],
  ["delta_s", "How far the hardest negative is from the positive; near 0, embeddings have collapsed.", "delta_s"],
  ["Share of mined anchors", "Anchors whose hardest negative is separated, so that mining it is safe.", "mined", { full: 1 }],
  ["RSUM on dev", "Six recalls added up, at the end of every epoch; 600 is perfect.", "rsum", { measured: true }],
].map(([title, hint, column, look]) => {
  const root = el("div", { class: "chart" }, el("h3", {}, title), el("p", {}, hint));
  return { root, chart: new Chart(root), column, panel: { title, unit: "", full: 0, ...look } };
});
const read = new Map(); // by name: what has been read of a run
const opened = new Set(); // runs whose evidence is shown
let chosen = new Set(), runs = [], drawn = "", timer, begun = false;

export function showRuns() {
  if (!begun) {
    begun = true;
    $("charts").replaceChildren(...charts.map(({ root }) => root));
    document.addEventListener("visibilitychange", () => { if (!document.hidden && timer !== undefined) tick(); });
  }
  if (timer === undefined) {
    timer = 0;
    tick();
  }
}

export function hideRuns() {
  clearTimeout(timer);
  timer = undefined;
}

async function tick() {
  clearTimeout(timer);
  try {
    runs = await get("/runs");
    if (!chosen.size && runs.length) chosen.add(runs[0].name);
    for (const name of chosen) if (!runs.some((run) => run.name === name)) chosen.delete(name);
    await Promise.all([...chosen].map(follow));
    $("runs-status").textContent = runs.length ? "" : "No run has written a log yet. Start one: selhn train rvse_selhn_world";
    draw();
  } catch (error) {
    $("runs-status").textContent = error.message;
  }
  if (timer !== undefined && !document.hidden) timer = setTimeout(tick, EVERY);
}

const blank = () => ({ after: 0, steps: [], columns: { loss: [], delta_s: [], mined: [] }, evaluations: [], verdict: null, judged: -1 });

async function follow(name) {
  let seen = read.get(name) ?? blank();
  for (let more = true; more;) {
    const next = await get("/runs/log", { run: name, after: seen.after });
    if (next.restarted) seen = blank();
    seen.steps.push(...next.steps);
    for (const column of Object.keys(seen.columns)) seen.columns[column].push(...next.columns[column] ?? []);
    seen.evaluations.push(...next.evaluations);
    seen.after = next.after;
    more = next.more;
  }
  thin(seen);
  if (seen.judged !== seen.after) {
    seen.verdict = await get("/runs/verdict", { run: name });
    seen.judged = seen.after;
  }
  read.set(name, seen);
}

// A long run is drawn with every second point, then every second of these, and so on.
function thin(seen) {
  while (seen.steps.length > MOST_POINTS) {
    const half = (values) => values.filter((_, place) => place % 2 === 0);
    seen.steps = half(seen.steps);
    for (const column of Object.keys(seen.columns)) seen.columns[column] = half(seen.columns[column]);
  }
}

const colourOf = (name) => COLOURS[[...chosen].indexOf(name) % COLOURS.length];

function draw() {
  const held = document.activeElement?.dataset?.run;
  $("runs").replaceChildren(...runs.map(line));
  if (held !== undefined) [...$("runs").querySelectorAll("button")].find((one) => one.dataset.run === held)?.focus();
  const said = JSON.stringify([...chosen].map((name) => [name, read.get(name)?.verdict, read.get(name)?.after]));
  if (said !== drawn) {
    drawn = said;
    $("verdicts").replaceChildren(...[...chosen].filter((name) => read.has(name)).map(verdict));
  }
  const shown = [...chosen].map((name, run) => ({ name, run, seen: read.get(name) })).filter(({ seen }) => seen);
  for (const { chart, column, panel } of charts) {
    const curves = shown.map(({ name, run, seen }) => column === "rsum"
      ? { name, run, steps: seen.evaluations.map(({ step }) => step), line: seen.evaluations.map(({ rsum }) => rsum) }
      : { name, run, steps: seen.steps, line: seen.steps.map((_, place) => seen.columns[column][place] ?? null) });
    chart.draw({ ...panel, until: Math.max(0, ...shown.map(({ seen }) => seen.steps.at(-1) ?? 0)), curves });
  }
}

function line(run) {
  const on = chosen.has(run.name);
  const live = !run.finished && Date.now() / 1000 - run.changed < FRESH;
  const note = run.test_rsum !== null ? number(run.test_rsum, 1) : run.finished ? "done" : live ? "live" : "stopped";
  const dot = el("span", { class: on ? "dot on" : "dot", "aria-hidden": "true" });
  if (on) dot.style.setProperty("--series", `var(${colourOf(run.name)})`);
  return el("li", {}, el("button", { type: "button", "aria-pressed": String(on), "data-run": run.name, onclick: () => choose(run.name),
    title: run.test_rsum !== null ? "RSUM on test" : "" },
  dot, el("span", { class: "name" }, run.name === "." ? "this folder" : run.name), el("span", { class: live ? "note live" : "note" }, note)));
}

function choose(name) {
  if (chosen.has(name) && chosen.size > 1) chosen.delete(name);
  else chosen.add(name);
  if (chosen.size > COLOURS.length) chosen.delete([...chosen][0]);
  tick();
}

function verdict(name) {
  const { verdict: told, steps } = read.get(name);
  const since = told.since === null ? "" : ` since ${told.clock} ${told.since.toLocaleString("en")}`;
  const made = el("div", { class: `verdict ${TONE[told.kind] ?? "bad"}` },
    el("h3", {}, el("b", {}, told.kind), `${since}: ${told.why}`),
    told.kind !== "healthy" && told.remedy ? el("p", {}, `What helps: ${told.remedy}.`) : null,
    told.evidence.length ? el("details", { open: opened.has(name), ontoggle: (event) => opened[event.target.open ? "add" : "delete"](name) },
      el("summary", {}, "Evidence"), el("ul", {}, ...told.evidence.map((one) => el("li", {}, one)))) : null);
  if (chosen.size > 1) made.prepend(el("p", {}, `${name}, ${count(steps.at(-1) ?? 0, "step")}`));
  made.style.setProperty("--series", `var(${colourOf(name)})`);
  return made;
}
