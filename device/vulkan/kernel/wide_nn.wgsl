//apr:kernel y:rw x:r w:r:u32 | m:u32 n:u32 k:u32 add:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:lanes 256
//apr:include wide wide_rows wide_nn_$variant

// y = x·W, or added to y. x [m, k], w [k, n], y [m, n].

fn store(r: u32, s: u32, sum: f32) {
  let at = args.y_at + r * args.y_row + s;
  var v = sum;
  if (args.add != 0u) { v += y[at]; }
  y[at] = v;
}

fn run(group: u32, lane: u32) { sum_wide(group, lane); }
