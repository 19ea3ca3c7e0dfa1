// Favourites and albums: which pictures are in them, and changing that.
import { $, count, el, fileOf, sure } from "./dom.js";
import { get, write } from "./http.js";

const FAVOURITES = "Favourites";
const AT_ONCE = 1000; // ids per request
let use = null, albums = new Map(); // the ids of each album

// `changed` is called after a change, with the name of the album, and its new name if it has one.
export async function startAlbums(given) {
  use = given;
  $("albums-form").addEventListener("submit", (event) => {
    if (event.submitter?.value === "close") return;
    event.preventDefault();
    $("albums-wrong").textContent = "";
    entered($("albums-name").value.trim()).catch((error) => { $("albums-wrong").textContent = error.message; });
  });
  await loadAlbums();
}

export async function loadAlbums() {
  if (!use) return;
  const found = await get("/albums").catch(() => []); // the pictures can be seen without them
  albums = new Map(found.map(({ name, ids }) => [name, new Set(ids)]));
  use.changed();
}

export const albumSizes = () => [...albums].map(([name, ids]) => [name, ids.size]);
export const albumsOf = (item) => [...albums].filter(([, ids]) => ids.has(fileOf(item))).map(([name]) => name);
export const isFavourite = (item) => albums.get(FAVOURITES)?.has(fileOf(item)) ?? false;
export const hasOwnName = (name) => name !== FAVOURITES;

async function change(name, { add = [], remove = [], name: other }) {
  for (let first = 0; !first || first < Math.max(add.length, remove.length); first += AT_ONCE) {
    const [more, fewer] = [add, remove].map((some) => some.slice(first, first + AT_ONCE));
    const told = await (await write("PATCH", "/album", { name }, JSON.stringify({ add: more, remove: fewer, name: other }))).json();
    if (told.name !== name) albums.delete(name);
    albums.set(told.name, new Set(told.ids));
  }
  use.changed(name, other);
}

const ids = (items) => items.map(fileOf);
const has = (name, items) => items.length > 0 && ids(items).every((id) => albums.get(name)?.has(id));
const toggle = (name, items) => change(name, has(name, items) ? { remove: ids(items) } : { add: ids(items) });

export const favour = (items) => toggle(FAVOURITES, items).catch((error) => use.failed(error.message));

// The dialog: albums to tick, and a name; what is entered there makes an album, or renames one.
let entered;

function open(title, verb, name, enter) {
  $("albums-title").textContent = title;
  $("albums-enter").textContent = verb;
  $("albums-name").value = name;
  $("albums-wrong").textContent = "";
  entered = enter;
  if (!$("albums").open) $("albums").showModal();
}

export function chooseAlbum(items) {
  const draw = () => $("albums-list").replaceChildren(...[...albums.keys()].map((name) => el("li", {}, el("button", { type: "button",
    "aria-pressed": String(has(name, items)), onclick: () => toggle(name, items).then(draw, (error) => { $("albums-wrong").textContent = error.message; }) },
  el("span", {}, name), el("small", {}, count(albums.get(name).size, "picture"))))));
  open(items.length === 1 ? "Albums of this picture" : `Albums of ${count(items.length, "picture")}`, "New album", "", async (name) => {
    await change(name, { add: ids(items) });
    $("albums-name").value = "";
    draw();
  });
  draw();
}

export function renameAlbum(name) {
  $("albums-list").replaceChildren();
  open(`Rename ${name}`, "Rename", name, async (other) => {
    if (other !== name) await change(name, { name: other });
    $("albums").close();
  });
  $("albums-name").select();
}

export async function deleteAlbum(name) {
  if (!await sure(`Delete the album ${name}?`, "Its pictures stay in the collection.", "Delete")) return;
  try {
    await write("DELETE", "/album", { name });
    albums.delete(name);
    use.changed(name, "");
  } catch (error) {
    use.failed(error.message);
  }
}
