//apr:include half

// 16 values of a row of w from column col on, a multiple of 16: Q8_0, blocks of 32. A row has its blocks' scales d first, two in a
// word and zeros up to four words, then 8 words of codes q for each block; x = d·q. Of b blocks that is 8b + 4⌈b/8⌉ words, so
// that b is twice the words over 17.

struct Run { at: u32, d: f32 }

fn values(row: u32, col: u32) -> Run {
  let first = args.w_at + row * args.w_row;
  let block = col / 32u;
  let d = w[first + block / 2u] >> (16u * (block % 2u));
  return Run(first + args.w_row - args.w_row * 2u / 17u * 8u + 8u * block + col % 32u / 4u, half(d & 0xffffu));
}

fn value(r: Run, i: u32) -> f32 { return r.d * f32(i32(w[r.at + i / 4u] << (24u - 8u * (i % 4u))) >> 24u); }
