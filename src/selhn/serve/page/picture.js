// A picture to search with: chosen, dropped or pasted, and reduced before it is sent.
import { $ } from "./dom.js";

const LARGEST = 1024;

// `add` takes the files that are dropped on its half of the page, if pictures may be added.
export function acceptPictures(take, add) {
  const accept = async (file) => { if (file) take(await reduced(file)); };
  const first = (data) => [...(data?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? data?.files?.[0];
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => { accept($("file").files[0]); $("file").value = ""; });
  addEventListener("paste", (event) => {
    const file = first(event.clipboardData);
    if (file) { event.preventDefault(); accept(file); }
  });
  const carries = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => { if (carries(event)) $("drop").hidden = false; });
  addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
  addEventListener("dragleave", (event) => { if (event.relatedTarget === null) $("drop").hidden = true; });
  addEventListener("drop", (event) => {
    $("drop").hidden = true;
    if (!carries(event)) return;
    event.preventDefault();
    if (add && event.target.closest?.("#drop-add")) add([...event.dataTransfer.files]);
    else accept(first(event.dataTransfer));
  });
  $("drop-add").hidden = !add;
}

// The model sees few pixels anyway; redrawing also removes where and when the picture was taken.
async function reduced(file) {
  let bytes = file;
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#fff"; // transparent parts become white, as in the index
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    bytes = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92)) ?? file;
  } catch { /* this browser cannot draw it: the service may, or says why not */ }
  return { bytes, address: URL.createObjectURL(bytes) };
}
