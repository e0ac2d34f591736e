//apr:include half

// 16 values of a row of w from column col on, a multiple of 16: Q6_K, blocks of 256. A row has its blocks' scales d first, two in
// a word and zeros up to four words, then each block in 52 words: low nibbles (32 words), pairs of upper bits (16) and 16
// signed scales s (4); x = (d·s)·(q − 32). Of b blocks that is 52b + 4⌈b/8⌉ words, so that b is twice the words over 105.

struct Run { nibbles: u32, low: u32, upper: u32, high: u32, scale: f32 }

fn values(row: u32, col: u32) -> Run {
  let first = args.w_at + row * args.w_row;
  let d = w[first + col / 512u] >> (16u * (col / 256u % 2u));
  let block = first + args.w_row - args.w_row * 2u / 105u * 52u + col / 256u * 52u;
  let h = col % 256u / 128u;
  let k = col % 128u / 32u;
  let n = col % 256u / 16u; // the scale
  let s = i32(w[block + 48u + n / 4u] << (24u - 8u * (n % 4u))) >> 24u;
  let piece = col % 32u / 4u;
  return Run(block + 16u * h + 8u * (k % 2u) + piece, 4u * (k / 2u), block + 32u + 8u * h + piece, 2u * k, half(d & 0xffffu) * f32(s));
}

fn value(r: Run, i: u32) -> f32 {
  let byte = 8u * (i % 4u);
  let low = (w[r.nibbles + i / 4u] >> (byte + r.low)) & 15u;
  let high = (w[r.upper + i / 4u] >> (byte + r.high)) & 3u;
  return r.scale * f32(i32(low | (high << 4u)) - 32);
}
