// Adding pictures to the collection, many at a time.
import { $, count, el } from "./dom.js";
import { write } from "./http.js";

const AT_ONCE = 2;

export function startUpload(done) {
  const field = $("upload-files");
  $("upload").hidden = false;
  $("upload").addEventListener("click", () => field.click());
  field.addEventListener("change", () => { add([...field.files], done); field.value = ""; });
}

// Files that are not pictures, or too large, are listed by name; the others are added.
export async function add(files, done) {
  const strip = $("uploading"), bar = $("upload-bar"), waiting = [...files], refused = [];
  let added = 0;
  const told = () => {
    const finished = added + refused.length;
    strip.hidden = false;
    bar.max = files.length;
    bar.value = finished;
    $("upload-told").textContent = finished < files.length ? `Adding ${finished + 1} of ${count(files.length, "picture")} …` :
      `${count(added, "picture")} added${refused.length ? `, ${refused.length} left out:` : "."}`;
    $("upload-refused").replaceChildren(...refused.map((words) => el("li", {}, words)));
    $("upload-done").hidden = finished < files.length;
  };
  const work = async () => {
    for (let file = waiting.shift(); file; file = waiting.shift()) {
      try {
        await write("POST", "/items", {}, file, file.type.startsWith("image/") ? file.type : "image/jpeg");
        added += 1;
      } catch (error) {
        refused.push(`${file.name}: ${error.message}`);
      }
      told();
    }
  };
  told();
  $("upload-done").onclick = () => { strip.hidden = true; };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (added) done();
}
