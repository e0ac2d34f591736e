//apr:include half

// 16 values of a row of w from column col on, a multiple of 16: Q4_K, blocks of 256 in 36 words: d and dmin, eight 6-bit scales
// s and minima m in three words, and the nibbles q; x = (d·s)·q − dmin·m.

struct Run { at: u32, shift: u32, scale: f32, least: f32 }

fn values(row: u32, col: u32) -> Run {
  let block = args.w_at + row * args.w_row + col / 256u * 36u;
  let j = col % 256u / 32u; // the group of 32
  let shift = 8u * (j % 4u);
  var s = w[block + 1u] >> shift;
  var m = w[block + 2u] >> shift;
  if (j < 4u) {
    s &= 63u;
    m &= 63u;
  } else {
    let low = w[block + 3u] >> shift;
    s = (low & 15u) | ((s >> 2u) & 48u);
    m = ((low >> 4u) & 15u) | ((m >> 2u) & 48u);
  }
  let d = w[block];
  return Run(block + 4u + 8u * (j / 2u) + col % 32u / 4u, 4u * (j % 2u), half(d & 0xffffu) * f32(s), half(d >> 16u) * f32(m));
}

fn value(r: Run, i: u32) -> f32 { return r.scale * f32((w[r.at + i / 4u] >> (8u * (i % 4u) + r.shift)) & 15u) - r.least; }
