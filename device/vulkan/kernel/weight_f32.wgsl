// 16 values of a row of w from column col on, a multiple of 16: float32.

struct Run { at: u32 }

fn values(row: u32, col: u32) -> Run { return Run(args.w_at + row * args.w_row + col); }

fn value(r: Run, i: u32) -> f32 { return bitcast<f32>(w[r.at + i]); }
