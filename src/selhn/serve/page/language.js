// Whether a question is perhaps not English, which is what the model reads: a guess by its letters and small words.
const OTHERS = new Set(("der das und ein eine einen einem einer mit auf im vom zum zur ist sind nicht " + // German
  "le les une des du et avec dans sur est chez " + // French
  "el los las una unos con en de del por " + // Spanish
  "il lo gli di della nel nella sul " + // Italian
  "o os um uma com em no na dos das " + // Portuguese
  "het een van naar bij " + // Dutch
  "w na i z ze oraz " + // Polish
  "och ett med på som og på i").split(" ")); // Scandinavian
const ENGLISH = new Set("a an the and with of on in at is are to by near under over no".split(" "));

export function perhapsNotEnglish(text) {
  const letters = text.match(/\p{L}/gu) ?? [];
  if (letters.some((letter) => !/\p{Script=Latin}/u.test(letter))) return true;
  const words = text.toLowerCase().match(/[\p{L}]+/gu) ?? [];
  const foreign = words.filter((word) => (OTHERS.has(word) && !ENGLISH.has(word)) || /[äöüßøåæœłśżñãõ]/.test(word)).length;
  return foreign * 4 >= words.length && foreign > 0 && !words.some((word) => ENGLISH.has(word) && !OTHERS.has(word) && word !== "in");
}
