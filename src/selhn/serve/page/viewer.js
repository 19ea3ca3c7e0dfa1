// One picture, as large as the screen: swipe, zoom, what is known about it, and what can be done with it.
import { albumsOf, isFavourite } from "./albums.js";
import { $, clock, el, fileOf, isVideo, number, outside } from "./dom.js";
import { copy, facts } from "./facts.js";
import { headline } from "./grid.js";
import { originalAddress, pictureAddress } from "./http.js";
import { look, stopLooking } from "./look.js";
import { resetZoom, startZoom, zoomBy } from "./zoom.js";

const TOLD = "selhn-told"; // whether the panel is open, in this browser
const wide = () => innerWidth >= 740;
let use, source, place = 0, item = null, sharp = false;

export function startViewer(given) {
  use = given;
  const dialog = $("detail");
  const on = (name, act) => $(`detail-${name}`).addEventListener("click", act);
  on("close", leave);
  on("like", () => leave().then(() => use.like(item)));
  on("less", () => leave().then(() => use.less(item)));
  on("before", () => turn(-1));
  on("next", () => turn(1));
  on("info", () => tell(!dialog.classList.contains("told-open")));
  on("delete", async () => { if (await use.remove([item])) again(); });
  on("favour", () => use.favour([item]));
  on("album", () => use.album([item]));
  on("copy", () => copy(fileOf(item), $("detail-copy")));
  dialog.addEventListener("cancel", (event) => { event.preventDefault(); leave(); });
  dialog.addEventListener("keydown", keys);
  startZoom($("stage"), $("figure"), { turn, close: leave, tell: () => tell(true), sharper });
  new ResizeObserver(fit).observe($("stage"));
  $("detail-picture").addEventListener("load", fit);
  if (history.state?.viewer) history.replaceState(null, "");
}

export async function openViewer(shown, which) {
  source = shown;
  history.pushState({ viewer: true }, "");
  tell(wide() && localStorage.getItem(TOLD) !== "no", false);
  $("detail").showModal();
  $("stage").focus();
  await turnTo(which);
}

// An open picture is a step of the history, so that Back closes it, and closing it goes back.
function leave() {
  return new Promise((done) => {
    addEventListener("popstate", () => setTimeout(done), { once: true });
    history.back();
  });
}

export function closeViewer() {
  if (!$("detail").open) return false;
  $("detail").close();
  stopLooking();
  stopVideo();
  use.closed(place);
  return true;
}

function tell(open, keep = wide()) {
  $("detail").classList.toggle("told-open", open);
  $("detail-info").setAttribute("aria-expanded", String(open));
  if (keep) localStorage.setItem(TOLD, open ? "yes" : "no");
}

const turn = (step) => { if (place + step >= 0 && place + step < source.total) turnTo(place + step); };

async function turnTo(which) {
  place = which;
  $("detail-place").textContent = `${(place + 1).toLocaleString("en")} of ${source.total.toLocaleString("en")}`;
  $("detail-before").disabled = place === 0;
  $("detail-next").disabled = place === source.total - 1;
  item = source.item(place) ?? null;
  if (!item) {
    $("detail").classList.add("blank"); // its buttons would act on the previous picture
    $("detail-picture").removeAttribute("src");
    const found = await source.load(place).catch(() => null);
    if (place !== which || !$("detail").open) return;
    if (!found && source !== use.shown()) return again();
    item = found;
  }
  $("no-picture").hidden = Boolean(item?.picture);
  $("detail").classList.toggle("blank", !item);
  if (!item) return;
  draw();
  for (const near of [place + 1, place - 1]) {
    const next = near >= 0 && near < source.total && await source.load(near).catch(() => null);
    if (place !== which) return;
    if (next?.picture) new Image().src = pictureAddress(next.id, size());
  }
}

// The pictures that are shown have changed: continue with them from the same place.
function again() {
  source = use.shown();
  if (source?.total) turnTo(Math.min(place, source.total - 1));
  else leave();
}

const isShown = () => use.shownKinds.includes(/\.[^.]*$/.exec(fileOf(item).toLowerCase())?.[0]);
const size = () => (Math.max(innerWidth, innerHeight) * devicePixelRatio > 1500 ? 2560 : 1280);

function draw() {
  const words = headline(item), image = $("detail-picture");
  const at = item.metadata.moment > 0 ? ` · at ${clock(item.metadata.moment)}` : "";
  const fits = typeof item.fit === "number" ? ` · ${Math.round(item.fit * 100)} % likely a match` : "";
  $("detail-score").textContent = item.score === undefined ? "" : `Result ${place + 1}${at}${fits} · score ${number(item.score)}`;
  $("detail-caption").textContent = words;
  $("detail-captions").replaceChildren(...item.captions.filter((text) => text !== words).map((text) => el("li", {}, text)));
  drawAlbums();
  credit(item.metadata);
  $("detail-less").hidden = !use.text();
  $("detail-delete").hidden = !use.can.write;
  $("detail-favour").hidden = $("detail-album").hidden = !(use.can.write && use.can.albums);
  $("detail-open").hidden = !item.picture || !isShown();
  $("detail-download").hidden = !item.picture;
  $("detail-open").href = originalAddress(item.id);
  $("detail-download").href = originalAddress(item.id, true);
  resetZoom();
  sharp = false;
  image.hidden = !item.picture;
  image.alt = item.captions[0] ?? words;
  image.removeAttribute("src");
  fit();
  if (item.picture) large(size());
  drawVideo();
  if (use.can.look) look(item, use.text() || item.captions[0]);
}

// A video waits at its moment, over the frame that was found; if the browser cannot play it, the frame stays.
function drawVideo() {
  const video = $("detail-video"), mine = item;
  stopVideo();
  if (!item.picture || !isVideo(item)) return;
  $("no-video").hidden = isShown();
  if (!$("no-video").hidden) return;
  video.onloadeddata = () => { video.hidden = mine !== item; };
  video.onerror = () => {
    if (mine !== item) return;
    stopVideo();
    $("no-video").hidden = false;
  };
  video.src = `${originalAddress(item.id)}#t=${item.metadata.moment ?? 0}`;
}

const togglePlaying = () => $("detail-video")[$("detail-video").paused ? "play" : "pause"]();

function stopVideo() {
  const video = $("detail-video");
  video.onloadeddata = video.onerror = null;
  video.pause();
  video.removeAttribute("src");
  video.load();
  video.hidden = $("no-video").hidden = true;
}

// What depends on the albums, which change while the picture is open.
export function drawAlbums() {
  if (!item) return;
  $("detail-facts").replaceChildren(...facts(item, albumsOf(item)));
  $("detail-favour").setAttribute("aria-pressed", String(isFavourite(item)));
}

// The small copy, which is already loaded, until the large one has loaded.
function large(pixels) {
  const image = $("detail-picture"), mine = item, coming = new Image();
  if (!image.getAttribute("src")) image.src = pictureAddress(item.id, 320);
  coming.addEventListener("load", () => { if (mine === item) image.src = coming.src; });
  coming.addEventListener("error", () => { if (mine === item && !image.naturalWidth) { image.hidden = true; $("no-picture").hidden = false; } });
  coming.src = pictureAddress(item.id, pixels);
}

function sharper() {
  if (sharp || !item?.picture) return;
  sharp = true;
  if (size() < 2560) large(2560);
}

// The largest frame of the picture's shape that fits.
function fit() {
  if (!item) return;
  const image = $("detail-picture"), { width, height } = item.metadata;
  const ratio = (image.naturalWidth / image.naturalHeight) || (width > 0 && height > 0 ? width / height : 4 / 3);
  const box = $("stage").getBoundingClientRect(), across = Math.min(box.width, box.height * ratio);
  $("figure").style.width = `${across}px`;
  $("figure").style.height = `${across / ratio}px`;
}

function credit({ license, license_url, source: from }) {
  const told = $("detail-credit");
  told.replaceChildren();
  if (from) told.append("Reduced copy; ", outside(from, "original"), license ? ", " : ".");
  if (license) told.append(license_url ? outside(license_url, license) : String(license), ".");
}

const press = (id) => { if (item && !$(id).hidden) $(id).click(); };

function keys(event) {
  if (event.target.closest("#look-words") && event.key !== "Escape") return;
  if (event.target.matches("video") && /^( |Arrow|Home|End)/.test(event.key)) return; // the video handles these keys
  const does = {
    ArrowRight: () => turn(1), ArrowLeft: () => turn(-1), "+": () => zoomBy(1.5), "=": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5),
    " ": event.target.matches("button, a") || $("detail-video").hidden ? null : togglePlaying, 0: resetZoom, i: () => tell(!$("detail").classList.contains("told-open")),
    Home: () => turnTo(0), End: () => turnTo(source.total - 1), f: () => press("detail-favour"), Delete: () => press("detail-delete"),
  }[event.key];
  if (!does || document.querySelector("dialog[open]:not(#detail)") || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  does();
}
