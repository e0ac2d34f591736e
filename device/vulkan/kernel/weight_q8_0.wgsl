//apr:include half

// 16 values of a row of w from column col on, a multiple of 16: Q8_0, blocks of 32 in 9 words, of which the first is the scale
// d and the others are the codes q; x = d·q.

struct Run { at: u32, d: f32 }

fn values(row: u32, col: u32) -> Run {
  let block = args.w_at + row * args.w_row + col / 32u * 9u;
  return Run(block + 1u + col % 32u / 4u, half(w[block] & 0xffffu));
}

fn value(r: Run, i: u32) -> f32 { return r.d * f32(i32(w[r.at + i / 4u] << (24u - 8u * (i % 4u))) >> 24u); }
