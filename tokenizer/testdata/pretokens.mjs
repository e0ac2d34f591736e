// Writes pretokens-cased.json: what the published patterns make of random texts, by the regular expressions of V8.
//
//	node pretokens.mjs > pretokens-cased.json      250 cases
//	node pretokens.mjs 20000 7                     so many cases from another seed, to compare once and not to keep
//
// JavaScript differs from Oniguruma, by which these patterns are defined, in two things that are made equal here: its \s
// has U+FEFF and lacks U+0085, and (?i:…) came later than Node 20, so that the contractions are written out (with U+017F,
// which folds to s). Characters are of Unicode 15 or older, which Go knows: the texts are made of the list below.

const S = "[\\t\\n\\v\\f\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const s = S.slice(1, -1);
const C = "(?:'[sS\\u017f]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const Z = `${S}*[\\r\\n]+|${S}+(?![^${s}])|${S}+`;
const N = "[^\\r\\n\\p{L}\\p{N}]?";
const U = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", Y = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${s}\\p{L}\\p{N}]+|${S}+(?![^${s}])|${S}+`;
const qwen = (digits) => `${C}|${N}\\p{L}+|${digits}| ?[^${s}\\p{L}\\p{N}]+[\\r\\n]*|${Z}`;
const sources = {
  "qwen2": qwen("\\p{N}"),
  "llama-bpe": qwen("\\p{N}{1,3}"),
  "gpt-2": gpt2,
  "qwen35": `${C}|${N}[\\p{L}\\p{M}]+|\\p{N}| ?[^${s}\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|${Z}`,
  "gpt-4o": `${N}${U}*${Y}+${C}?|${N}${U}+${Y}*${C}?|\\p{N}{1,3}| ?[^${s}\\p{L}\\p{N}]+[\\r\\n/]*|${Z}`,
  "tekken": `${N}${U}*${Y}+|${N}${U}+${Y}*|\\p{N}| ?[^${s}\\p{L}\\p{N}]+[\\r\\n/]*|${Z}`,
};

function words(name, text) {
  const found = text.match(new RegExp(sources[name], "gu")) ?? [];
  if (found.join("") !== text) throw new Error(`${name} leaves some of ${JSON.stringify(text)}`);
  return found;
}

// refact is the Digits pre-tokenizer, which makes each digit a text of its own, and then gpt-2's pattern.
const refact = (text) => (text.match(/\p{N}|\P{N}+/gu) ?? []).flatMap((part) => words("gpt-2", part));

let state = 0;
function random(n) { // xorshift32
  state ^= state << 13; state >>>= 0; state ^= state >>> 17; state ^= state << 5; state >>>= 0;
  return state % n;
}
const parts = [
  ..." \t\n\r\v\f\u0085\u00a0\u3000\u2028", ..."abzABZ", ..."0179\u0662\u2167\u00bd\u{1d7d8}", ...".,/!?'\"-_()<>|\u20ac\u2260",
  ..."\u017f\u00df\u00e9\u00c9\u01c5\u01c8\u1f88", // long s, sharp s, accents, title case
  ..."\u02b0\u3005\u02bc", // letters that modify: Lm
  ..."\u05d0\u0627\u0e01\u4f60\u597d\u{1bc00}\u{20000}", // letters without case: Lo
  ..."\u0301\u0323\u0e31\u0903\u20dd\u{1d165}", // marks: Mn, Mc, Me
  ..."\u{1f600}\u{1f468}\u200d\ufe0f\u{1f3fd}\u{10ffff}\ue000\u{1d400}\u{1d41a}\u{10400}\u{10428}",
  "'s", "'S", "'ll", "'LL", "'Re", "'\u017f", "'ve", "'d", "\r\n", "\n\n", "  ", "   ", "The", "HTTPServer", "camelCase", "123", "1234", "//", "\n/", " \u0301", "A\u0301", "a\u0301",
];

const count = Number(process.argv[2] ?? 250);
state = Number(process.argv[3] ?? 20240611);
const cases = [];
for (let i = 0; i < count; i++) {
  let text = "";
  for (let n = 1 + random(14); n > 0; n--) text += parts[random(parts.length)];
  const row = { text };
  for (const name in sources) row[name] = words(name, text);
  row.refact = refact(text);
  cases.push(JSON.stringify(row));
}
const origin = `regular expressions of Node ${process.versions.node} (V8 ${process.versions.v8}, Unicode ${process.versions.unicode}), by pretokens.mjs`;
process.stdout.write(`{"origin":${JSON.stringify(origin)},"cases":[\n${cases.join(",\n")}\n]}\n`);
