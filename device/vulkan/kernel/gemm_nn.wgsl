//apr:kernel y:rw x:r w:r:u32 bias:r | m:u32 n:u32 k:u32 depth:u32 add:u32 biased:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:include gemm weight_$variant

// y = x·W, or added to y. x [m, k], w [k, n], y [m, n].

fn load_left(lane: u32, i0: u32, k0: u32, depth: u32) {
  let at = args.x_at + min(i0 + lane, args.m - 1u) * args.x_row + k0;
  for (var i = 0u; i < depth; i++) { left[64u * i + lane] = x[at + i]; }
}

fn load_right(lane: u32, j0: u32, k0: u32, depth: u32) {
  let col = j0 + lane % 4u * 16u;
  if (lane / 4u >= depth || col >= args.n) { return; }
  let r = values(k0 + lane / 4u, col);
  for (var i = 0u; i < min(16u, args.n - col); i++) { right[16u * lane + i] = value(r, i); }
}

fn run(group: u32, lane: u32) { sum_tiles(group, lane); }
