// What the grid and the viewer show: positions from 0 to total; their items are loaded when needed.
const PAGE = 100;
const PAGES_KEPT = 60;
const AGAIN = 1500; // milliseconds until a page that failed to load is requested again

// Answers that are all loaded.
export class Found {
  constructor(items, sections = [{ title: "", first: 0, count: items.length }]) {
    this.items = items;
    this.total = items.length;
    this.sections = sections;
    this.learnt = new Map();
  }

  item(place) { return this.items[place]; }

  async load(place) { return this.items[place]; }

  want() {}

  shape(place) {
    const { width, height } = this.items[place].metadata;
    return (width > 0 && height > 0 ? width / height : 0) || this.learnt.get(place) || 0;
  }

  learn(place, shape) { this.learnt.set(place, shape); }
}

// A collection of any size: shapes of all items, and pages of items by position.
export class Listing {
  constructor({ total, shapes, version }, sections, fetchPage, changed) {
    Object.assign(this, { total, shapes, version, sections, fetchPage, changed });
    this.pages = new Map();
    this.arrived = this.failed = () => {};
  }

  item(place) { return this.pages.get(Math.floor(place / PAGE))?.items?.[place % PAGE]; }

  async load(place) {
    await this.page(Math.floor(place / PAGE));
    return this.item(place);
  }

  // Cancel the requests for pages that are no longer near.
  want(first, last) {
    const [from, to] = [Math.floor(first / PAGE), Math.floor(Math.max(first, last - 1) / PAGE)];
    for (const [number, page] of this.pages) {
      if (!page.items && (number < from - 1 || number > to + 1)) {
        page.stop.abort();
        this.pages.delete(number);
      }
    }
    for (let number = from; number <= to; number++) {
      this.page(number).catch((error) => { if (error.name !== "AbortError") setTimeout(() => this.failed(), AGAIN); });
    }
  }

  page(number) {
    let page = this.pages.get(number);
    if (page) {
      this.pages.delete(number); // moved to the end: the page used last is dropped last
      this.pages.set(number, page);
      return page.answer;
    }
    const stop = new AbortController();
    page = { stop };
    this.pages.set(number, page);
    if (this.pages.size > PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
    page.answer = this.fetchPage(number * PAGE, PAGE, stop.signal).then((answer) => {
      if (answer.version !== this.version) return this.changed();
      page.items = answer.items;
      this.arrived(number * PAGE, number * PAGE + answer.items.length);
    }).catch((error) => {
      if (this.pages.get(number) === page) this.pages.delete(number);
      throw error;
    });
    return page.answer;
  }

  shape(place) { return this.shapes[place] / 100; }

  learn(place, shape) { this.shapes[place] = Math.round(shape * 100); }
}
