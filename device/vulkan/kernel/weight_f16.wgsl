//apr:include half

// 16 values of a row of w from column col on, a multiple of 16: IEEE halves, two in a word.

struct Run { at: u32 }

fn values(row: u32, col: u32) -> Run { return Run(args.w_at + row * args.w_row + col / 2u); }

fn value(r: Run, i: u32) -> f32 { return half(w[r.at + i / 2u] >> (16u * (i % 2u)) & 0xffffu); }
