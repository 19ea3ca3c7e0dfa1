// Pictures that are almost the same, in groups.
import { dayWords } from "./dates.js";
import { count } from "./dom.js";
import { sizeWords } from "./facts.js";
import { get } from "./http.js";
import { Found } from "./source.js";

const PAGE = 50;

// The first pages of groups. Waits until all pictures are compared; `wait` is called with the share that is done.
export async function duplicates(signal, wait, pages) {
  const groups = [];
  let found;
  for (let first = 0; first < pages * PAGE;) {
    found = await get("/duplicates", { first, number: PAGE }, signal);
    groups.push(...found.groups);
    if (found.state === "ready") first += PAGE;
    else {
      wait(found.share);
      await new Promise((done) => setTimeout(done, 700));
    }
  }
  const items = [], sections = [];
  for (const group of groups) {
    const { taken, modified } = group.items[0].metadata, day = String(taken ?? modified ?? "").slice(0, 10);
    const title = group.kind === "burst" ? `A burst of ${group.count}` : `${group.count} almost the same`;
    sections.push({ title, note: day ? dayWords(day) : "", first: items.length, count: group.items.length });
    items.push(...group.items);
  }
  const source = new Found(items, sections);
  source.foot = 22;
  source.note = ({ metadata }) => sizeWords(metadata);
  const words = found.total ? `${count(found.total, "group")} with ${count(found.spare, "spare picture")}. The largest of each group is first.` :
    "No two pictures are almost the same.";
  return { source, words, more: found.total > pages * PAGE };
}
