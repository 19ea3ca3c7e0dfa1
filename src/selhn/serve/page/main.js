// Which view is shown, and what the service says about itself.
import { $, count } from "./dom.js";
import { get } from "./http.js";
import { startProgress } from "./progress.js";
import { hideRuns, showRuns } from "./runs.js";
import { startSearch } from "./search.js";

function turn(about) {
  const runs = about.can.runs && (location.hash === "#runs" || !about.can.search);
  $("search-view").hidden = runs;
  $("runs-view").hidden = !runs;
  $("to-search").toggleAttribute("aria-current", !runs);
  $("to-runs").toggleAttribute("aria-current", runs);
  $("title").textContent = runs ? "Training runs" : about.name;
  document.title = runs ? "Training · selhn" : `${about.name} · selhn`;
  if (runs) showRuns();
  else hideRuns();
}

async function start() {
  let about;
  try {
    about = await get("/about");
  } catch (error) {
    $("search-view").hidden = false;
    $("problem").hidden = false;
    $("reason").textContent = error.message;
    $("again").addEventListener("click", () => location.reload(), { once: true });
    return;
  }
  $("views").hidden = !(about.can.runs && about.can.search);
  const tell = () => {
    $("facts").textContent = [about.can.search ? count(about.items, "picture") : null, `selhn ${about.version}`]
      .filter(Boolean).join(" · ");
  };
  tell();
  document.addEventListener("library-changed", tell);
  addEventListener("hashchange", () => turn(about));
  turn(about);
  $("unshown").hidden = about.can.show_pictures || !about.can.ask_with_pictures;
  if (about.can.search) {
    startSearch(about);
    startProgress(about);
  }
}

start();
