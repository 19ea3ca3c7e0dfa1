// Justified rows: every picture keeps its shape, and every row but the last of a section is as wide as the page.
const NARROWEST = 0.45, WIDEST = 3.2; // beyond these a picture is cropped, so that others fit beside it

// sections: [{title, note, first, count}]; ratio: (position) => width / height; all lengths in pixels, `foot` below each picture.
export function layOut(sections, ratio, { width, target, gap, foot, head }) {
  const rows = [], heads = [];
  const total = sections.length ? sections.at(-1).first + sections.at(-1).count : 0;
  const lefts = new Float32Array(total), widths = new Float32Array(total);
  let top = 0;
  const close = (first, last, sum, full) => {
    const exact = (width - gap * (last - first - 1)) / sum;
    const height = full ? exact : Math.min(exact, target);
    for (let place = first, left = 0; place < last; place++) {
      lefts[place] = left;
      widths[place] *= height;
      left += widths[place] + gap;
    }
    rows.push({ top, height, first, last });
    top += height + foot + gap;
  };
  for (const { title, note, first, count } of sections) {
    if (title) {
      heads.push({ top, title, note, first, count });
      top += head;
    }
    let start = first, sum = 0;
    for (let place = first; place < first + count; place++) {
      const own = widths[place] = Math.min(WIDEST, Math.max(NARROWEST, ratio(place)));
      const before = (width - gap * (place - start - 1)) / sum;
      const after = (width - gap * (place - start)) / (sum + own);
      if (start < place && after < target && before - target < target - after) { // nearer to the target without this one
        close(start, place, sum, true);
        [start, sum] = [place, 0];
      }
      sum += own;
      if ((width - gap * (place - start)) / sum <= target) {
        close(start, place + 1, sum, true);
        [start, sum] = [place + 1, 0];
      }
    }
    if (sum) close(start, first + count, sum, false);
    if (title) top += gap * 3;
  }
  return { rows, heads, lefts, widths, height: top };
}

// Position of the last thing for which `is` holds, by binary search; 0 if it holds for none.
export function lastWhere(things, is) {
  let low = 0, high = things.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (is(things[middle])) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}
