// Dates as people say them. They come as the camera wrote them, 2019-06-14 15:03:22, in the time of the place.
const parsed = (date) => new Date(`${date.slice(0, 10)}T${date.slice(11, 19) || "12:00:00"}`);
const words = (date, how) => {
  const read = parsed(date);
  return Number.isNaN(read.getTime()) ? date || "Without a date" : read.toLocaleDateString("en-GB", how);
};
const iso = (date) => [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0")).join("-");

export const yearOf = (date) => /^\d{4}/.exec(date)?.[0] ?? "";

export const monthWords = (month) => words(month && `${month}-01`, { month: "long", year: "numeric" });

export function dayWords(day) {
  const now = new Date();
  if (day === iso(now)) return "Today";
  if (day === iso(new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1))) return "Yesterday";
  const year = yearOf(day) === String(now.getFullYear()) ? undefined : "numeric";
  return words(day, { weekday: "long", day: "numeric", month: "long", year });
}

export function timeWords(date) {
  const time = /^\d\d:\d\d/.exec(date.slice(11));
  return words(date, { weekday: "long", day: "numeric", month: "long", year: "numeric" }) + (time ? `, ${time[0]}` : "");
}

// Headings: by day if days have many pictures, else by month, else by year, so that few rows are half empty.
export function sections(days) {
  const total = days.reduce((sum, [, count]) => sum + count, 0);
  if (days.every(([day]) => !day)) return total ? [{ title: "", first: 0, count: total }] : [];
  const grouped = (length) => {
    const groups = [];
    let first = 0;
    for (const [day, count] of days) {
      const name = day.slice(0, length);
      if (groups.length && groups.at(-1).name === name) groups.at(-1).count += count;
      else groups.push({ name, first, count });
      first += count;
    }
    return groups;
  };
  for (const [length, title, enough] of [[10, dayWords, 8], [7, monthWords, 5], [4, (year) => year || "Without a date", 0]]) {
    const groups = grouped(length);
    if (groups.length === 1 || total / groups.length >= enough) return groups.map(({ name, first, count }) => ({ title: title(name), first, count }));
  }
  return [];
}
